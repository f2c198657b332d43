"""A table with a base and its twin without one: every read of both returns the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from percolator_core import Database, Hash, Indexed, PrimaryKey, Snapshot, Table, Transaction, Unique
from percolator_core.base import compaction, row_set, tablet
from percolator_core.layout.keys import MARKER
from percolator_core.schema.types import column_type
from percolator_core.store import Store
from percolator_core.tables import lookup
from percolator_core.tables.model import definition_of
from percolator_core.transaction import base_select, late_reads
from percolator_core.transaction import scan as scans
from tests.servers.plain import commit_of, die

TABLETS = 2
KEYS = 40
COLUMNS = ("a", "b", "c")


class Cold(Table, name="cold", partition=[Hash("id", buckets=TABLETS)]):
    id: PrimaryKey[int]
    a: Indexed[int | None] = None
    d: Unique[int | None] = None
    b: str | None = None
    c: float = 0.5


class Warm(Table, name="warm", partition=[Hash("id", buckets=TABLETS)]):
    id: PrimaryKey[int]
    a: Indexed[int | None] = None
    d: Unique[int | None] = None
    b: str | None = None
    c: float = 0.5


class Crash(Exception):
    pass


STEPS = {"cold", "collect", "evict", "publish_base", "restore", "leave_base", "fence", "change_table"}
"""Scripts before any call of which a maintainer, or a client that changes the base, may die."""


@contextmanager
def crash_after(steps: int) -> Iterator[None]:
    """The client dies when it is about to call a script once more; a step is one of `STEPS`."""
    left = [steps]
    command = Store.command

    def counted(self: Store, call: Any) -> Any:
        left[0] -= call[0] in STEPS
        if left[0] < 0:
            raise Crash
        return command(self, call)

    with pytest.MonkeyPatch.context() as changed, suppress(Crash):
        changed.setattr(Store, "command", counted)
        yield


class Twins:
    """Makes the same random writes to two tables, and compares random reads of both.

    The first table has a base. Its maintainer, and changes of the base, may die at any step.
    """

    tables: Sequence[str] = ("cold",)
    """The table with a base, and its indexes, which have one, too."""

    def __init__(self, connect: Callable[[], Database], folder: Path, seed: int) -> None:
        self.connect = connect
        self.db = db = connect()
        self.folder = folder
        self.random = random.Random(seed)
        self.based = set(self.tables)
        for table in self.tables:
            db.set_base(table, str(folder), cold_after=timedelta(milliseconds=2))

    def key(self) -> int:
        return self.random.randrange(KEYS)

    def write(self, t: Transaction) -> None:
        raise NotImplementedError

    def reads(self) -> list[Callable[[Snapshot, int], Any]]:
        raise NotImplementedError

    def maintain(self) -> None:
        steps = self.random.choice([1000, self.random.randrange(12)])
        for table in self.random.sample(self.tables, self.random.randrange(1, 1 + len(self.tables))):
            part = [(table, self.random.randrange(TABLETS))]
            with crash_after(steps):
                if table not in self.based:
                    self.db.collect_garbage(timedelta(0))
                elif self.random.randrange(3):
                    self.db.flush(table, self.random.random() < 0.7, tablets=part)
                else:
                    self.db.compact(table, tablets=part)

    def change_base(self) -> None:
        """Move a base, take it away or give it back. A snapshot from before may then be refused."""
        place = self.random.choice([None, str(self.folder), f"{self.folder}/other"])
        table = self.random.choice(self.tables)
        with crash_after(self.random.choice([1000, self.random.randrange(12)])):
            self.db.set_base(table, place)
        self.db.set_base(table, place)
        self.based.discard(table)
        self.based |= {table} if place else set()

    def strand(self) -> None:
        """A client dies between the two phases of a commit, before or after the commit point."""
        with self.connect() as dying:
            dying.client.one_call_a_tablet = True
            t = dying.transaction()
            while not t.mutations():
                self.write(t)
            commit = commit_of(t)
            commit_ts = commit.prewrite()
            if self.random.random() < 0.5:
                commit.commit_primary(commit_ts)
            die(dying)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            match self.random.randrange(8):
                case 0:
                    self.maintain()
                case 1:
                    self.db.collect_garbage(timedelta(0))
                case 2:
                    self.strand()
                case _:
                    with self.db.transaction() as t:
                        for _ in range(self.random.randrange(1, 6)):
                            self.write(t)

    def compare(self, snapshot: Snapshot, rounds: int) -> None:
        for _ in range(rounds):
            read = self.random.choice(self.reads())
            of_both = [read(snapshot, table) for table in (0, 1)]
            assert of_both[0] == of_both[1], read.__qualname__


class RawTwins(Twins):
    def write(self, t: Transaction) -> None:
        row, column = f"r{self.key():02}", self.random.choice(COLUMNS)
        value = self.random.randbytes(3)
        for table in ("cold", "warm"):
            if value[0] < 80:
                t.delete(table, row, column)
            else:
                t.set(table, row, column, value)

    def reads(self) -> list[Callable[[Snapshot, int], Any]]:
        tables = ("cold", "warm")
        row, column = f"r{self.key():02}", self.random.choice(COLUMNS)
        low, high = sorted((f"r{self.key():02}", f"r{self.key():02}"))
        some = [(f"r{self.key():02}", self.random.choice(COLUMNS)) for _ in range(9)]
        columns = self.random.choice([None, ["a"], ["b", "c"]])
        limit, reverse = self.random.choice([None, 1, 3, 20]), self.random.random() < 0.5
        bounds: dict[str, Any] = self.random.choice([{}, {"start": low}, {"start": low, "stop": high}])

        def get(s: Snapshot, n: int) -> Any:
            return s.get(tables[n], row, column)

        def get_row(s: Snapshot, n: int) -> Any:
            return s.get_row(tables[n], row, columns)

        def get_many(s: Snapshot, n: int) -> Any:
            return s.get_many((tables[n], row, column) for row, column in some)

        def scan(s: Snapshot, n: int) -> Any:
            return list(s.scan(tables[n], columns=columns, limit=limit, reverse=reverse, **bounds))

        return [get, get_row, get_many, scan]


class TypedTwins(Twins):
    def __init__(self, connect: Callable[[], Database], folder: Path, seed: int) -> None:
        self.tables = ["cold", *(rule.table for rule in definition_of(Cold).indexes)]
        super().__init__(connect, folder, seed)

    def write(self, t: Transaction) -> None:
        values: dict[str, Any] = {
            "a": self.random.choice([None, self.random.randrange(9)]),
            "b": self.random.choice([None, "", "x" * self.random.randrange(4)]),
            "c": self.random.choice([0.5, -1.5, 7.0]),
        }
        some = {name: values[name] for name in self.random.sample(COLUMNS, self.random.randrange(1, 4))}
        key, kind = self.key(), self.random.randrange(4)
        if self.random.random() < 0.3:
            some["d"] = values["d"] = self.random.choice([None, 100 + key])
        for model in (Cold, Warm):
            if kind == 0:
                t.remove(model, id=key)
            elif kind == 1:
                t.upsert(model(id=key, **values))
            elif kind == 2:
                t.upsert(model(id=key, **some))
            elif t.find(model, id=key) is not None:
                t.update(model, id=key, **some)

    def reads(self) -> list[Callable[[Snapshot, int], Any]]:
        models = (Cold, Warm)
        names = ("cold", "warm")
        key = self.key()
        columns = self.random.choice([None, ["a"], ["b", "c"]])
        limit, reverse = self.random.choice([None, 1, 3, 20]), self.random.random() < 0.5

        def find(s: Snapshot, n: int) -> Any:
            found = s.find(models[n], id=key)
            return None if found is None else found.model_dump()

        def scan(s: Snapshot, n: int) -> Any:
            return list(s.scan(names[n], columns=columns, limit=limit, reverse=reverse))

        low, high = sorted((self.key(), self.key()))
        number = self.random.randrange(9)
        wheres: list[Callable[[Any], Any]] = [
            lambda model: None,
            lambda model: model.a > 4,
            lambda model: model.a == number,
            lambda model: model.d == 100 + key,
            lambda model: (model.id >= low) & (model.id < high),
            lambda model: (model.b.is_null() | (model.b == "xx")) & (model.c > 0),
            lambda model: ~(model.a == number) & model.id.in_([low, high, key]),
        ]
        where = self.random.choice(wheres)

        def select(s: Snapshot, n: int) -> Any:
            found = s.select(names[n], where(models[n]), columns=columns, limit=limit, reverse=reverse)
            return list(found)

        def to_arrow(s: Snapshot, n: int) -> Any:
            found = s.to_arrow(names[n], where(models[n]), columns=["id", "a", "b", "c", "d"])
            return found.sort_by("id")

        def merged(s: Snapshot, n: int) -> Any:
            """The rows of the base with their deltas set, as Spark reads them; those of a select."""
            wanted = columns or [*COLUMNS, "d"]
            s = self.db.snapshot(
                s.start_timestamp
            )  # a transaction has writes, which a task of Spark never has
            if n:
                return {row.pop("id"): row for row in s.select("warm", columns=["id", *wanted])}
            definition = definition_of(Cold)
            some = [definition.column(one) for one in wanted]
            found = {}
            for base, deltas in s.deltas(self.db.catalog.table("cold"), some):
                below = {row.key: {MARKER: b"", **row.cells} for row in base.rows(b"", None)}
                for key in {**below, **deltas}:
                    cells = {**below.get(key, {}), **deltas.get(key, {})}
                    if cells.get(MARKER) is not None:
                        found[Cold.key_of(key)["id"]] = {
                            one.name: None if value is None else column_type(one.type).decode(value)
                            for one in some
                            for value in [cells.get(one.stored.encode(), one.missing)]
                        }
            return found

        return [find, scan, select, select, to_arrow, merged]


@contextmanager
def small_pages(monkeypatch: pytest.MonkeyPatch, rows: int) -> Iterator[None]:
    with monkeypatch.context() as changed:
        changed.setattr(scans, "PAGE_ROWS", rows)
        changed.setattr(late_reads, "PAGE_ROWS", rows)
        changed.setattr(base_select, "STORE_BYTES", 40 * rows)
        changed.setattr(tablet, "_GROUPS_AT_ONCE", 2)
        changed.setattr(row_set, "GROUP_ROWS", 5)
        changed.setattr(lookup, "FEW", 0)  # so that selects use indexes
        yield


@pytest.fixture(params=["raw", "typed"])
def twins(
    request: pytest.FixtureRequest, connect: Callable[[], Database], tmp_path: Path
) -> Callable[[int], Twins]:
    db = connect()
    if request.param == "raw":
        for table in ("cold", "warm"):
            db.create_table(table, tablets=TABLETS)
        return lambda seed: RawTwins(connect, tmp_path, seed)
    for model in (Cold, Warm):
        db.create_table(model)
    return lambda seed: TypedTwins(connect, tmp_path, seed)


@pytest.mark.parametrize("seed", range(8))
def test_a_table_with_a_base_reads_as_its_twin_without_one(
    twins: Callable[[int], Twins], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    both = twins(seed)
    monkeypatch.setattr(compaction, "FEWEST_RUNS", 2)
    with small_pages(monkeypatch, both.random.choice([1, 3, 512])):
        for _ in range(4):
            both.run(15)
            with both.db.snapshot() as pinned:
                both.run(8)
                both.compare(pinned, 20)
            both.change_base()
            both.run(3)
            both.compare(both.db.snapshot(), 20)
            with both.db.transaction() as t:
                both.write(t)
                both.compare(t, 20)


def test_tasks_of_an_executor_read_as_well(twins: Callable[[int], Twins]) -> None:
    both = twins(99)
    both.run(40)
    for table in both.based:
        both.db.flush(table, everything=True)
    both.run(4)

    def compare(_: int) -> None:
        both.compare(both.db.snapshot(), 3)

    with both.db.concurrency(16) as executor:
        assert len(list(executor.map(compare, range(100)))) == 100
