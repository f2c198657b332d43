"""``percolator doctor``, on a healthy store and on sick ones."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from percolator_core.cli import check_installation, check_store
from percolator_core.cli.check_installation import check_installation as installation
from percolator_core.cli.check_store import check_store as store_findings
from percolator_core.store.embedded.binary import OVERRIDE, find_binary

if TYPE_CHECKING:
    from percolator_core.cli.findings import Finding
    from tests.cli.conftest import Project

Start = Callable[..., str]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts redis-servers with settings; returns their URLs."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*settings: str, password: str = "") -> str:
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [
            str(find_binary().path),
            "--port",
            str(port),
            "--save",
            "",
            "--dir",
            str(tmp_path),
            *settings,
        ]
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        url = f"redis://{f':{password}@' if password else ''}127.0.0.1:{port}"
        wait_for(url)
        return url

    yield start
    for process in running:
        process.terminate()
        process.wait()


def wait_for(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        for _ in range(500):
            try:
                client.ping()
            except redis.ConnectionError:
                time.sleep(0.01)
            else:
                return
    raise AssertionError("it does not start")


def by_check(findings: Any) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def verdicts(findings: Any) -> dict[str, str]:
    return {finding.check: finding.verdict for finding in findings}


def test_a_healthy_store_is_healthy(project: Project) -> None:
    project.put(a="one two")
    project.ok("drain", "chain")
    found = project.ok("doctor", "--json").json
    assert found["healthy"]
    verdict = {one["check"]: one["verdict"] for one in found["findings"]}
    for check in (
        "python",
        "redis-server",
        "hiredis",
        "disk",
        "socket",
        "store",
        "role",
        "eviction",
        "memory",
    ):
        assert verdict[check] == "ok"
    assert verdict["append-only file"] == verdict["clock"] == verdict[project.namespace] == "ok"
    # Whatever is recommended, the embedded server has.
    assert [verdict[name] for name in verdict if "-max-listpack-" in name or "-max-ziplist-" in name] == [
        "ok"
    ] * 3


def test_the_table_names_checks_and_mends(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_installation, "_version", lambda _package: None)
    project.put(a="one")
    ended = project("doctor")
    assert ended.code == 1
    assert "pip install hiredis" in ended.out
    assert "1 failed" in ended.out
    assert not ended.err


def test_waiting_cells_and_quarantine_are_told(project: Project) -> None:
    project.put(a="boom")
    waiting = by_check(store_findings(project.url, project.namespace))
    assert waiting[f"{project.namespace}: workers"].verdict == "warn"
    project("drain", "chain")
    failed = by_check(store_findings(project.url, project.namespace))
    assert failed[f"{project.namespace}: quarantine"].verdict == "warn"
    assert failed[f"{project.namespace}: quarantine"].found == "1 cell"
    assert failed[f"{project.namespace}: workers"].verdict == "ok"


def test_a_store_that_is_not_there_yet_is_not_made(project: Project) -> None:
    ended = project("doctor", "--url", "embedded:new/state", "--json")
    assert ended.code == 0
    assert not Path("new").exists()


def test_a_namespace_that_is_not_there_is_not_made(project: Project) -> None:
    before = store_findings(project.url, None)
    list(store_findings(project.url, "no-such-namespace"))
    assert "no-such-namespace" not in verdicts(before)
    assert verdicts(store_findings(project.url, "no-such-namespace"))["no-such-namespace"] == "warn"


def test_a_store_that_nobody_serves_fails_with_a_mend(project: Project) -> None:
    ended = project("doctor", "--url", "redis://:secret@127.0.0.1:1/0", "--json")
    assert ended.code == 1
    assert "secret" not in ended.out + ended.err
    assert not ended.json["healthy"]
    assert [one["mend"] for one in ended.json["findings"] if one["check"] == "store"] == [
        "start it, or name the right one with --url"
    ]


def test_a_url_that_is_none_fails(project: Project) -> None:
    assert verdicts(store_findings("nonsense", None)) == {"store": "fail"}


def test_a_server_with_the_settings_it_comes_with(start: Start) -> None:
    found = by_check(store_findings(start(), None))
    assert found["append-only file"].verdict == "warn"
    assert found["hash-max-listpack-entries"].verdict in {"ok", "warn"}
    assert found["hash-max-listpack-value"].verdict == "warn"
    assert "CONFIG SET hash-max-listpack-value 1024" in found["hash-max-listpack-value"].mend
    assert "CONFIG SET zset-max-listpack-value 512" in found["zset-max-listpack-value"].mend
    assert not check_store.LARGEST.keys() & found.keys()
    assert found["namespaces"].verdict == "ok"


def test_a_server_that_takes_no_large_values_is_told(start: Start) -> None:
    found = by_check(store_findings(start("--proto-max-bulk-len", "1mb"), None))
    assert found["proto-max-bulk-len"].verdict == "warn"
    assert found["proto-max-bulk-len"].mend.endswith("CONFIG SET proto-max-bulk-len 536870912")


def test_a_server_that_evicts_fails(start: Start) -> None:
    found = by_check(store_findings(start("--maxmemory-policy", "allkeys-lru", "--appendonly", "yes"), None))
    assert found["eviction"].verdict == "fail"
    assert "noeviction" in found["eviction"].mend
    assert found["append-only file"].verdict == "ok"


def test_a_server_that_has_evicted_fails(start: Start) -> None:
    url = start("--maxmemory-policy", "allkeys-lru", "--maxmemory", "3mb")
    with redis.Redis.from_url(url) as client:
        number = 0
        while not client.info("stats")["evicted_keys"]:
            number += 1
            client.set(f"key {number}", b"x" * 100_000)
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 0)
    found = by_check(store_findings(url, None))["eviction"]
    assert (found.verdict, "keys evicted" in found.found) == ("fail", True)
    assert "CONFIG RESETSTAT" in found.mend


def test_a_replica_fails(start: Start) -> None:
    master = start()
    found = by_check(store_findings(start("--replicaof", "127.0.0.1", master.rpartition(":")[2]), None))
    assert found["role"].verdict == "fail"


def test_little_memory_is_told(start: Start) -> None:
    assert verdicts(store_findings(start("--maxmemory", "100kb"), None))["memory"] == "warn"


def test_a_user_without_rights_to_the_settings_is_warned(start: Start) -> None:
    url = start()
    with redis.Redis.from_url(url) as client:
        client.execute_command("ACL", "SETUSER", "limited", "on", ">word", "~*", "&*", "+@all", "-config")
    url = url.replace("//", "//limited:word@")
    found = by_check(store_findings(url, None))
    assert found["hash-max-listpack-value"].found == "this user may not read it"


def test_a_wrong_password_is_told_without_it(start: Start) -> None:
    url = start("--requirepass", "right", password="right").replace("right", "wr0ng-secret")
    found = by_check(store_findings(url, None))
    assert found["store"].verdict == "fail"
    assert "wr0ng-secret" not in str(found)


def test_data_of_another_format_fails(start: Start) -> None:
    url = start()
    with redis.Redis.from_url(url) as client:
        from percolator_core import connect

        with connect(url, "later") as db:
            db.create_table("docs")
            client.set(db.store.keyspace.prefix + b"format", "99")
    assert verdicts(store_findings(url, None))["later"] == "fail"


def test_a_clock_that_differs_is_told() -> None:
    assert check_store._clock(0.01).verdict == "ok"
    late = check_store._clock(-90.0)
    assert late.verdict == "warn"
    assert late.found == "the server's clock is 90000 ms behind"


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    for free, verdict in ((10 << 30, "ok"), (500 << 20, "warn"), (1 << 20, "fail")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _path, free=free: usage._replace(free=free))
        assert verdicts(store_findings(f"embedded:{tmp_path / 'state'}", None))["disk"] == verdict


def test_a_long_path_is_told(tmp_path: Path) -> None:
    found = by_check(store_findings(f"embedded:{tmp_path / ('long' * 40)}", None))
    assert "bytes would be too long" in found["socket"].found


def test_a_missing_server_program_fails_only_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OVERRIDE, "/no/such/program")
    assert verdicts(installation(embedded=True))["redis-server"] == "fail"
    assert verdicts(installation(embedded=False))["redis-server"] == "warn"


def test_java_that_is_missing_is_a_warning_with_its_mend(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java = by_check(installation(embedded=False))["java"]
    assert java.verdict == "warn"
    assert "JAVA_HOME" in java.found
    assert "install one" in java.mend


@pytest.mark.parametrize(
    ("versions", "verdict"),
    [
        ({"pyspark": "4.2.0"}, ["ok"]),
        ({"pyspark": "4.1.0"}, ["fail"]),
        ({"pyspark": "4.2.0", "pyspark-client": "4.1.0"}, ["fail"]),
        ({}, []),
    ],
)
def test_pyspark_has_to_be_the_pinned_one(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], verdict: list[str]
) -> None:
    monkeypatch.setattr(check_installation, "_version", versions.get)
    monkeypatch.setattr(check_installation, "_pinned", lambda _package: "4.2.0")
    assert [found.verdict for found in check_installation._pyspark()] == verdict


def test_a_missing_extra_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_installation, "_version", {"hiredis": "3"}.get)
    found = [one for one in installation(embedded=False) if "pip install" in (one.mend or "")]
    assert [(one.verdict, one.check) for one in found] == [
        ("warn", f"extra {extra}") for extra in ("ui", "spark", "webindex", "plot")
    ]


def test_the_pin_is_read_from_the_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = ["greenlet>=3.1", 'pyspark==4.2.0; extra == "spark"']
    monkeypatch.setattr(metadata, "requires", lambda _package: requirements)
    assert check_installation._pinned("pyspark") == "4.2.0"
    assert check_installation._pinned("greenlet") is None
