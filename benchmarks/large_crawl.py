"""Index a generated crawl: once in a store with far less memory than the crawl, once all in memory.

    .venv/bin/python benchmarks/large_crawl.py                        # 2 GB of documents, maxmemory 256 MB
    .venv/bin/python benchmarks/large_crawl.py --pages 2000           # a tenth of it

Each table of the web index has a base. A maintainer process collects garbage and flushes all the time; a
loader waits while more than half of the memory is in use, because a full store refuses the workers,
too. The run ends when no notification is left. Then the application's checker computes the whole index again.
The ratio of the two rates, in pages per second, is printed last. The exit code is 1 if the checker finds an
error.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import inf
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from percolator_bench.servers import NAMESPACE, Place, place  # noqa: E402
from percolator_bench.throughput import check_index, crawl  # noqa: E402
from percolator_bench.webindex import _Application  # noqa: E402
from percolator_bench.workers import workers_of  # noqa: E402
from percolator_core import PercolatorError, connect  # noqa: E402

MEGABYTE: Final = 1 << 20
FULL: Final = 1 / 2
PROCESSES: Final = 2
PARAGRAPHS: Final = 2000
TABLES: Final = {
    "documents": 32,
    "pages": 10,
    "contents": 32,
    "links": 16,
    "pointers": 64,
    "clusters": 32,
    "serving": 16,
    "serving_texts": 32,
}
"""Each table and its n: if a table takes more than 1/n of the memory, its oldest rows move to its base."""

TEXTS: Final = ("documents", "contents", "serving_texts")
"""The tables of the long texts. Their rows are written once, so they move to the base soon."""

COLD_AFTER: Final = timedelta(seconds=3)
"""Rows of `TEXTS` that were not changed for this time move to the base."""


def main() -> int:
    """Index twice, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pages", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=100, help="kilobytes of a page")
    parser.add_argument("--memory", type=int, default=256, help="maxmemory in megabytes")
    parser.add_argument("--limit", type=float, default=7200, help="seconds for the workers to finish")
    parser.add_argument("--skip-plain", action="store_true", help="skip the run that is all in memory")
    given = parser.parse_args()
    rates = {}
    for memory in (given.memory, None)[: 1 if given.skip_plain else 2]:
        try:
            rates[memory] = _index(given.pages, given.size, memory, given.limit)
        except PercolatorError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    if not given.skip_plain:
        print(f"{given.memory} MB ÷ all in memory: {rates[given.memory] / rates[None]:.2f} (asked: 0.6)")
    return 0


def _index(pages: int, size: int, memory: int | None, limit: float) -> float:
    """Load and index a crawl in a new store; return the rate in pages per second."""
    application = _Application()
    with application.serving() as index, place("unix") as here, tempfile.TemporaryDirectory() as folder:
        application.chain.create_tables(here.db)
        full = inf if memory is None else FULL * memory * MEGABYTE
        stop = multiprocessing.get_context("spawn").Event()
        if memory is not None:
            here.raw.config_set("maxmemory", memory * MEGABYTE)
            for table, part in TABLES.items():
                cold = COLD_AFTER if table in TEXTS else None
                limit_of_table = memory * MEGABYTE // part
                here.db.set_base(table, f"file://{folder}/base", cold_after=cold, memory=limit_of_table)
        with workers_of(here, application.chain, PROCESSES) as workers, _maintained(here, memory, stop):
            begun = time.monotonic()
            most = 0
            for loaded, (url, contents) in enumerate(_documents(pages, size), 1):
                while (used := here.raw.info("memory")["used_memory"]) > full:
                    workers.listen(0.1)
                most = max(most, used)
                with here.db.transaction() as t:
                    t.set("documents", url, "contents", contents)
                if loaded % (pages // 10) == 0:
                    held = f"{used / MEGABYTE:.0f} MB, backlog {workers.backlog():,}"
                    _say(begun, f"{loaded:,} pages loaded, {held}")
            workers.wait_until_idle(limit, look=0.2)
            seconds = time.monotonic() - begun
            counts = workers.stop()
        if counts.quarantined:
            raise PercolatorError(f"{counts.quarantined:,} cells were put aside")
        rate = pages / seconds
        kind = "all in memory" if memory is None else f"maxmemory {memory} MB"
        _say(begun, f"{kind}: {pages:,} pages of {size} kB, {rate:.1f} pages/s, {counts.ran:,} runs")
        for table in TABLES if memory is not None else ():
            print(f"  {table}: {here.db.base(table)}", flush=True)
        _say(begun, f"most memory seen while loading: {most / MEGABYTE:.0f} MB; checking")
        check_index(here, index)
        _say(begun, "the checker found no error")
        return rate


def _say(begun: float, text: str) -> None:
    print(f"{time.monotonic() - begun:6.0f} s  {text}", flush=True)


def _documents(pages: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pages of the generated crawl, each filled up with paragraphs to ``size`` kilobytes."""
    chance = random.Random(1)
    made, _ = crawl(pages)
    short = list(made.values())
    pool = [
        short[chance.randrange(len(short))].split(b"<p>")[1][:1000].split(b"</p>")[0]
        for _ in range(PARAGRAPHS)
    ]
    for url, page in made.items():
        filling, length = [], len(page)
        while length < size * 1000:
            filling.append(b"<p>%b</p>" % chance.choice(pool))
            length += len(filling[-1])
        yield url, page.replace(b"</body>", b"".join(filling) + b"</body>")


@contextmanager
def _maintained(here: Place, memory: int | None, stop: Event) -> Iterator[None]:
    """Run a maintainer during the block. Both runs have a maintainer, so that both collect garbage."""
    process = multiprocessing.get_context("spawn").Process(
        target=_maintain, args=(here.url, tuple(TABLES) if memory is not None else (), stop)
    )
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join()


def _maintain(url: str, tables: tuple[str, ...], stop: Event) -> None:
    with connect(url, namespace=NAMESPACE) as db:
        while not stop.wait(1):
            try:
                db.collect_garbage(timedelta(seconds=5))
                for table in tables:
                    db.flush(table)
            except PercolatorError as error:  # the next round tries again
                print(f"maintainer: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
