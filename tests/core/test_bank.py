"""The bank: transfers by processes that may be killed. The total is the same in every snapshot."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise

import pytest

import percolator_core as percolator
from percolator_core import Database, LockTimeout, Transaction

ACCOUNTS = 40
START = 1000


def account(number: int) -> bytes:
    return b"account %d" % number


def transfer(t: Transaction) -> None:
    one, other, third = random.sample(range(ACCOUNTS), 3)
    rows = [account(one), account(other), account(third)]
    values = [int(value or b"0") for value in t.get_many([("t", row, "v") for row in rows])]
    amount = random.randint(1, 5)
    for row, value, change in zip(rows, values, (-2 * amount, amount, amount), strict=True):
        t.set("t", row, "v", b"%d" % (value + change))


def work(url: str, namespace: str, two_phase: bool) -> None:
    random.seed(os.getpid())
    with percolator.connect(url, namespace, lock_ttl=0.2, lock_wait=5) as db:
        db.client.one_call_a_tablet = two_phase

        def one(_: int) -> None:
            try:
                db.run(transfer, attempts=20)
            except (percolator.TransactionConflict, LockTimeout):
                pass

        with db.concurrency(8) as executor:
            while True:
                list(executor.map(one, range(50)))


def total(db: Database) -> int:
    snapshot = db.snapshot()
    rows = dict(snapshot.scan("t"))
    assert len(rows) == ACCOUNTS
    again = snapshot.get_many([("t", account(number), "v") for number in range(ACCOUNTS)])
    assert sorted(again) == sorted(cells["v"] for cells in rows.values())  # type: ignore[type-var]
    return sum(int(cells["v"]) for cells in rows.values())


@pytest.fixture
def connect(connect_to_every_kind: Callable[..., Database]) -> Callable[..., Database]:
    return connect_to_every_kind


def test_bank(
    url_of_every_kind: str, db: Database, connect: Callable[..., Database], two_phase: bool
) -> None:
    with db.transaction() as t:
        for number in range(ACCOUNTS):
            t.set("t", account(number), "v", b"%d" % START)
    context = multiprocessing.get_context("fork")
    workers: list[multiprocessing.process.BaseProcess] = []

    def hire() -> None:
        worker = context.Process(target=work, args=(url_of_every_kind, db.namespace, two_phase))
        worker.start()
        workers.append(worker)

    auditor = connect(lock_ttl=0.2)
    hire()
    hire()
    end = time.monotonic() + 2.5
    audits = killed = 0
    while time.monotonic() < end:
        assert total(auditor) == ACCOUNTS * START
        audits += 1
        if random.random() < 0.1:
            victim = workers.pop(0)
            assert victim.pid
            os.kill(victim.pid, signal.SIGKILL)
            victim.join()
            killed += 1
            hire()
    for worker in workers:
        worker.kill()
        worker.join()
    assert audits > 3
    auditor.store.sleep(0.3)
    auditor.resolve_locks(timedelta(0))
    assert list(auditor.locks()) == []
    assert total(auditor) == ACCOUNTS * START
    # Every account's versions are in order, and each was committed by one transaction.
    for number in range(ACCOUNTS):
        versions = db.history("t", account(number), "v", limit=100_000)
        for newer, older in pairwise(versions):
            assert older.start_ts < older.commit_ts < newer.start_ts < newer.commit_ts
