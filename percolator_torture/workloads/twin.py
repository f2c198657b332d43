"""The same writes to a table with a columnar base and to its twin without one: all reads find both equal.

The recorder has all reads and writes of both raw tables, so the checker also examines the reads of the table
with a base. Typed tables, of which an index has a base, are compared only with each other.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar, Final

from percolator_core import (
    Cell,
    Chain,
    Database,
    Hash,
    Indexed,
    ObserverTransaction,
    PrimaryKey,
    Table,
    Worker,
)
from percolator_core.admin.quarantine import Quarantine
from percolator_core.base.bases import Bases
from percolator_core.maintenance.bases import BaseMaintainer
from percolator_core.maintenance.garbage_collection import GarbageCollector
from percolator_core.observers.chain import digest_of
from percolator_core.observers.graph import build_graph, observed_columns
from percolator_core.observers.observer import Observer, Retry
from percolator_core.tables.binding import table_name
from percolator_torture.faults.damage import unnamed_files
from percolator_torture.histories.final_state import FinalState
from percolator_torture.histories.history import History
from percolator_torture.histories.recorder import RecordedTransaction, Recorder
from percolator_torture.histories.settling import read_state
from percolator_torture.histories.survey import read_final
from percolator_torture.workloads.workload import TABLE, State, Workload

WARM: Final = TABLE
COLD: Final = f"{TABLE}-cold"
SEEN: Final = f"{TABLE}-seen"
"""The observer copies the column ``a`` of each twin to this table, into a column with the twin's name."""

TABLETS: Final = 4
WARM_ITEMS: Final = f"{TABLE}-items"
COLD_ITEMS: Final = f"{TABLE}-cold-items"

ROWS: Final = 400
ITEMS: Final = 300
NUMBERS: Final = 12
"""Values of the indexed column."""
COLUMNS: Final = ("a", "b", "c")
_HOT: Final = 40
"""The number of hot rows, which are written most often. With time other rows become hot, and these cold."""
_LATE, _WHOLE, _TYPED, _BOUNDED = 0.03, 0.05, 0.12, 0.4
"""Cumulative shares of the kinds of steps; the rest are writes."""
_DRAIN_LIMIT: Final = 120.0


class WarmItem(Table, name=WARM_ITEMS, partition=[Hash("id", buckets=2)]):
    """A row of the typed table without a base."""

    id: PrimaryKey[int]
    a: Indexed[int | None] = None
    b: str | None = None


class ColdItem(Table, name=COLD_ITEMS, partition=[Hash("id", buckets=2)]):
    """A row of the typed table with a base."""

    id: PrimaryKey[int]
    a: Indexed[int | None] = None
    b: str | None = None


Read = Callable[[Any, Any], Any]
"""A read of one of the twins; the arguments are a snapshot or transaction, and the twin's name or model."""


def row_of(number: int) -> bytes:
    """Return a row key."""
    return b"row%04d" % number


def note(t: ObserverTransaction, cell: Cell) -> None:
    """The observer of both twins: copy the observed cell."""
    t.set(SEEN, cell.row, cell.table, t.get(cell.table, cell.row, "a") or b"")


def make_chain() -> Chain:
    """Return the chain of the observer."""
    observers = {
        "note": Observer(
            "note",
            Path("note.yaml"),
            note,
            f"{__name__}:note",
            ((COLD, "a"), (WARM, "a")),
            writes=((SEEN, COLD), (SEEN, WARM)),
            retry=Retry(attempts=100, backoff=0.02, max_backoff=0.5),
        )
    }
    graph = build_graph("twin", (), observers)
    observed = observed_columns(observers.values())
    return Chain("twin", Path(), (), observers, graph, observed, digest_of(observers.values()))


