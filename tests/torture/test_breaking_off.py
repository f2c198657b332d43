"""Runs that do not come to their end: what was found is told, and what there is to look into is kept."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from percolator_core.cli.app import app
from percolator_core.errors import StoreUnavailable
from percolator_torture.clients import client_process
from percolator_torture.clients.crew import Crew
from percolator_torture.clients.nemesis import Strikes
from percolator_torture.clients.schedule import Event, Nemesis
from percolator_torture.faults.store import connect
from percolator_torture.losses.failover import Before, FailoverRow
from percolator_torture.losses.log_loss import LogLoss
from percolator_torture.losses.pairs import Found
from percolator_torture.servers import private_server
from percolator_torture.servers.private_server import LOOPBACK, PrivateServer
from percolator_torture.suites import loss_suites, runner, workload_suite
from percolator_torture.suites.loss_suites import run_failover, run_log_loss
from percolator_torture.suites.result import Result
from percolator_torture.suites.settings import Settings
from percolator_torture.suites.workload_suite import run_workload
from tests.servers.plain import Server, some_namespace, until

IDLE = (sys.executable, "-c", "import sys; sys.stdin.readline(); sys.stdin.readline()")
"""A client that does nothing until it is told to finish."""
FEW: dict[str, Any] = {"transactions": 50, "kills": 0, "clients": 1, "nemeses": ()}


@pytest.fixture(autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a suite keeps is kept where pytest cleans up."""

    def mkdtemp(prefix: str) -> str:
        return tempfile.mkdtemp(prefix=prefix, dir=tmp_path_factory.getbasetemp())

    monkeypatch.setattr(workload_suite, "tempfile", SimpleNamespace(mkdtemp=mkdtemp))


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


# Workloads.


@pytest.mark.parametrize(
    ("part", "error"),
    [
        ("settle", StoreUnavailable("the server is gone")),
        ("read_history", ValueError("line 7 is no transaction")),
    ],
)
def test_a_run_that_breaks_off_is_wrong_and_keeps_its_histories(
    monkeypatch: pytest.MonkeyPatch, part: str, error: Exception
) -> None:
    monkeypatch.setattr(workload_suite, part, raising(error))
    result = run_workload("counter", Settings(**FEW))
    assert result.wrong == [f"it broke off: {type(error).__name__}: {error}"]
    assert result.run.startswith("50 transactions")
    assert result.folder is not None
    assert list(Path(result.folder).glob("*.history"))
    assert result.namespace is None


def test_what_is_left_on_a_server_of_the_users_is_told(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload_suite, "settle", raising(StoreUnavailable("gone")))
    result = run_workload("counter", Settings(**FEW, url=server.unix))
    assert result.namespace is not None
    with server.client() as client:
        assert any(result.namespace.encode() in key for key in client.scan_iter())


def test_a_second_ctrl_c_tells_where_the_histories_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_suite, "settle", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt) as caught:
        run_workload("counter", Settings(**FEW))
    (note,) = caught.value.__notes__
    told, _, folder = note.rpartition(" ")
    assert told == "counter broke off: the histories are in"
    assert list(Path(folder).glob("*.history"))


def test_a_server_that_is_not_there_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_process, "PATIENCE", 0.1)
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))  # and nobody listens
        url = f"redis://{LOOPBACK}:{taken.getsockname()[1]}/0"
        with pytest.raises(StoreUnavailable):
            run_workload("counter", Settings(**FEW, url=url))


def test_clients_that_do_not_start_are_not_awaited_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_suite, "STALL_LIMIT", 0.5)
    result = run_workload("counter", Settings(**FEW, program=IDLE))
    assert "after 0 transactions none was finished for 0.5 s" in result.wrong
    assert "0 transactions of 50 were made" in result.wrong


def test_the_user_may_end_a_run_while_clients_start() -> None:
    stop = threading.Event()

    def tell(what: str, *_: int) -> None:
        if what == "counter: starting":
            stop.set()

    result = run_workload("counter", Settings(**FEW, program=IDLE, tell=tell, stop=stop))
    assert result.interrupted
    assert result.ok


def test_a_client_that_nobody_kills_is_told() -> None:
    few = {**FEW, "kills": 2, "nemeses": (Nemesis.KILL,)}
    program = (sys.executable, "-c", "raise SystemExit(1)")
    result = run_workload("counter", Settings(**few, program=program))
    assert "2 x kill could not be made in time: make more transactions, or fewer kills" in result.wrong


