"""Change a real CSV file in a table with a base, under load, and compare it with pandas and DuckDB.

    .venv/bin/python benchmarks/real_table.py FILE.csv     # with a header; uses DuckDB if that is installed

The rows are loaded and moved into the base. Then writers change 5 % of them (updates, empty cells, removed
and new rows), while a maintainer flushes and compacts, a collector collects, and readers pin snapshots. Each
change moves a number from one row to another, so the sum of these numbers is 0 in each snapshot. At the end
the table must equal a pandas frame with the same changes, cell by cell. It is read as Arrow, by select, by
key, from the published Delta Lake table, and after the base was turned off. The exit code is 1 if a cell
differs.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from pydantic import create_model

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from percolator_core import Database, Hash, PercolatorError, PrimaryKey, SnapshotTooOld, Table, connect  # noqa: E402

WRITERS: Final = 4
BATCH: Final = 500
KEY: Final = "row_number"
MOVED: Final = "moved"

Row = dict[str, Any]
Check = Callable[[str, pa.Table], None]


def main() -> int:
    """Load, change, compare, and print a line for each step."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="a CSV file with a header")
    parser.add_argument("--rows", type=int, help="use only so many rows")
    parser.add_argument("--changed", type=float, default=0.05, help="the part of the rows that changes")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    source = pyarrow.csv.read_csv(
        given.file, convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True)
    )
    source = source.slice(0, given.rows)
    source = source.append_column(KEY, pa.array(range(len(source)), pa.int64()))
    source = source.append_column(MOVED, pa.array([0] * len(source), pa.int64()))
    with tempfile.TemporaryDirectory(prefix="percolator-real-") as folder:
        trial = Trial(source, given.changed, given.seed, Path(folder))
        try:
            trial.run()
        except PercolatorError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return int(trial.differences > 0)


