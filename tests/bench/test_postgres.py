"""The PostgreSQL server that benchmarks compare with: it starts, measures itself, and leaves nothing."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from percolator_bench.peers import postgres
from percolator_bench.peers.cpu import tree_cpu_seconds
from percolator_bench.peers.postgres import PostgresServer, why_missing
from percolator_core.errors import ConfigurationError, StoreUnavailable

needs_postgres = pytest.mark.skipif(why_missing() is not None, reason=f"NOT TESTED: {why_missing()}")


def _gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@needs_postgres
def test_a_server_for_a_while() -> None:
    import psycopg

    with PostgresServer(max_connections=20) as server:
        pid = server.pid
        folder = Path(server.conninfo.split()[0].removeprefix("host="))
        with server.connect() as connection:
            shown = {
                name: connection.execute(f"SHOW {name}").fetchone()
                for name in (
                    "transaction_isolation",
                    "synchronous_commit",
                    "fsync",
                    "listen_addresses",
                    "server_encoding",
                    "max_connections",
                )
            }
        assert shown == {
            "transaction_isolation": ("repeatable read",),
            "synchronous_commit": ("on",),
            "fsync": ("on",),
            "listen_addresses": ("",),
            "server_encoding": ("UTF8",),
            "max_connections": ("20",),
        }
        with server.connect(synchronous_commit=False, autocommit=True) as connection:
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)
            assert connection.execute("SHOW transaction_isolation").fetchone() == ("repeatable read",)
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert _gone(pid)
    assert not folder.exists()
    with pytest.raises(StoreUnavailable, match="does not run"):
        server.cpu_seconds()


@needs_postgres
def test_cpu_time_counts_sessions_that_run_and_that_have_ended() -> None:
    work = "SELECT count(*) FROM generate_series(1, 200000) AS n WHERE md5(n::text) < '1'"

    with PostgresServer() as server:
        started = server.cpu_seconds()
        with server.connect(autocommit=True) as connection:
            connection.execute(work)
            running = server.cpu_seconds()
        assert running > started
        until = time.monotonic() + 10
        while time.monotonic() < until and _sessions(server) > 1:
            time.sleep(0.01)
        assert server.cpu_seconds() >= running


def _sessions(server: PostgresServer) -> int:
    with server.connect(autocommit=True) as connection:
        row = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE datname IS NOT NULL").fetchone()
    assert row is not None
    return int(row[0])


@needs_postgres
def test_it_stops_when_the_benchmark_fails_with_sessions_open() -> None:
    kept = []

    def fail() -> None:
        with PostgresServer() as server:
            kept.append((server.pid, server.connect()))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    [(pid, connection)] = kept
    assert _gone(pid)
    connection.close()


@needs_postgres
def test_a_server_that_does_not_start_says_why_and_is_gone() -> None:
    before = threading.active_count()
    with (
        pytest.raises(StoreUnavailable, match=r"did not start.*max_connections"),
        PostgresServer(max_connections=1_000_000),  # more than it takes
    ):
        pass
    assert threading.active_count() == before


def test_missing_programs_are_named_with_the_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres, "PACKAGED", tmp_path)
    assert "install the server" in (why_missing() or "")
    with pytest.raises(ConfigurationError, match="initdb"), PostgresServer():
        pass


@needs_postgres
def test_a_missing_client_is_named_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "find_spec", lambda name: None)
    assert "percolator-core[bench]" in (why_missing() or "")


def test_the_newest_packaged_version_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("9.6", "15", "14"):
        folder = tmp_path / version / "bin"
        folder.mkdir(parents=True)
        (folder / "initdb").touch()
        (folder / "postgres").touch()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(postgres, "PACKAGED", tmp_path)
    assert postgres.folder_of_programs() == tmp_path / "15" / "bin"


def test_no_connections_are_refused() -> None:
    with pytest.raises(ValueError, match="max_connections"):
        PostgresServer(max_connections=0)


def test_cpu_time_of_no_process() -> None:
    with pytest.raises(ProcessLookupError):
        tree_cpu_seconds(2**22 + 1)
