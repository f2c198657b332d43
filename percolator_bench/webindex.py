"""The effect of prefetch on the shipped web index: operations divided by requests and by commands.

An *operation* is a read of one cell. A command reads cells of one row. A request is a round trip with any
number of commands (`percolator_core.transaction`). The number of runs depends on their timing, so the counts
of two builds differ by some percent. Generated pages show the effect of the number of links: most operations
read one cell of each linked page.

At the end, this suite calls `throughput`, which measures the rate of the whole chain. The library never
imports an application: this suite imports the web index by its name, and a note says so if it is missing.
"""

from __future__ import annotations

import gc
import importlib
import random
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Final, NamedTuple, TypeAlias

from percolator_bench import progress, throughput
from percolator_bench.figure import Figure, Target, median_figure
from percolator_bench.report import Note
from percolator_bench.scale import Scale
from percolator_bench.servers import Place, place
from percolator_core.errors import ConfigurationError
from percolator_core.observers import Chain
from percolator_core.worker import ObserverCounts, Worker

SAVED: Final = Target("at least", 5.0)
"""Half of the factor of 10 by which the paper's prefetch reduces reads (section 2.5)."""

LINKS: Final = (10, 40, 170)
"""Links on each generated page."""

WITH: Final = "prefetch"
WITHOUT: Final = "no prefetch"
"""The two contestants."""

ALL: Final = "all observers"

_SUITE: Final = "webindex"
_INSTALLED: Final = "installed distributions"
_ROUND: Final = 3
"""Other suites run this many rounds for each round here, because these build two indexes and take seconds."""

_CHANGED: Final = 5
"""One document in this many changes after the index is built."""

_PAGES: Final = 50
_LINKED: Final = 4
"""Link targets, as a multiple of the loaded pages: most links of a crawl lead to pages never loaded."""

_SEED: Final = 10
_RATIOS: Final = {"operations ÷ requests": "requests", "operations ÷ commands": "sent"}
"""Each ratio, and the count that it divides by."""

Documents: TypeAlias = Mapping[bytes, bytes]
"""The contents of documents, by URL."""


@dataclass(frozen=True, slots=True)
class _Corpus:
    """The documents of each stage, by its name; ``links`` is the number of links on each generated page."""

    stages: Mapping[str, Documents]
    links: int | None = None

    def __str__(self) -> str:
        return _INSTALLED if self.links is None else f"{self.links} links a page"


class _Work(NamedTuple):
    """The work of a worker until it was idle: the counts by observer, and the seconds of CPU time."""

    counts: Mapping[str, ObserverCounts]
    worker: float
    server: float

    @property
    def total(self) -> ObserverCounts:
        """The counts of all observers."""
        return self.counts[ALL]

    @property
    def cost(self) -> float:
        """Seconds of CPU time of a run, of worker and server together."""
        return (self.worker + self.server) / self.total.ran


_Pair: TypeAlias = dict[str, _Work]
"""The work of one round with prefetch and without it, by `WITH` and `WITHOUT`."""


