"""Connections are read, and their secrets are shown nowhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from percolator_core.errors import ConfigurationError
from tests.airflow.project import make_project
from tests.servers.plain import Server, binaries, free_port

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Given:
    conn_id: str = "mine"
    conn_type: str | None = "percolator"
    host: str | None = None
    schema: str | None = None
    login: str | None = None
    password: str | None = None
    port: int | None = None
    extra: str | None = None


def read(**fields: Any) -> Any:
    from percolator_airflow.connection import store_connection

    if isinstance(fields.get("extra"), dict):
        fields["extra"] = json.dumps(fields["extra"])
    return store_connection(Given(**fields))


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"host": "redis://h:1/2"}, "redis://h:1/2"),
        ({"host": "h"}, "redis://h"),
        ({"host": "h:7000"}, "redis://h:7000"),
        ({"host": "h", "port": 7000, "schema": "3"}, "redis://h:7000/3"),
        ({"host": "::1", "port": 7000}, "redis://[::1]:7000"),
        ({"host": "rediss://h", "port": 7000, "schema": "3"}, "rediss://h:7000/3"),
        ({"host": "redis://h:1/2", "port": 9, "schema": "9"}, "redis://h:1/2"),
        ({"host": "h", "extra": {"tls": "true"}}, "rediss://h"),
        ({"host": "redis+cluster://a,b", "extra": {"tls": True}}, "rediss+cluster://a,b"),
        ({"host": "h", "login": "me", "password": "p@ss/w ord"}, "redis://me:p%40ss%2Fw%20ord@h"),
        ({"host": "unix:///run/s?db=1", "password": "pass"}, "unix://:pass@/run/s?db=1"),
        (
            {"host": "redis+sentinel://a:1,b:2/main/0", "password": "pass"},
            "redis+sentinel://:pass@a:1,b:2/main/0",
        ),
        ({"host": "embedded:/var/a b"}, "embedded:/var/a b"),
        ({"host": "embedded:state?durability=fsync"}, "embedded:/srv/airflow/state?durability=fsync"),
        (
            {"host": "h", "extra": {"durability": "replicas=1,fsync", "ssl_ca_certs": ""}},
            "redis://h?durability=replicas%3D1%2Cfsync",
        ),
        ({"host": "h", "extra": ""}, "redis://h"),
    ],
)
def test_fields_make_a_url(fields: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", "/srv/airflow")
    assert str.__str__(read(**fields).url) == url


def test_extra_has_the_settings_of_connect() -> None:
    found = read(
        host="h", extra={"lock_ttl": 5, "lock_wait": "6", "patience": 7.5, "timeout": 8, "namespace": "n"}
    )
    assert found.arguments() == {
        "url": "redis://h",
        "namespace": "n",
        "lock_ttl": 5.0,
        "lock_wait": 6.0,
        "patience": 7.5,
        "timeout": 8.0,
    }
    assert found.arguments("other")["namespace"] == "other"
    assert read(host="h").arguments(default="words")["namespace"] == "words"
    assert read(host="h").arguments()["namespace"] == "default"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "its host is empty"),
        ({"host": "h", "conn_type": "redis"}, "its type is 'redis', not percolator"),
        ({"host": "ftp://h"}, "is not the URL of a store"),
        ({"host": "h", "extra": "[1]"}, "its extra is not a JSON object"),
        ({"host": "h", "extra": "{secret"}, "its extra is not a JSON object"),
        ({"host": "h", "extra": {"patients": 3}}, "unknown key 'patients': did you mean patience?"),
        ({"host": "h", "extra": {"timeout": "secret"}}, "timeout in its extra is not a number of seconds"),
        ({"host": "h", "extra": {"patience": 0}}, "patience in its extra is not a number of seconds"),
        ({"host": "h", "extra": {"tls": "secret"}}, "tls in its extra is neither true nor false"),
        ({"host": "redis://u:secret@h", "password": "secret"}, "both its host and its login name a user"),
        ({"host": "embedded:/x", "password": "secret"}, "an embedded store has no user and no password"),
        ({"host": "redis://h?db=1", "extra": {"db": 2}}, "both its host and its extra set db"),
        ({"host": "redis://:sec/ret@h"}, "has an @ after the host"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(fields: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(**fields)
    assert str(caught.value).startswith("the connection 'mine': ")
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_secrets_are_known_in_each_form_and_shown_in_none() -> None:
    found = read(host="redis+sentinel://a/main", password="ca/na ry", extra={"sentinel_password": "other"})
    assert found.secrets == ("ca/na ry", "ca%2Fna%20ry", "ca/na%20ry", "other")
    assert read(host="redis://forgotten@h").secrets == ("forgotten",)
    assert read(host="redis://me:inside@h").secrets == ("inside",)
    for shown in (repr(found), str(found), repr(found.arguments())):
        assert "na" not in shown.replace("name", "")
        assert "other" not in shown


@pytest.mark.parametrize(
    "uri",
    [
        "percolator://me:p%40ss@h:7000/3?durability=fsync&patience=4",
        "percolator://redis://me:p%40ss@h:7000/3?durability=fsync&patience=4",
    ],
)
def test_the_uri_of_an_environment_variable(uri: str, airflow_home: Path) -> None:
    from airflow.sdk import Connection

    from percolator_airflow.connection import store_connection

    found = store_connection(Connection.from_uri(uri, conn_id="mine"))
    assert str.__str__(found.url) == "redis://me:p%40ss@h:7000/3?durability=fsync"
    assert found.settings == {"patience": 4.0}


@pytest.mark.parametrize(
    "host", ["embedded:/var/Lib/state", "unix:///run/X.sock", "redis+sentinel://a:1,b:2/Main/0"]
)
def test_a_connection_survives_being_written_as_a_uri(host: str, airflow_home: Path) -> None:
    """Airflow pickles connections for its cache."""
    from airflow.sdk import Connection

    from percolator_airflow.connection import store_connection

    before = Connection(conn_id="mine", conn_type="percolator", host=host)
    again = Connection.from_uri(before.get_uri(), conn_id="mine")
    assert str.__str__(store_connection(again).url) == host


CANARY = "eagle/Vogel%77 x"

DAG = """
import logging
import sys
import traceback