class Trial:
    """One run over one file."""

    def __init__(self, source: pa.Table, changed: float, seed: int, folder: Path) -> None:
        self._source = source
        self._count = int(len(source) * changed)
        self._seed = seed
        self._folder = folder
        self._url = f"embedded:{folder}/store"
        self._rows: list[Row | None] = source.to_pylist()
        fields: dict[str, Any] = {KEY: (PrimaryKey[int], ...)}
        for column in source.schema:
            if column.name != KEY:
                fields[column.name] = (_python_type(column.type) | None, None)
        self._model = create_model(
            "Rows",
            __base__=Table,
            __cls_kwargs__={"name": "rows", "partition": [Hash(KEY, buckets=4)]},
            **fields,
        )
        self._names = [field.name for field in source.schema]
        self.differences = 0

    def run(self) -> None:
        """Load, change, and compare."""
        with connect(self._url) as db:
            self._load(db)
            self._change(db)
            with db.snapshot() as snapshot:
                self._compare("to_arrow", snapshot.to_arrow(self._model))
                self._compare("select", pa.Table.from_pylist(_dumped(snapshot.select(self._model))))
                self._find(snapshot)
                self._ask(snapshot.to_arrow(self._model))
            db.flush(self._model, everything=True)
            self._say(f"all cold: {db.base(self._model)}")
            self._compare("to_arrow, all cold", db.snapshot().to_arrow(self._model))
            self._compare("published", self._published(db))
            db.set_base(self._model, None)
            self._compare("without a base", db.snapshot().to_arrow(self._model))

    def _say(self, text: str) -> None:
        print(text, flush=True)

    def _load(self, db: Database) -> None:
        begun = time.monotonic()
        db.create_table(self._model)
        db.set_base(self._model, f"file://{self._folder}/base", cold_after=timedelta(0))

        def put(t: Any, first: int) -> None:
            for row in self._rows[first : first + BATCH]:
                assert row is not None
                t.upsert(self._model(**row))

        for first in range(0, len(self._rows), BATCH):
            db.run(partial(put, first=first))
        seconds = time.monotonic() - begun
        self._say(f"loaded {len(self._rows):,} rows of {len(self._names)} columns: {seconds:.0f} s")
        done = db.flush(self._model, everything=True)
        self._say(f"flushed {done.rows:,} rows: {done.seconds:.0f} s")
        self._compare("loaded", db.snapshot().to_arrow(self._model))

    def _change(self, db: Database) -> None:
        begun = time.monotonic()
        failed: list[BaseException] = []
        checks: list[int] = []
        stop = threading.Event()
        loops: list[Callable[[Database], None]] = [
            self._maintain,
            self._collect,
            partial(self._watch, checks),
            partial(self._watch, checks),
        ]
        background = [
            threading.Thread(target=_guarded, args=(failed, partial(_loop, self._url, stop, work)))
            for work in loops
        ]
        changes = [self._changes(number) for number in range(WRITERS)]
        writers = [
            threading.Thread(target=_guarded, args=(failed, partial(self._write, mine))) for mine in changes
        ]
        for thread in (*background, *writers):
            thread.start()
        for thread in writers:
            thread.join()
        stop.set()
        for thread in background:
            thread.join()
        if failed:
            raise failed[0]
        count = sum(len(mine) for mine in changes)
        self._say(
            f"changed {count:,} rows beside a maintainer, a collector and 2 readers: "
            f"{time.monotonic() - begun:.0f} s, {len(checks)} pinned snapshots summed"
        )
        self._say(f"{db.base(self._model)}")

    def _changes(self, number: int) -> list[tuple[int, Row | None]]:
        """Choose the changes of one writer, which owns every `WRITERS`-th row; apply them to the mirror."""
        chance = random.Random(self._seed * 1000 + number)
        most = len(self._source) // WRITERS
        changes: list[tuple[int, Row | None]] = []
        for _ in range(self._count // WRITERS // 2):
            pair = [WRITERS * one + number for one in chance.sample(range(most), 2)]
            if None in (self._rows[pair[0]], self._rows[pair[1]]):
                continue
            amount = chance.randrange(1, 1000)
            for at, sign in zip(pair, (1, -1), strict=True):
                row = self._rows[at]
                assert row is not None
                other = chance.randrange(len(self._source))
                values = {name: self._source[name][other].as_py() for name in chance.sample(self._names, 3)}
                values = {name: value for name, value in values.items() if name not in (KEY, MOVED)}
                values[MOVED] = row[MOVED] + sign * amount
                self._rows[at] = {**row, **values}
                changes.append((at, {KEY: at, **values}))
            if chance.random() < 0.2:  # a row whose moved number is 0 is removed; a removed row comes back
                at = WRITERS * chance.randrange(most) + number
                row = self._rows[at]
                if row is None:
                    row = {name: self._source[name][at].as_py() for name in self._names}
                    self._rows[at] = row
                    changes += [(at, row)] * 2
                elif row[MOVED] == 0:
                    self._rows[at] = None
                    changes += [(at, None)] * 2
        return changes

    def _write(self, changes: list[tuple[int, Row | None]]) -> None:
        with connect(self._url) as db:

            def write(t: Any, pair: list[tuple[int, Row | None]]) -> None:
                for at, values in pair:
                    if values is None:
                        t.remove(self._model, **{KEY: at})
                    else:
                        t.upsert(self._model(**values))

            for first in range(0, len(changes), 2):
                db.run(partial(write, pair=changes[first : first + 2]), attempts=100)

    def _maintain(self, db: Database) -> None:
        db.flush(self._model, everything=True)
        db.compact(self._model)

    def _collect(self, db: Database) -> None:
        db.collect_garbage(timedelta(seconds=1))
        time.sleep(0.5)

    def _watch(self, checks: list[int], db: Database) -> None:
        try:
            with db.snapshot() as snapshot:
                time.sleep(random.uniform(0, 2))
                total = pc.sum(snapshot.to_arrow(self._model, columns=[MOVED])[MOVED]).as_py()
        except SnapshotTooOld:  # a flush of everything passed the snapshot before it was pinned
            return
        if total != 0:
            raise PercolatorError(f"the sum of a snapshot is {total}, not 0")
        checks.append(total)

    def _expected(self) -> pd.DataFrame:
        return _frame(
            pa.Table.from_pylist([row for row in self._rows if row is not None], self._source.schema)
        )

    def _compare(self, what: str, found: pa.Table) -> None:
        """Count the cells that differ from the pandas frame."""
        expected = self._expected()
        frame = _frame(found.select(self._names).cast(self._source.schema))
        if list(frame[KEY]) != list(expected[KEY]):
            missing = len(set(expected[KEY]) ^ set(frame[KEY]))
            self.differences += missing
            self._say(f"{what}: {missing} rows are missing or too many")
            return
        wrong = 0
        for name in self._names:
            same = (frame[name] == expected[name]) | (frame[name].isna() & expected[name].isna())
            wrong += int((~same.fillna(False).astype(bool)).sum())
        self.differences += wrong
        self._say(f"{what}: {len(frame):,} rows, {len(frame) * len(self._names):,} cells, {wrong} differ")

    def _find(self, snapshot: Any) -> None:
        chance, wrong = random.Random(self._seed), 0
        keys = chance.sample(range(len(self._rows)), min(3000, len(self._rows)))
        for key in keys:
            found = snapshot.find(self._model, **{KEY: key})
            wrong += (None if found is None else found.model_dump()) != self._rows[key]
        self.differences += wrong
        self._say(f"find: {len(keys)} rows by key, {wrong} differ")

    def _ask(self, rows: pa.Table) -> None:
        """Compare grouped counts and sums of each column in DuckDB, over the table and over the frame."""
        try:
            import duckdb  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            self._say("DuckDB is not installed: skipped")
            return
        asked = duckdb.connect()
        asked.register("rows", rows)
        asked.register("mirror", pa.Table.from_pandas(self._expected()))
        wrong = 0
        for name in self._names:
            query = 'SELECT "{0}", count(*), sum(moved) FROM {1} GROUP BY ALL ORDER BY ALL'
            here, there = (asked.sql(query.format(name, one)).fetchall() for one in ("rows", "mirror"))
            wrong += here != there
        self.differences += wrong
        self._say(f"DuckDB: {len(self._names)} grouped queries, {wrong} differ")

    def _published(self, db: Database) -> pa.Table:
        from deltalake import DeltaTable

        done = db.publish(self._model, f"{self._folder}/open")
        self._say(f"published {done.rows:,} rows: {done.seconds:.0f} s")
        return DeltaTable(f"{self._folder}/open").to_pyarrow_table()


def _python_type(column: pa.DataType) -> type:
    if pa.types.is_boolean(column):
        return bool
    if pa.types.is_integer(column):
        return int
    if pa.types.is_floating(column):
        return float
    return datetime if pa.types.is_timestamp(column) else str


def _dumped(rows: Iterator[Any]) -> list[Row]:
    return [row.model_dump() for row in rows]


def _frame(rows: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = rows.sort_by(KEY).to_pandas(types_mapper=pd.ArrowDtype)
    return frame


def _loop(url: str, stop: threading.Event, work: Callable[[Database], None]) -> None:
    with connect(url) as db:
        while not stop.is_set():
            work(db)


def _guarded(failed: list[BaseException], work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - raised by the main thread
        failed.append(error)


if __name__ == "__main__":
    sys.exit(main())
