"""A private PostgreSQL server for tests: the one of the benchmarks, with the log that replication needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from percolator_bench.peers.postgres import PostgresServer, why_missing

needs_postgres = pytest.mark.skipif(why_missing() is not None, reason=f"NOT TESTED: {why_missing()}")

SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "40",
    "max_wal_senders": "40",
    # No test pulls the plug, and the machine's disk is shared.
    "fsync": "off",
}


def postgres_server() -> Iterator[PostgresServer]:
    """The body of a fixture."""
    if why_missing() is not None:
        pytest.skip(f"NOT TESTED: {why_missing()}")
    with PostgresServer(settings=SETTINGS) as server:
        yield server