def measure(scale: Scale) -> Iterator[Figure | Note]:
    """Measure CPU time, and the ratios: by observer, for all observers, and by number of links of a page."""
    try:
        application = _Application()
    except ConfigurationError as missing:
        yield Note(_SUITE, f"nothing was measured: {missing}")
        return
    progress.tell("collecting documents")
    installed = application.documents(scale.documents)
    made = [_Corpus({"made pages": generated_pages(links)}, links) for links in LINKS]
    progress.tell("warming up")
    application.build(made[0], WITH)
    yield Note(_SUITE, f"{_INSTALLED}: {len(installed):,} documents, {_megabytes(installed):.1f} MB")
    for corpus in (_Corpus(_built_and_changed(installed)), *made):
        yield from _measured(application, corpus, max(1, scale.rounds // _ROUND))
    yield from throughput.measured(application.chain, application.serving, scale.pages)


def _measured(application: _Application, corpus: _Corpus, rounds: int) -> Iterator[Figure | Note]:
    """The figures of one corpus, stage by stage."""
    pairs: dict[str, list[_Pair]] = {stage: [] for stage in corpus.stages}
    for number in range(rounds):
        found: dict[str, list[_Work]] = {}
        for way in (WITH, WITHOUT) if number % 2 else (WITHOUT, WITH):
            progress.tell(str(corpus), f"round {number + 1} of {rounds}", way)
            found[way] = application.build(corpus, way)
        for position, stage in enumerate(corpus.stages):
            pairs[stage].append({way: works[position] for way, works in found.items()})
    for stage, of_stage in pairs.items():
        yield from _saved(stage, of_stage, corpus.links)
        if corpus.links is None:
            yield from _costs(stage, of_stage)
        yield from _failures(stage, of_stage)


# The application.


class _Application:
    """The parts of the web index that this suite uses.

    Raises:
        ConfigurationError: it is missing, or needs a package; the message names a remedy.
    """

    def __init__(self) -> None:
        self._crawl = _module_of_the_application("observers.webindex.demo.crawl")
        self._index = _module_of_the_application("observers.webindex.index")
        self.chain = Chain.load(Path(str(self._index.__file__)).parent)

    def documents(self, limit: int) -> Documents:
        """Return the documents of the demonstration, at most ``limit``."""
        with TemporaryDirectory(prefix="percolator-bench-") as folder:
            crawl = self._crawl.Crawl(Path(folder), None)
            crawl.renew(limit)
            records = [crawl.record(name) for _, name in crawl.source().files]
            return {record.key: record.cells["contents"] for record in records}

    def build(self, corpus: _Corpus, way: str) -> list[_Work]:
        """Build the index in a new store; one worker does all stages."""
        with self.serving(), place("unix") as here:
            self.chain.create_tables(here.db)
            worker = Worker(here.db, self.chain, prefetch=way == WITH)
            return [_work(here, worker, documents) for documents in corpus.stages.values()]

    @contextmanager
    def serving(self) -> Iterator[Path]:
        """Let the observers fill a temporary full-text index, and not the user's."""
        with TemporaryDirectory(prefix="percolator-bench-") as folder:
            path = Path(folder) / "serving.db"
            with self._index.serving_index(path):
                yield path


def _work(here: Place, worker: Worker, documents: Documents) -> _Work:
    """Load the documents, and let the worker process them; the load does not count."""
    throughput.load(here, 8, documents)
    gc.collect()
    server, client = here.server_cpu(), time.process_time()
    counts = worker.run_until_idle()
    client = time.process_time() - client
    return _Work({ALL: counts.total()} | counts.observers, client, here.server_cpu() - server)


# The corpora.


def _built_and_changed(documents: Documents) -> dict[str, Documents]:
    """Return the documents, and then those that change."""
    changed = {url: documents[url] + b"<p>Changed.</p>" for url in sorted(documents)[::_CHANGED]}
    return {_INSTALLED: documents, f"{_INSTALLED}, a fifth changed": changed}


def _megabytes(documents: Documents) -> float:
    return sum(map(len, documents.values())) / 1e6


def generated_pages(links: int) -> Documents:
    """Generate pages with ``links`` links each, the same each time."""
    chance = random.Random(_SEED)
    targets = range(max(_PAGES * _LINKED, links))
    return {_url(page): _page(page, chance.sample(targets, links)) for page in range(_PAGES)}


def _page(number: int, targets: Iterable[int]) -> bytes:
    anchors = b" ".join(b'<a href="%b">to %d</a>' % (_url(target), target) for target in targets)
    return b"<html><title>Page %d</title><p>Page %d is about itself.</p>%b</html>" % (number, number, anchors)


def _url(number: int) -> bytes:
    return b"https://example.com/%d.html" % number


# The figures.


def _saved(stage: str, pairs: Sequence[_Pair], links: int | None) -> Iterator[Figure]:
    """Yield operations per request and per command. For generated pages, add up all observers."""
    figure = partial(median_figure, _SUITE, stage, axis="" if links is None else "links a page", at=links)
    for what, count in _RATIOS.items():
        for observer in _readers(pairs) if links is None else [ALL]:
            for way in (WITH, WITHOUT):
                counts = [pair[way].counts[observer] for pair in pairs]
                yield figure(
                    f"{what}, {observer}: {way}",
                    "ratio",
                    samples=[one.operations / getattr(one, count) for one in counts],
                    target=SAVED if (count, observer, way) == ("requests", ALL, WITH) else None,
                )


def _readers(pairs: Sequence[_Pair]) -> list[str]:
    """Return `ALL`, and the name of each observer that read from the store in every build."""
    works = [work for pair in pairs for work in pair.values()]
    return [name for name in works[0].counts if all(work.counts[name].requests for work in works)]


def _costs(stage: str, pairs: Sequence[_Pair]) -> Iterator[Figure]:
    """Yield the cost of a run, and the share of prefetched cells that were read."""
    figure = partial(median_figure, _SUITE, stage)
    for whose in ("worker", "server"):
        for way in (WITH, WITHOUT):
            micros = [getattr(pair[way], whose) / pair[way].total.ran * 1e6 for pair in pairs]
            yield figure(f"{whose}'s CPU a run: {way}", "µs", samples=micros)
    ratios = [pair[WITH].cost / pair[WITHOUT].cost for pair in pairs]
    yield figure(f"CPU a run of both, {WITH} ÷ {WITHOUT}", "ratio", samples=ratios)
    for way in (WITH, WITHOUT):
        trips = [pair[way].total.round_trips / pair[way].total.ran for pair in pairs]
        yield figure(f"round trips a run: {way}", "ratio", samples=trips)
    brought = [pair[WITH].total for pair in pairs]
    asked = [total.served / total.prefetched for total in brought if total.prefetched]
    if asked:
        yield figure("prefetched cells that were asked for", "share", samples=asked)


def _failures(stage: str, pairs: Sequence[_Pair]) -> Iterator[Note]:
    """Add a note if not all documents could be indexed: the builds may then differ."""
    failed = sum(work.total.quarantined for pair in pairs for work in pair.values())
    if failed:
        yield Note(_SUITE, f"{stage}: {failed:,} cells are in quarantine, `make demo` shows why")


def _module_of_the_application(name: str) -> ModuleType:
    """Import a module of the web index, from the current directory.

    Raises:
        ConfigurationError: it is missing, or needs a package.
    """
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise ConfigurationError(
                f"`percolator bench {_SUITE}` measures the web index: run it in a checkout of the percolator "
                f"repository ({here} has no {name.replace('.', '/')})."
            ) from None
        raise ConfigurationError(
            f"`percolator bench {_SUITE}` needs {missing}: pip install 'percolator-core[spark,webindex]'."
        ) from None
