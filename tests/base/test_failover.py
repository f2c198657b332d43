"""A failover that loses the last writes of the store, and no file, leaves store and base consistent."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from percolator_core import Database, connect
from percolator_core.base import compaction
from percolator_core.errors import PercolatorError
from percolator_core.maintenance import bases
from percolator_core.maintenance.bases import BaseMaintainer
from percolator_torture.faults.damage import bases_of, unnamed_files
from percolator_torture.histories.settling import end_locks
from percolator_torture.servers.private_server import PrivateServer
from percolator_torture.servers.replication import cut_off, follow, promote
from tests.servers.plain import until

TABLES = ("cold", "warm")
ROWS = 60
LEASE = 0.3


class Clients:
    """Writes to both tables, and flushes, compacts and collects the first one, until the store is gone."""

    def __init__(self, url: str, seed: int, *, two_phase: bool) -> None:
        self.newest = dict.fromkeys(range(ROWS), 0)
        """The number of the last acknowledged write to each row."""
        self._url, self._seed, self._two_phase = url, seed, two_phase
        self._over = threading.Event()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        threads = [threading.Thread(target=work) for work in (self._write, self._maintain, self._maintain)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _connect(self) -> Database:
        db = connect(self._url, "n", lock_ttl=0.3, patience=0.3)
        db.client.one_call_a_tablet = self._two_phase
        return db

    def _write(self) -> None:
        chance, number = random.Random(self._seed), 0
        with self._connect() as db:
            while not self._over.is_set():
                rows, column, number = chance.sample(range(ROWS), 3), chance.choice("vw"), number + 1
                try:
                    with db.transaction() as t:
                        for table in TABLES:
                            for row in rows:
                                t.set(table, f"{row:02}", column, b"%d" % number)
                                t.set(table, f"{row:02}", "newest", b"%d" % number)
                except PercolatorError:
                    continue  # refused by a flush, or the store is gone
                self.newest.update(dict.fromkeys(rows, number))

    def _maintain(self) -> None:
        chance = random.Random(self._seed)
        with self._connect() as db:
            while not self._over.is_set():
                try:
                    match chance.randrange(4):
                        case 0:
                            db.compact("cold")
                        case 1:
                            db.collect_garbage(timedelta(0))
                        case _:
                            db.flush("cold", everything=True)
                except PercolatorError:
                    continue


def rows_of(db: Database, table: str) -> dict[bytes, dict[str, bytes]]:
    return db.run(lambda t: dict(t.scan(table)))


def await_flushes(db: Database) -> None:
    """Wait until each tablet has had two more manifests."""

    def numbers() -> list[int]:
        return [tablet.manifest.number for tablet in bases_of(db, ["cold"])]

    before = numbers() or [0, 0]
    until(lambda: all(map(lambda one, other: one >= other + 2, numbers() or [0, 0], before)))


@pytest.mark.parametrize("two_phase", [False, True], ids=["one-call", "two-phase"])
def test_a_failover_that_loses_a_second_of_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_phase: bool
) -> None:
    monkeypatch.setattr(compaction, "FEWEST_RUNS", 2)
    monkeypatch.setattr(bases, "LEASE", LEASE)
    with ExitStack() as stack:
        primary = stack.enter_context(PrivateServer(listens=True))
        replica = stack.enter_context(PrivateServer(listens=True))
        follow(replica, primary)
        db = stack.enter_context(connect(primary.url, "n"))
        for table in TABLES:
            db.create_table(table, tablets=2)
        db.set_base("cold", str(tmp_path), cold_after=timedelta(0))
        clients = Clients(primary.url, 7, two_phase=two_phase)
        with clients.at_work():
            await_flushes(db)
            kept = dict(clients.newest)
            with primary.client() as client:
                assert client.wait(1, 10_000) == 1
            cut_off(replica)
            await_flushes(db)
            lost = dict(clients.newest)
            primary.kill()
        promote(replica)
        after = stack.enter_context(connect(replica.url, "n", lock_ttl=0.3))
        assert end_locks(after)
        found = rows_of(after, "warm")
        assert rows_of(after, "cold") == found
        newest = {row: int(found.get(f"{row:02}".encode(), {}).get("newest", b"0")) for row in range(ROWS)}
        assert all(newest[row] >= kept[row] for row in range(ROWS))
        assert any(newest[row] < lost[row] for row in range(ROWS))
        # The work goes on, and the files that only lost manifests named are removed.
        with after.transaction() as t:
            for table in TABLES:
                t.delete_row(table, "07")
                t.set(table, "08", "v", b"new")
        time.sleep(LEASE)
        maintainer = BaseMaintainer(after.client, after.schema_changes, grace=0.0)
        assert maintainer.flush("cold", everything=True).rows > 0
        maintainer.compact("cold")
        assert list(unnamed_files(after, ["cold"])) == []
        assert rows_of(after, "cold") == rows_of(after, "warm") != found
