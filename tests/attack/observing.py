"""Chains beside changes of tables, and beside commits under way: what must be observed is observed."""

from __future__ import annotations

import random
import threading
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, Final

import percolator_core as percolator
from percolator_core import (
    Chain,
    Database,
    TableDefinition,
    TransactionConflict,
    Worker,
)
from percolator_core.notifications.activation import activate
from percolator_torture.faults.stepper import Stepper
from percolator_torture.faults.store import FaultyDatabase
from percolator_torture.faults.store import connect as connect_faulty
from tests.attack.places import Place
from tests.chains import chain_of, running, watch
from tests.servers.plain import some_namespace

COPIES: Final = "copies"

OBSERVED: Final = ("docs", "notes")

_TABLES: Final = tuple(TableDefinition(name, 3) for name in OBSERVED)

_HANGS: Final = 40.0
"""Seconds."""

_MOMENT: Final = 0.25
"""Seconds that an activation gets before the transaction beside it goes on."""


def copying(*columns: str, tables: tuple[TableDefinition, ...]) -> Chain:
    """A chain whose observer copies each observed cell."""

    def copy(t: Any, cell: Any) -> None:
        value = t.get(cell.table, cell.row, cell.column)
        t.set(COPIES, cell.row, cell.table, value if value is not None else b"none")

    writes = tuple(f"{COPIES}.{column.partition('.')[0]}" for column in columns)
    observer = watch("copier", copy, *columns, writes=writes)
    return chain_of(observer, tables=(*tables, TableDefinition(COPIES, 2)))


def unobserved(db: Database, tables: tuple[str, ...], since: int = 0) -> list[str]:
    """A sentence for each cell whose newest value, committed after ``since``, the observer has not seen."""
    faults = []
    with db.transaction() as t:
        for table in tables:
            for row, cells in t.scan(table, columns=["text"]):
                seen = t.get(COPIES, row, table)
                if seen != cells["text"]:
                    (newest, *_) = db.history(table, row, "text")
                    if newest.commit_ts <= since:
                        continue
                    faults.append(
                        f"{table}.text of row {row!r} was committed at {newest.commit_ts} with the value "
                        f"{cells['text'][:40]!r}, and the newest that the observer has seen is {seen!r}"
                    )
    return faults


def recreate_observed_table(place: Place, seed: int, rounds: int) -> None:
    """An observed table is dropped and made again, with a worker at work and without."""
    dice = random.Random(f"{seed}/recreated")
    namespace = some_namespace()
    docs = TableDefinition("docs", 3)
    chain = copying("docs.text", tables=(docs,))
    with (
        percolator.connect(place.url, namespace) as db,
        percolator.connect(place.url, namespace) as workers_db,
    ):
        chain.create_tables(db)
        written = 0
        for number in range(1, rounds + 1):
            at_work = dice.random() < 0.5 or number == 1
            with running(workers_db, chain, threads=1, width=8) if at_work else nullcontext():
                for _ in range(dice.randint(1, 3)):
                    written += 1
                    _write(db, f"r{dice.randrange(6)}", written)
                db.drop_table("docs")
                db.create_defined(docs)
                for _ in range(dice.randint(1, 3)):
                    written += 1
                    _write(db, f"r{dice.randrange(6)}", written)
            Worker(workers_db, chain).run_until_idle(timeout=_HANGS)
            missed = unobserved(db, ("docs",))
            how = "with" if at_work else "without"
            assert not missed, (
                f"seed {seed}, round {number}: docs was dropped and made again {how} a worker; {missed}"
            )


def _write(db: Database, row: str, number: int) -> None:
    db.run(lambda t: t.set("docs", row, "text", b"value %d" % number))


def activate_beside_commits(place: Place, seed: int, rounds: int) -> None:
    """A chain is activated while a commit of two phases stands between two of its operations.

    The dice choose between which, and whether its client goes on then or dies: others roll it forward.
    """
    dice = random.Random(f"{seed}/activation")
    namespace = some_namespace()
    chain = copying(*(f"{table}.text" for table in OBSERVED), tables=_TABLES)
    with percolator.connect(place.url, namespace, lock_ttl=1.0) as db:
        chain.create_tables(db)
        between = 0
        for number in range(1, rounds + 1):
            with connect_faulty(place.url, namespace, lock_ttl=1.0) as writer:
                writer.client.one_call_a_tablet = True  # two phases, as on a cluster
                between += _activate_beside_one(db, writer, chain, dice, f"seed {seed}, round {number}")
        assert between, (
            f"seed {seed}: no activation came between the prewrite and the commit of a transaction"
        )


def _activate_beside_one(
    db: Database, writer: FaultyDatabase, chain: Chain, dice: random.Random, at: str
) -> bool:
    """One round; whether the transaction committed above the activation."""
    activate(db, {}, "nobody")
    rows = [f"{at}, row {one}".encode() for one in range(2)]
    t = writer.begin()
    for table in dice.sample(OBSERVED, len(OBSERVED)):
        for row in rows:
            t.set(table, row, "text", b"%d" % dice.getrandbits(40))
    stepper = Stepper(t.commit)
    for _ in range(dice.randrange(2, 10)):
        stepper.step()
    where = (
        "at its end"
        if stepper.at is None
        else f"{stepper.at.when} {stepper.at.operation and stepper.at.operation.names}"
    )
    active: list[int] = []

    def activation() -> None:
        activate(db, chain.observed, chain.digest)
        active.append(db.timestamp())

    thread = threading.Thread(target=activation, daemon=True)
    thread.start()
    thread.join(_MOMENT)  # it may rightly wait for the transaction
    dies = dice.random() < 0.4
    if dies:
        stepper.run(lambda point: point.operation is not None and point.operation.manner == "deferred")
        stepper.abandon()
        writer.mortal.die()
    else:
        stepper.run()
        assert stepper.error is None or isinstance(stepper.error, TransactionConflict), (
            f"{at}: {stepper.error!r}"
        )
    thread.join(_HANGS)
    assert active, f"{at}: an activation hangs for {_HANGS:g} s, or has failed"
    db.resolve_locks(timedelta(0))
    Worker(db, chain).run_until_idle(timeout=_HANGS)
    missed = unobserved(db, OBSERVED, active[0])
    end = "its client died behind the commit point" if dies else "its client went on"
    assert not missed, (
        f"{at}: the chain was active at {active[0]}; at that time a transaction stood {where}, then {end}; "
        f"{missed}"
    )
    return any(
        version.commit_ts > active[0]
        for table in OBSERVED
        for row in rows
        for version in db.history(table, row, "text")
    )
