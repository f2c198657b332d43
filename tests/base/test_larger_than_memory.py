"""A table many times as large as the server's memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from percolator_core import Database, connect
from percolator_core.maintenance import bases
from tests.servers.plain import Server, binaries, some_namespace

MIB = 1 << 20
LIMIT = 24 * MIB
ROUNDS = 16
ROWS = 400
SIZE = 16 << 10


@pytest.fixture
def small() -> Iterator[Server]:
    """A server that refuses writes beyond a few megabytes."""
    server = Server(
        next(iter(binaries().values())), "--maxmemory", str(LIMIT), "--maxmemory-policy", "noeviction"
    )
    with closing(server):
        yield server


def value(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


def load(db: Database, first: int) -> None:
    for start in range(first, first + ROWS, 50):
        with db.transaction() as t:
            for number in range(start, start + 50):
                t.set("documents", f"{number:06}", "contents", value(number))


@pytest.mark.slow
def test_a_table_may_exceed_the_memory_many_times(
    small: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bases, "SHORTEST_KEEP", 0.0)
    with connect(small.unix, some_namespace()) as db:
        db.create_table("documents", tablets=4)
        db.set_base("documents", str(tmp_path), memory=4 * MIB)
        for number in range(ROUNDS):
            load(db, number * ROWS)
            assert db.flush("documents").rows > 0
            assert db.store.all_server_info()[0].used_memory < LIMIT
        assert ROUNDS * ROWS * SIZE > 4 * LIMIT
        found = db.base("documents")
        assert found is not None
        assert found.rows_in_base > ROUNDS * ROWS * 0.9
        chosen = random.Random(1).sample(range(ROUNDS * ROWS), 200)
        cells = db.snapshot().get_many(("documents", f"{number:06}", "contents") for number in chosen)
        assert cells == [value(number) for number in chosen]
        assert sum(1 for _ in db.snapshot().scan("documents")) == ROUNDS * ROWS