class Twin(Workload):
    """Writes both tables in one transaction, and reads both at one timestamp, which may be some time ago."""

    name: ClassVar[str] = "twin"
    keepers: ClassVar[Sequence[str]] = ("flush", "compact", "collect", "work")

    def create(self, db: Database, folder: Path) -> None:
        """Create the tables; the cold raw table, the cold typed table and its index get a base."""
        for table in (WARM, COLD, SEEN):
            db.create_table(table, tablets=TABLETS)
        for model in (WarmItem, ColdItem):
            db.create_table(model)
        indexes = db.catalog.table(COLD_ITEMS).definition.indexes
        for cold in (COLD, COLD_ITEMS, *(rule.table for rule in indexes)):
            db.set_base(cold, str(folder / "base"), cold_after=timedelta(0))
        make_chain().create_tables(db)

    def prepare(self, recorder: Recorder) -> None:
        """Write a part of the rows."""

        def fill(t: RecordedTransaction) -> None:
            for number in range(0, ROWS, 2):
                for table in (WARM, COLD):
                    t.set(table, row_of(number), "a", b"first")

        recorder.run(fill)

    def step(self, recorder: Recorder, dice: random.Random, number: int) -> Iterator[str]:
        """Usually write both twins; sometimes compare them."""
        drawn = dice.random()
        if drawn < _LATE:
            yield from self._read_late(recorder.db, dice, number)
        elif drawn < _WHOLE:
            yield from compare(recorder.db.snapshot(), whole_read(dice))
        elif drawn < _TYPED:
            yield from compare(recorder.db.snapshot(), typed_read(dice), ColdItem, WarmItem)
        elif drawn < _BOUNDED:
            read = bounded_read(dice, number)
            yield from recorder.run(lambda t: list(compare(t, read)))
        else:
            yield from self._write(recorder, dice, number)

    @staticmethod
    def _write(recorder: Recorder, dice: random.Random, number: int) -> Iterator[str]:
        """Write up to four cells, and sometimes a typed row, in both tables; half of the steps read first."""
        rows = [_some_row(dice, number) for _ in range(dice.randint(1, 4))]
        cells = list(dict.fromkeys((row_of(row), dice.choice(COLUMNS)) for row in rows))
        deleted = [dice.random() < 0.25 for _ in cells]
        read, key, kind = bounded_read(dice, number), dice.randrange(ITEMS), dice.randrange(8)
        item: dict[str, Any] = {
            "a": dice.choice([None, dice.randrange(NUMBERS)]),
            "b": dice.choice([None, "", f"b{number}"]),
        }
        reads_first = dice.random() < 0.5

        def write(t: RecordedTransaction) -> list[str]:
            wrong = list(compare(t, read)) if reads_first else []
            for table in (COLD, WARM):
                for (row, column), gone in zip(cells, deleted, strict=True):
                    if gone:
                        t.delete(table, row, column)
                    else:
                        t.set(table, row, column, b"%d" % number)
            for model in (ColdItem, WarmItem) if kind < 3 else ():
                if kind == 0:
                    t.plain.remove(model, id=key)
                else:
                    t.plain.upsert(model(id=key, **(item if kind == 1 else {"b": item["b"]})))
            return wrong

        yield from recorder.run(write)

    @staticmethod
    def _read_late(db: Database, dice: random.Random, number: int) -> Iterator[str]:
        """Read in a pinned snapshot, and again after a while: nothing may have changed."""
        reads = [*(bounded_read(dice, number) for _ in range(6)), whole_read(dice)]
        with db.snapshot() as pinned:
            early = [read(pinned, WARM) for read in reads]
            for _ in range(2):
                db.store.sleep(dice.uniform(0, 0.3))
                for read, before in zip(reads, early, strict=True):
                    yield from compare(pinned, read)
                    if read(pinned, COLD) != before:
                        yield f"a pinned snapshot of {pinned.start_timestamp} reads otherwise than before"
                yield from compare(pinned, typed_read(dice), ColdItem, WarmItem)

    def conclude(self, db: Database) -> Iterator[str]:
        """Run the observer until it is idle, then compare both twins cell by cell, also after maintenance."""
        chain = make_chain()
        try:
            Worker(db, chain).run_until_idle(timeout=_DRAIN_LIMIT)
        except TimeoutError as error:
            yield f"the worker is not idle in the end: {error}"
        for failed in Quarantine(db, chain).cells():
            yield f"a cell is in quarantine in the end: {failed}"
        yield from differences(db, "in the end")
        yield from _wait_for_pins(db)
        maintainer = BaseMaintainer(db.client, db.schema_changes, grace=0.0)
        tables = maintainer.tables()
        for table in tables:
            maintainer.flush(table, everything=True)
        yield from differences(db, "after a flush of everything")
        for table in tables:
            maintainer.compact(table)
        yield from differences(db, "after a compaction")
        yield from unnamed_files(db, tables)

    def final(self, db: Database, lock_ttl: float) -> FinalState:
        """Return the versions of the warm table as those of both twins, and the leftovers of all tables."""
        final = read_state(db, WARM, lock_ttl)
        others = [table.name for table in db.tables() if table.name != WARM]
        final.leftovers += read_final(db, others, collected=True).leftovers
        final.cells |= {cell._replace(table=COLD): versions for cell, versions in final.cells.items()}
        return final

    def verify(self, state: State, history: History, final: FinalState) -> Iterator[str]:  # noqa: ARG002
        """Yield nothing: the steps and `conclude` have compared the twins."""
        yield from ()


def _wait_for_pins(db: Database) -> Iterator[str]:
    """Wait until no snapshot is pinned: the pin of a killed client keeps files until its token expires."""
    until = time.monotonic() + _DRAIN_LIMIT
    while GarbageCollector(db.client).pins():
        if time.monotonic() > until:
            yield f"a snapshot is still pinned {_DRAIN_LIMIT:g} s after the end"
            return
        db.store.sleep(0.1)


