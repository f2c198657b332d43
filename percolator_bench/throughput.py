"""Pages a second through the whole chain of the shipped web index, from their load to the full-text index.

The pages are generated: sentences of words by Zipf's law, and about thirteen links, a third of them to the
page's own site, the others mostly to popular pages. The time is from the first load until no notification is
left. Then the checker of the application, a separate program, computes the whole index again. The
transactions are the loads and the runs of all observers.
"""

from __future__ import annotations

import bisect
import itertools
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

from percolator_bench import progress
from percolator_bench.figure import Figure, Target, median_figure
from percolator_bench.servers import NAMESPACE, Place, for_each, place
from percolator_bench.workers import workers_of
from percolator_core.errors import PercolatorError
from percolator_core.observers import Chain

PAGES: Final = Target("at least", 300.0)
LINKS: Final = Target("at least", 4000.0)
"""Per second, with two processes on two cores. Fluo's 20 workers: 698 to 950 pages, 8,943 to 12,292 links."""

PROCESSES: Final = (1, 2)
"""Worker processes."""

CHECKER: Final = "observers.webindex.checker"

_PLACE: Final = "made crawl"
_WIDTH: Final = 32
"""Loads in flight."""

_LIMIT: Final = 900.0
"""The workers have to finish within this many seconds."""

_SEED: Final = 12
_MEAN_LINKS: Final = 13.6
"""Mean number of links, before links to the same page are merged."""
_MOST_LINKS: Final = 120
_KNOWN: Final = 4
"""Links lead to this many times the number of loaded pages: most targets are never loaded."""

_SITE: Final = 40
"""Pages of a site."""

_OWN_SITE: Final = 1 / 3
_SENTENCES: Final = (4, 16)
_SENTENCE: Final = (6, 20)
"""Words of a sentence."""

_WORDS: Final = 5000


def measured(
    chain: Chain, serving: Callable[[], AbstractContextManager[Path]], pages: int
) -> Iterator[Figure]:
    """Measure pages, links and transactions a second, by the number of worker processes.

    ``serving`` provides the full-text index of this process and its children, and yields the index's folder.

    Raises:
        PercolatorError: the index differs from the documents.
        StoreUnavailable: a worker ended, or did not finish.
    """
    documents, links = crawl(pages)
    for processes in PROCESSES:
        progress.tell(_PLACE, f"{processes} worker processes")
        with serving() as index, place("unix") as here:
            seconds, runs = _index(here, chain, documents, processes)
            progress.tell(_PLACE, f"{processes} worker processes", "checking")
            check_index(here, index)
        figure = partial(median_figure, "webindex", _PLACE, unit="/s", axis="worker processes", at=processes)
        last = processes == max(PROCESSES)
        yield figure("pages", samples=[pages / seconds], target=PAGES if last else None)
        yield figure("links", samples=[links / seconds], target=LINKS if last else None)
        yield figure("transactions", samples=[(runs + pages) / seconds])


def _index(here: Place, chain: Chain, documents: Mapping[bytes, bytes], processes: int) -> tuple[float, int]:
    """Load and drain; return the seconds, and the number of committed runs."""
    with workers_of(here, chain, processes) as workers:
        began = time.perf_counter()
        load(here, _WIDTH, documents)
        workers.wait_until_idle(_LIMIT, look=0.05)
        seconds = time.perf_counter() - began
        counts = workers.stop()
    if counts.quarantined:
        raise PercolatorError(f"{counts.quarantined:,} cells of the generated crawl are in quarantine")
    return seconds, counts.ran


def load(here: Place, width: int, documents: Mapping[bytes, bytes]) -> None:
    """Write each document in a transaction of its own, ``width`` at a time."""

    def one(document: tuple[bytes, bytes]) -> None:
        with here.db.transaction() as t:
            t.set("documents", document[0], "contents", document[1])

    for_each(here.db, width, one, documents.items())


def check_index(here: Place, index: Path) -> None:
    """Run the checker of the application. Raises PercolatorError if it finds an error."""
    command = [sys.executable, "-m", CHECKER, here.url, NAMESPACE, str(index)]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        told = "\n".join(done.stdout.splitlines()[-10:])
        raise PercolatorError(f"the web index differs from its documents, please report it:\n{told}")


# The crawl.


def crawl(pages: int) -> tuple[dict[bytes, bytes], int]:
    """Generate ``pages`` pages, the same each time; return them by URL, and the number of their links."""
    chance = random.Random(_SEED)
    words = _vocabulary(chance)
    known = pages * _KNOWN
    # A random choice of the known pages is loaded: popular ones and others.
    loaded = chance.sample(range(known), pages)
    made = {}
    total = 0
    for page in loaded:
        targets = _targets(chance, page, known)
        total += len(targets)
        made[_url(page)] = _page(chance, words, page, targets)
    return made, total


def _targets(chance: random.Random, page: int, known: int) -> set[int]:
    """Choose the pages to which ``page`` links; it does not link to itself."""
    # Few pages have many links: the number is log-normal. Its mean is `_MEAN_LINKS`, less the part that is
    # cut off above `_MOST_LINKS`.
    count = min(_MOST_LINKS, round(chance.lognormvariate(0, 0.8) * _MEAN_LINKS / 1.377))
    site = page // _SITE * _SITE
    found = set()
    for _ in range(count):
        if chance.random() < _OWN_SITE:
            found.add(min(site + chance.randrange(_SITE), known - 1))
        else:
            # By popularity: about a tenth of the pages has half of the links.
            found.add(int(known * chance.random() ** 3))
    return found - {page}


def _page(chance: random.Random, words: _Words, page: int, targets: set[int]) -> bytes:
    sentences = [
        f"{' '.join(words(chance.randint(*_SENTENCE))).capitalize()}."
        for _ in range(chance.randint(*_SENTENCES))
    ]
    anchors = [
        f'<a href="{_url(target).decode()}">{" ".join(words(chance.randint(1, 4)))}</a>'
        for target in sorted(targets)
    ]
    title = " ".join(words(5))
    half = len(sentences) // 2
    return (
        f"<!doctype html><html><head><title>{title} {page}</title></head><body><h1>{title}</h1>"
        f"<p>{' '.join(sentences[:half])}</p><ul>{''.join(f'<li>{one}</li>' for one in anchors)}</ul>"
        f"<p>{' '.join(sentences[half:])}</p></body></html>"
    ).encode()


_Words = Callable[[int], list[str]]
"""Draws a number of random words."""


def _vocabulary(chance: random.Random) -> _Words:
    """Return a function that draws words of 2 to 4 syllables; the n-th is drawn in proportion to 1 / n."""
    syllables = [a + b for a, b in itertools.product("bdfgklmnprstvz", "aeiou")]
    words = ["".join(chance.choices(syllables, k=chance.randint(2, 4))) for _ in range(_WORDS)]
    sums = list(itertools.accumulate(1 / (number + 1) for number in range(_WORDS)))
    return lambda count: [
        words[min(bisect.bisect(sums, chance.random() * sums[-1]), _WORDS - 1)] for _ in range(count)
    ]


def _url(page: int) -> bytes:
    return b"https://site%d.example.com/%d.html" % (page // _SITE, page)