def test_a_clock_is_set_back_when_there_is_memory_again() -> None:
    events = [Event(1, Nemesis.OUT_OF_MEMORY, 0), Event(2, Nemesis.CLOCK_BACK, 0)]
    with PrivateServer() as server, connect(server.url, some_namespace()) as db:
        strikes = Strikes(events, NobodyAtWork.__new__(NobodyAtWork), db, server, 0.5)
        strikes.act()
        assert strikes.missed == {Nemesis.CLOCK_BACK: 1}

        def all_struck() -> bool:
            strikes.act()
            return not strikes.missed

        until(all_struck)
        strikes.end()
    assert strikes.counts == {Nemesis.OUT_OF_MEMORY: 1, Nemesis.CLOCK_BACK: 1}


class NobodyAtWork(Crew):
    @property
    def done(self) -> int:
        return 10

    def strike(self, seat: int, signum: signal.Signals) -> subprocess.Popen[bytes] | None:
        return None


def test_a_nemesis_that_has_to_wait_holds_up_no_other(server: Server) -> None:
    events = [Event(1, Nemesis.KILL, 0), Event(2, Nemesis.SCRIPT_FLUSH, 0), Event(11, Nemesis.STOP, 0)]
    with connect(server.unix, some_namespace()) as db:
        strikes = Strikes(events, NobodyAtWork.__new__(NobodyAtWork), db, None, 0.5)
        strikes.act()
    assert strikes.counts == {Nemesis.SCRIPT_FLUSH: 1}
    assert strikes.missed == {Nemesis.KILL: 1, Nemesis.STOP: 1}


# The suites that take a server away.


def test_a_log_that_cannot_be_read_again_is_wrong_and_the_rest_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def log_loss(rounds: int, _seed: int, _tell: object, fsync: str) -> LogLoss:
        if fsync == "everysec":
            raise StoreUnavailable("the server did not start")
        return LogLoss("always", rounds, Found(acknowledged=7))

    monkeypatch.setattr(loss_suites, "log_loss", log_loss)
    result = run_log_loss(Settings(rounds=2))
    assert result.wrong == ["aof, everysec broke off after 0 rounds or more: the server did not start"]
    assert result.found.startswith("of 7 acknowledged 0 lost")


@pytest.mark.parametrize(
    ("found", "safe", "wrong"),
    [
        (Found(lost=1), True, ["replicas=1, replicas in step: 1 transaction acknowledged and lost"]),
        (Found(lost=1), False, []),
        (Found(torn=2), False, ["replicas=1, replicas in step: 2 transactions torn"]),
        (Found(doubled=1), False, ["replicas=1, replicas in step: 1 transaction committed twice"]),
        (Found(unexpected=1), False, ["replicas=1, replicas in step: 1 transaction reported as not"]),
    ],
)
def test_what_a_failover_must_not_do_is_wrong(
    monkeypatch: pytest.MonkeyPatch, found: Found, safe: bool, wrong: Sequence[str]
) -> None:
    row = FailoverRow("replicas=1", 1, Before.IN_STEP, safe, 1, found)
    monkeypatch.setattr(loss_suites, "failover", lambda *_, **__: [row])
    result = run_failover(Settings(rounds=1))
    assert len(result.wrong) == len(wrong)
    assert all(told.startswith(meant) for told, meant in zip(result.wrong, wrong, strict=True))


# Servers.


def test_a_port_that_somebody_else_took_is_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        free = private_server.free_port
        ports = iter([port])
        monkeypatch.setattr(private_server, "free_port", lambda: next(ports, None) or free())
        with PrivateServer(listens=True) as server, server.client() as client:
            assert client.ping()
            assert server.port != port


def test_a_server_that_does_not_start_leaves_nothing(tmp_path: Path) -> None:
    server = PrivateServer(maxmemory="a lot")
    with pytest.raises(StoreUnavailable, match="did not start"), server:
        pass
    assert not server.folder.exists()


# The command.


def test_it_tells_what_was_found_before_it_broke_off(monkeypatch: pytest.MonkeyPatch) -> None:
    error = KeyboardInterrupt()
    error.add_note("ring broke off: the histories are in somewhere")
    monkeypatch.setitem(runner.SUITES, "bank", lambda settings: Result("bank", 1, "done", "found"))
    monkeypatch.setitem(runner.SUITES, "ring", raising(error))
    ended = CliRunner().invoke(app, ["torture", "bank", "ring", "--seed", "1", "--json"])
    assert ended.exit_code == 130
    told = json.loads(ended.stdout)
    assert not told["ok"]
    assert [suite["suite"] for suite in told["suites"]] == ["bank"]
    assert "the histories are in somewhere" in ended.stderr