from airflow.sdk import DAG, task
from percolator_airflow import (
    CollectGarbageOperator, DirtyTrigger, DrainOperator, IdleSensor, PercolatorHook, ResolveLocksOperator,
    dirty_asset, table_asset,
)

chain = sys.argv[1] if len(sys.argv) > 1 else CHAIN
with DAG("canary", schedule=None, default_args=dict(trigger_rule="all_done")) as dag:
    previous = None
    for conn_id in ("right", "in_url", "in_extra", "away", "refused", "broken", "unknown", "both"):
        where = dict(chain=chain, conn_id=conn_id)
        outlets = [table_asset("docs", conn_id)]
        one = DrainOperator(task_id=f"drain_{conn_id}", engine="local", outlets=outlets, **where)
        two = IdleSensor(task_id=f"idle_{conn_id}", deferrable=False, timeout=1, **where)
        three = ResolveLocksOperator(task_id=f"locks_{conn_id}", **where)

        @task.percolator(task_id=f"fn_{conn_id}", conn_id=conn_id, namespace="words")
        def fn(t, n):
            logging.getLogger("mine").warning("in the task: %r %s", t, n)
            if n == "raise":
                raise ValueError("from the function")
            return n

        tasks = [one, two, three, fn("fine"), fn.override(task_id=f"raise_{conn_id}")("raise")]
        for each in tasks:
            if previous is not None:
                previous >> each
            previous = each
    dirty_asset(chain, "right")
    print(DirtyTrigger(chain, "right"), PercolatorHook("right"), one, fn)
"""

RUN = """
import sys
sys.argv = ["run", CHAIN]
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(FOLDER, load_op_links=False)
assert not bag.import_errors, bag.import_errors
print("state of the run:", bag.dags["canary"].test().state)
from percolator_airflow import PercolatorHook
for conn_id in ("right", "away", "refused", "broken", "both"):
    print(conn_id, PercolatorHook(conn_id).test_connection())
hook = PercolatorHook("right")
print(hook.store(), hook.arguments(), vars(hook))
with hook.get_conn() as db:
    print(db, vars(db))
"""


@pytest.fixture
def guarded_server() -> Iterator[Server]:
    server = Server(next(iter(binaries().values())))
    server.client().config_set("requirepass", CANARY)
    yield server
    server.close()


def test_no_log_no_field_and_no_result_holds_a_password(
    airflow_home: Path, tmp_path: Path, guarded_server: Server
) -> None:
    from urllib.parse import quote

    home = tmp_path / "home"
    (home / "dags").mkdir(parents=True)
    shutil.copy(airflow_home / "airflow.db", home / "airflow.db")
    words = make_project(tmp_path / "project", "embedded:/nowhere")
    (home / "dags/canary.py").write_text(DAG.replace("CHAIN", repr(words.chain)))
    port = guarded_server.port
    in_url = quote(CANARY, safe="")
    connections: dict[str, dict[str, Any]] = {
        "right": {"host": "127.0.0.1", "port": port, "password": CANARY},
        "in_url": {"host": f"redis://:{in_url}@127.0.0.1:{port}/0"},
        "in_extra": {"host": f"redis://127.0.0.1:{port}/0", "extra": {"password": CANARY}},
        "away": {"host": f"redis://:{in_url}@127.0.0.1:{free_port()}", "extra": {"patience": 0.2}},
        "refused": {"host": "127.0.0.1", "port": port, "password": f"{CANARY} wrong"},
        "broken": {"host": f"redis://me:{CANARY}@127.0.0.1:{port}/0"},
        "unknown": {"host": "h", "extra": {"pass_word": CANARY}},
        "both": {"host": f"redis://me:{in_url}@h", "password": CANARY},
    }
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "_AIRFLOW"))
    } | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}?timeout=60",
        # Not at DEBUG, where Airflow's own dag.test() prints the message that asks to mask a secret.
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
        "AIRFLOW__LOGGING__NAMESPACE_LEVELS": "percolator_core=debug percolator_airflow=debug",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}",
        **{
            f"AIRFLOW_CONN_{name.upper()}": json.dumps({"conn_type": "percolator", **fields})
            for name, fields in connections.items()
        },
    }
    program = RUN.replace("CHAIN", repr(words.chain)).replace("FOLDER", repr(str(home / "dags")))
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    (tmp_path / "said").write_text(said)
    assert done.returncode == 0, said[-3000:]
    # Every output above was produced.
    for part in (
        "from the function",
        "in the task",
        "no cell waits for the observers",
        "answers; the namespace",
    ):
        assert part in said
    assert said.count("(False, ") == 4
    everything = said.encode() + b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    at = everything.find(b"Vogel")
    assert at < 0, everything[max(0, at - 300) : at + 100]
