"""Index the HTML files of a folder with the shipped web index: pages per second, and runs per page.

    .venv/bin/python benchmarks/real_crawl.py /usr/share/doc/openjdk-17-jre-headless/api/java.base

Two worker processes index while the files are loaded. The time ends when no notification is left. Then the
application's checker computes the whole index again. The exit code is 1 if it finds an error.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from percolator_bench.servers import place  # noqa: E402
from percolator_bench.throughput import check_index, load  # noqa: E402
from percolator_bench.webindex import _Application  # noqa: E402
from percolator_bench.workers import workers_of  # noqa: E402
from percolator_core import PercolatorError  # noqa: E402

PROCESSES: Final = 2
SITE: Final = "http://docs.example/"
_WIDTH: Final = 32
"""Loads in flight."""


def main() -> int:
    """Index, and print the figures of each round."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1800, help="seconds for the workers to finish")
    given = parser.parse_args()
    files = sorted(given.folder.rglob("*.html"))
    pages = {f"{SITE}{file.relative_to(given.folder)}".encode(): file.read_bytes() for file in files}
    try:
        for _ in range(given.rounds):
            _index(pages, given.limit)
    except PercolatorError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _index(pages: dict[bytes, bytes], limit: float) -> None:
    application = _Application()
    with application.serving() as index, place("unix") as here:
        with workers_of(here, application.chain, PROCESSES) as workers:
            begun = time.monotonic()
            load(here, _WIDTH, pages)
            workers.wait_until_idle(limit, look=0.05)
            seconds = time.monotonic() - begun
            counts = workers.stop()
        if counts.quarantined:
            raise PercolatorError(f"{counts.quarantined:,} cells were put aside")
        check_index(here, index)
    count = len(pages)
    size = sum(map(len, pages.values())) / count
    print(
        f"{count:,} pages of {size / 1000:.0f} kB in {seconds:.1f} s: {count / seconds:.1f} pages/s, "
        f"{counts.ran / count:.1f} runs a page; the checker found no error",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
