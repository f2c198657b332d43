"""Transfers between accounts while servers come and go, and what must be true afterwards."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from percolator_core import (
    CommitUndetermined,
    Database,
    LockTimeout,
    StoreUnavailable,
    Transaction,
    TransactionAborted,
    TransactionConflict,
)
from tests.servers.cluster import Node
from tests.servers.plain import PATIENCE, until
from tests.servers.sentinel import DataServer

ACCOUNTS = 40
START = 1000


def account(number: int) -> bytes:
    return b"account %d" % number


class Bank:
    """Accounts in table ``t``. Each transfer leaves a receipt, so that a lost or doubled one shows."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.acknowledged: set[bytes] = set()
        self.open: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.errors: list[BaseException] = []
        self._numbers = itertools.count()
        db.create_table("t")
        with db.transaction() as t:
            for number in range(ACCOUNTS):
                t.set("t", account(number), "v", b"%d" % START)

    @property
    def done(self) -> int:
        return len(self.acknowledged)

    def transfer(self, db: Database, rng: random.Random) -> None:
        receipt = b"receipt %d" % next(self._numbers)
        one, other = (account(number) for number in rng.sample(range(ACCOUNTS), 2))
        try:
            with db.transaction() as t:
                mine, yours = (int(value or 0) for value in t.get_many([("t", one, "v"), ("t", other, "v")]))
                t.set("t", one, "v", b"%d" % (mine - 1))
                t.set("t", other, "v", b"%d" % (yours + 1))
                t.set("t", receipt, "v", b"%d" % t.start_timestamp)
        except CommitUndetermined:
            self.open.add(receipt)
        except (TransactionConflict, TransactionAborted, LockTimeout, StoreUnavailable):
            self.refused.add(receipt)
        else:
            self.acknowledged.add(receipt)

    @contextmanager
    def busy(self, *databases: Database, width: int = 16, seed: int = 1) -> Iterator[None]:
        """Meanwhile each database transfers under a hub in one thread, and without one in another."""
        over = threading.Event()
        threads = [
            threading.Thread(
                target=self._work, args=(db, tasks, over, random.Random(seed * 1000 + number)), daemon=True
            )
            for number, (db, tasks) in enumerate((db, tasks) for db in databases for tasks in (width, 0))
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in threads)
        if self.errors:
            raise self.errors[0]

    def _work(self, db: Database, width: int, over: threading.Event, rng: random.Random) -> None:
        try:
            if not width:
                while not over.is_set():
                    self.transfer(db, rng)
                return
            with db.concurrency(width) as executor:
                while not over.is_set():
                    for future in [executor.submit(self.transfer, db, rng) for _ in range(2 * width)]:
                        future.result()
        except BaseException as error:  # noqa: BLE001 - told by the test's own thread
            self.errors.append(error)

    def goes_on(self, count: int = 50, seconds: float = 30) -> None:
        """Wait until so many more transfers were acknowledged."""
        goal = self.done + count
        until(lambda: self.done >= goal or bool(self.errors), seconds)

    def check(self, db: Database) -> None:
        """Nothing acknowledged is missing, nothing refused is there, and no money was made or lost."""
        # Of whoever died at its commit a lock may be alive yet.
        until(lambda: not db.resolve_locks(timedelta(0)).live)
        with db.transaction() as t:
            rows = {row: cells["v"] for row, cells in t.scan("t")}
        receipts = {row for row in rows if row.startswith(b"receipt")}
        assert self.acknowledged - receipts == set(), "acknowledged transfers are lost"
        assert receipts & self.refused == set(), "transfers reported as refused are there"
        assert receipts <= self.acknowledged | self.open
        assert sum(int(rows[account(number)]) for number in range(ACCOUNTS)) == ACCOUNTS * START
        assert len({rows[row] for row in receipts}) == len(receipts), "a start timestamp was given out twice"
        for number in range(0, ACCOUNTS, 7):
            versions = db.history("t", account(number), "v", limit=10_000)
            for newer, older in itertools.pairwise(versions):
                assert older.start_ts < older.commit_ts < newer.start_ts < newer.commit_ts


def write(db: Database, row: bytes, value: bytes) -> int:
    with db.transaction() as t:
        t.set("t", row, "v", value)
    assert t.commit_timestamp is not None
    return t.commit_timestamp


def read(db: Database, row: bytes) -> bytes | None:
    with db.transaction() as t:
        return t.get("t", row, "v")


def bump(t: Transaction, row: bytes) -> None:
    t.set("t", row, "v", b"%d" % (int(t.get("t", row, "v") or b"0") + 1))


def await_replicas(server: Node | DataServer) -> None:
    """Wait until a replica has all that the server has now: WAIT speaks for its connection's writes alone."""
    offset = int(server.ask("ROLE")[1])

    def is_there() -> bool:
        return any(int(replica[2]) >= offset for replica in server.ask("ROLE")[2])

    until(is_there)
