"""Measure the time of each page with a million cells: 100,000 are dirty, and 10,000 in quarantine.

    .venv/bin/python benchmarks/airflow_pages.py            # fills a private Redis, about two minutes
    .venv/bin/python benchmarks/airflow_pages.py --cells 20000

The script requests each page several times, as a browser does, with Airflow's login and database, but without
the network. It prints the median and the maximum. The exit code is 1 if a median is above `MOST`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

MOST: Final = 0.3
"""A page may take at most this many seconds in the median."""

OBSERVERS: Final = 50
TABLETS: Final = 16
LARGE: Final = 10_800_000
"""Bytes of the largest value."""


def main() -> int:
    """Fill, measure, and print a line for each page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", type=int, default=1_000_000, help="cells of the store")
    parser.add_argument("--runs", type=int, default=5, help="requests for each page")
    parser.add_argument("--page", default="", help="only pages with this in their path")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="percolator-bench-") as folder, ExitStack() as stack:
        client = stack.enter_context(_airflow(Path(folder), given.cells))
        found = {path: _times(client, path, given.runs) for path in _paths() if given.page in path}
    if given.json:
        print(json.dumps({path: [round(one, 4) for one in times] for path, times in found.items()}, indent=1))
    else:
        for path, times in found.items():
            print(f"{1e3 * statistics.median(times):7.0f} ms  (at most {1e3 * max(times):5.0f})  /{path}")
    return int(any(statistics.median(times) > MOST for times in found.values()))


def _paths() -> list[str]:
    rows = "web/tables/docs/rows"
    return [
        "",
        "web/",
        "web/plots",
        "web/plots?span=all",
        "web/observers/obs00",
        "web/trace",
        "web/?open=docs&reads=1",
        "web/quarantine",
        "web/quarantine?observer=obs00",
        "web/quarantine?row=row00000042",
        "web/locks",
        "web/tables",
        "web/tables/docs",
        rows,
        f"{rows}?limit=200",
        f"{rows}?prefix=row0000004",
        f"{rows}?at=1m",
        f"{rows}?where=lang%3D%27never%27",
        f"{rows}?where=" + "%20and%20".join(["title!=%27x%27", "lang!=%27x%27"] * 8 + ["lang=%27never%27"]),
        "web/tables/orders/rows",
        "web/tables/orders/rows?where=size%20%3D%20-1",
        "web/tables/large/rows",
        "web/tables/large/row?key=large07",
        "web/tables/large/row?key=wide",
        "web/tables/large/row?key=often",
        "web/tables/docs/row?key=row00000042",
        "web/tables/orders/row?key=42",
        "web/trace?table=docs&row=row00000042",
        "web/trace?table=large&row=large07&change=all",
    ]


def _times(client: Any, path: str, runs: int) -> list[float]:
    found = []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        answer = client.get(f"/{path}", headers={"Accept": "text/html"})
        found.append(time.perf_counter() - begin)
        assert answer.status_code == 200, (path, answer.status_code, answer.text[-2000:])
    # The first request compiles templates, computes the layout of the graph and opens connections.
    return found[1:]


@contextmanager
def _airflow(folder: Path, cells: int) -> Iterator[Any]:
    """Fill a store, and yield a client that is logged in to Airflow's pages of its chain."""
    os.environ.update(
        {
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__FERNET_KEY": "",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder / 'airflow.db'}",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
            "AIRFLOW__API_AUTH__JWT_SECRET": "no secret " * 8,
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        }
    )
    from airflow.utils.db import initdb

    initdb()
    from percolator_core import Chain, connect
    from tests.airflow.pages import connection_to, give_dag, site, write_chain

    observers = {
        f"obs{number:02}": "observe: docs.text" if number == 0 else f"observe: docs.c{number:02}"
        for number in range(OBSERVERS - 1)
    }
    observers["sizes"] = "observe: large.text"
    tables = f"{{docs: {{tablets: {TABLETS}}}, large: {{tablets: 4}}}}"
    chain = write_chain(folder / "web", "web", tables, observers)
    url = f"embedded:{folder / 'store'}"
    with connection_to(url), connect(url, "web", lock_ttl=3600) as db, site() as pages:
        give_dag(chain, "web")
        declared = Chain.load(chain, import_functions=False)
        declared.create_tables(db)
        begin = time.monotonic()
        _fill(db, declared, cells)
        print(f"filled in {time.monotonic() - begin:.0f} s", file=sys.stderr)
        with pages.as_("ADMIN") as client:
            yield client


def _fill(db: Any, chain: Any, cells: int) -> None:
    from percolator_core import Hash, PrimaryKey, Table

    class Order(Table, name="orders", partition=[Hash("number", buckets=TABLETS)]):
        """A typed table."""

        number: PrimaryKey[int]
        size: int = 0
        note: str | None = None

    db.create_table(Order)
    rows = cells // 5
    # Half of the documents have a text, and so are dirty.
    _each(db, rows, lambda t, number: _document(t, number, has_text=number % 2 == 0))
    _each(db, cells // 10, lambda t, number: t.insert(Order(number=number, size=number % 90, note="x" * 20)))
    _each(db, 20, lambda t, number: t.set("large", b"large%02d" % number, "text", b"v" * LARGE), at_once=1)
    _each(db, 20, lambda t, _: t.set("large", "often", "text", b"v" * 1_000_000), at_once=1)
    _each(db, 100_000, lambda t, number: t.set("large", "wide", f"c{number:06}", b"v"), at_once=5_000)
    _quarantine(db, cells // 100)
    _history(db, chain)
    _locks(db)


def _document(t: Any, number: int, *, has_text: bool) -> None:
    row = b"row%08d" % number
    t.set("docs", row, "title", b"The title of a document, number %d" % number)
    t.set("docs", row, "lang", b"en")
    t.set("docs", row, "length", b"%d" % number)
    if has_text:
        t.set("docs", row, "text", b"Some words. " * 10)


def _each(db: Any, count: int, write: Callable[[Any, int], None], at_once: int = 2_000) -> None:
    for start in range(0, count, at_once):
        with db.transaction() as t:
            for number in range(start, min(count, start + at_once)):
                write(t, number)


def _quarantine(db: Any, count: int) -> None:
    """Put cells into quarantine directly, without runs that fail."""
    from percolator_core.layout.keys import encode_mark, failed_key

    handle = db.catalog.table("docs")
    record: dict[str, Any] = {"error": "ValueError: no such word", "attempts": 8}
    line = '  File "/project/steps.py", line 12, in split\n    raise ValueError("no such word")\n'
    for number in range(count):
        row = b"row%08d" % number
        record |= {"traceback": line * 60, "time": 1_700_000_000_000_000 + number}
        key = failed_key(handle.tag(row), "obs00")
        db.store.one((b"HSET", key, encode_mark(b"text", row), json.dumps(record).encode()))


def _history(db: Any, chain: Any) -> None:
    """Record as many samples as a monitor that runs once a minute records in two days."""
    from percolator_core.admin.samples import record
    from percolator_core.admin.status import status

    now = status(db, chain)
    for _ in range(2_880):
        record(db, now, keep=2 * 86_400)


def _locks(db: Any) -> None:
    """Leave locks of a long commit: a few hundred, one of them on a large value."""
    from tests.servers.plain import commit_of

    transaction = db.begin()
    for number in range(300):
        transaction.set("docs", b"row%08d" % (3 * number + 1), "title", b"new")
    transaction.set("large", "large03", "text", b"w" * LARGE)
    commit_of(transaction).prewrite()


if __name__ == "__main__":
    sys.exit(main())