def differences(db: Database, when: str) -> Iterator[str]:
    """Compare all that the twins have, without a cache, and what the observer has seen of them."""
    db.client.bases = Bases()
    snapshot = db.snapshot()
    found = [*compare(snapshot, scan_all), *compare(snapshot, all_items, ColdItem, WarmItem)]
    for number in range(NUMBERS):
        found += compare(snapshot, partial(by_number, number), ColdItem, WarmItem)
    for row, cells in snapshot.scan(SEEN):
        if cells.get(COLD) != cells.get(WARM):
            found.append(f"the observer saw {cells} in the row {row.decode()} of the twins")
    yield from (f"{when}: {sentence}" for sentence in found)


def scan_all(t: Any, table: str) -> Any:
    """Read all rows of a raw table."""
    return list(t.scan(table))


def all_items(t: Any, model: Any) -> Any:
    """Read all rows of a typed table."""
    return list(t.select(table_name(model)))


def by_number(number: int, t: Any, model: Any) -> Any:
    """Read the keys of the rows whose indexed column has the number."""
    return sorted(one["id"] for one in t.select(table_name(model), model.a == number, columns=["id"]))


def compare(reader: Any, read: Read, cold: Any = COLD, warm: Any = WARM) -> Iterator[str]:
    """Read both twins, and yield a sentence if they differ."""
    of_cold, of_warm = read(reader, cold), read(reader, warm)
    if of_cold != of_warm:
        yield (
            f"twins differ at {reader.start_timestamp} in {_name_of(read)}: the cold table has "
            f"{_first_difference(of_cold, of_warm)}"
        )


def _name_of(read: Read) -> str:
    return getattr(read, "__name__", None) or _name_of(read.func)  # type: ignore[attr-defined]


def _first_difference(cold: Any, warm: Any) -> str:
    if not isinstance(cold, list):
        return f"{cold!r} and its twin {warm!r}"
    differing = [pair for pair in zip_longest(cold, warm) if pair[0] != pair[1]]
    (of_cold, of_warm), more = differing[0], len(differing) - 1
    return f"{of_cold!r} and its twin {of_warm!r}, and {more} differences more"


def _some_row(dice: random.Random, number: int) -> int:
    """Return the number of a row, most often a hot one."""
    if dice.random() < 0.3:
        return dice.randrange(ROWS)
    return (number // 4 + dice.randrange(_HOT)) % ROWS


def bounded_read(dice: random.Random, number: int) -> Read:
    """Return a read of some cells, of a row, or of a range with a limit."""
    rows = [row_of(_some_row(dice, number)) for _ in range(dice.randint(1, 12))]
    columns = dice.choice([None, ("a",), ("b", "c")])
    cells = [(row, dice.choice(COLUMNS)) for row in rows]
    reverse, limit = dice.random() < 0.5, dice.choice([1, 5, 20])
    low = dice.choice([None, rows[0]])
    bounds = {"stop": low} if reverse else {"start": low}

    def get_many(t: Any, table: str) -> Any:
        return t.get_many([(table, row, column) for row, column in cells])

    def get(t: Any, table: str) -> Any:
        return t.get(table, *cells[0])

    def get_row(t: Any, table: str) -> Any:
        return t.get_row(table, rows[0], columns)

    def scan(t: Any, table: str) -> Any:
        return list(t.scan(table, columns=columns, limit=limit, reverse=reverse, **bounds))

    return dice.choice([get_many, get_many, get, get_row, scan, scan])


def whole_read(dice: random.Random) -> Read:
    """Return a scan of the whole table, forward or backward."""
    reverse, columns = dice.random() < 0.5, dice.choice([None, None, ("a", "b"), ("c",)])

    def scan_all(t: Any, table: str) -> Any:
        return list(t.scan(table, columns=columns, reverse=reverse))

    return scan_all


def typed_read(dice: random.Random) -> Read:
    """Return a read of typed rows: by key, by index, by a predicate, or in columns."""
    key, number, low = dice.randrange(ITEMS), dice.randrange(NUMBERS), dice.randrange(ITEMS)

    def find(t: Any, model: Any) -> Any:
        found = t.find(model, id=key)
        return None if found is None else found.model_dump()

    def select(t: Any, model: Any) -> Any:
        return list(t.select(table_name(model), model.b.is_null() & (model.id >= low), limit=20))

    def to_arrow(t: Any, model: Any) -> Any:
        found = t.to_arrow(model, model.a > number, columns=["id", "a", "b"])
        return found.sort_by("id").to_pylist()

    reads: list[Read] = [find, find, partial(by_number, number), select, to_arrow]
    return dice.choice(reads)
