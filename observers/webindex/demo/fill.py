"""Load documents into a project's own store; workers build the index of them.

``python -m observers.webindex.demo.fill [--docs FOLDER] [--limit N] [--url URL]``, in the project's folder.
A repeated call loads only changes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from observers.webindex.demo.crawl import Crawl
from observers.webindex.demo.story import CHAIN, default_folder
from observers.webindex.demo.update import TABLE
from percolator_core import Chain, PercolatorError
from percolator_core.spark import LoadReport, check_java, load

FOLDER: Final = Path(".percolator/corpus")
URL: Final = "embedded:.percolator"
FEW: Final = 300
"""Without --limit, at most this many pages of the installed distributions are loaded."""


def fill(url: str = URL, docs: Path | None = None, limit: int | None = None) -> LoadReport:
    """Load the documents of a folder, or of the installed distributions when ``docs`` is None.

    Raises:
        ConfigurationError: there is no Java, or no document.
        PercolatorError: the load failed; it is safe to repeat it.
    """
    check_java()
    folder = FOLDER / default_folder(docs).name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    crawl = Crawl(folder, docs)
    crawl.renew(limit if limit is not None or docs is not None else FEW)
    chain = Chain.load(CHAIN)
    return load(
        url,
        chain.name,
        TABLE,
        crawl.source(),
        chain=chain,
        delete_missing=crawl.base_url,
        aside=folder / "aside",
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Load documents for the web index.")
    parser.add_argument("--docs", type=Path, metavar="FOLDER")
    parser.add_argument("--limit", type=int, metavar="N")
    parser.add_argument("--url", default=URL)
    given = parser.parse_args()
    sys.stdout.write("loading documents with Spark\n")
    sys.stdout.flush()
    try:
        done = fill(given.url, given.docs, given.limit)
    except PercolatorError as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(
        f"{done.read} documents: {done.new} new, {done.changed} changed, {done.unchanged} unchanged, "
        f"{done.deleted} deleted, {done.bad} put aside\n"
    )


if __name__ == "__main__":
    main()
