"""The scenes of the demo, in their order."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from observers.webindex.checker import check
from observers.webindex.demo.background import BackgroundWorker
from observers.webindex.demo.changes import plan
from observers.webindex.demo.crawl import Crawl
from observers.webindex.demo.proofs import prove, queries
from observers.webindex.demo.report import Found, Loaded, Processed, Report
from observers.webindex.demo.update import TABLE, Update
from observers.webindex.index import ServingIndex, open_index, serving_index
from observers.webindex.search import search
from percolator_core import Chain, ConfigurationError, Worker, connect
from percolator_core.notifications.dirty import DirtyIndex
from percolator_core.runtime.periodic import periodically
from percolator_core.spark import check_java, load
from percolator_core.store.embedded.folder import prepare
from percolator_core.store.embedded.locks import Lock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from observers.webindex.demo.show import Show
    from percolator_core import Database

FOLDER: Final = Path(".percolator/demo")
CHAIN: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = 3
_LOOK: Final = 0.2


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the demo.

    ``docs`` is a folder of pages; None means the documents of the installed distributions. ``limit`` is the
    largest number of pages. ``folder`` is the folder for documents, store and index. If ``fresh`` is True,
    the results of earlier runs are deleted first.
    """

    docs: Path | None = None
    limit: int | None = None
    folder: Path | None = None
    fresh: bool = False


def run(settings: Settings, show: Show) -> Report:
    """Play all scenes.

    Raises:
        ConfigurationError: there is no Java, no document, or the folder cannot be used.
        PercolatorError: a scene failed; the results so far stay.
    """
    check_java()
    folder = (settings.folder or default_folder(settings.docs)).absolute()
    with ExitStack() as stack:
        stack.enter_context(_occupied(folder, fresh=settings.fresh))
        crawl = Crawl(folder, settings.docs)
        stack.enter_context(serving_index(folder / "serving.db"))
        return _Story(crawl, show, stack, settings.limit).play()


def default_folder(docs: Path | None) -> Path:
    """Return the default folder. Each corpus has its own folder, so that each corpus keeps its state."""
    if docs is None:
        return FOLDER
    place = docs.resolve()
    # Many folders are called html or docs; the digest distinguishes them.
    digest = hashlib.sha256(os.fsencode(place)).hexdigest()[:6]
    return FOLDER.with_name(f"demo-{place.name or 'root'}-{digest}")


class _Story:
    """One run of the demo."""

    def __init__(self, crawl: Crawl, show: Show, stack: ExitStack, limit: int | None) -> None:
        self._crawl = crawl
        self._show = show
        self._stack = stack
        self._limit = limit
        self._url = f"embedded:{crawl.folder}"
        self._chain = Chain.load(CHAIN)
        self._report = Report(crawl.state.runs + 1, self._url, _from_here(crawl.folder / "serving.db"))
        self._db: Database
        self._index: ServingIndex

    def play(self) -> Report:
        """Play all scenes."""
        for name, scene in (
            ("store", self._store),
            ("load", self._load),
            ("chain", self._process),
            ("search", self._search),
            ("update", self._update),
            ("check", self._check),
        ):
            started = time.monotonic()
            self._show.begin(name, self._report)
            scene()
            self._report.scenes[name] = time.monotonic() - started
            self._show.end(name, self._report)
        self._crawl.state.runs += 1
        self._crawl.save()
        return self._report

    def _store(self) -> None:
        self._db = self._stack.enter_context(connect(self._url, self._chain.name))
        self._chain.create_tables(self._db)
        self._index = open_index()
        info = self._db.store.server_info()
        self._show.store(info.version, self._chain, _from_here(self._crawl.folder), self._crawl.state.runs)

    def _load(self) -> None:
        with self._show.waiting("collecting documents"):
            self._crawl.renew(self._limit)
        started = time.monotonic()
        source = self._crawl.source()
        with self._show.loading(len(source.files)) as progress:
            done = load(
                self._url,
                self._db.namespace,
                TABLE,
                source,
                chain=self._chain,
                delete_missing=self._crawl.base_url,
                aside=self._crawl.folder / "aside",
                progress=progress,
            )
        self._report.loaded = Loaded(
            done.read,
            done.new,
            done.changed,
            done.unchanged,
            done.deleted,
            done.bad,
            done.tasks,
            done.start_seconds,
            time.monotonic() - started,
        )
        self._report.documents = len(source.files)

    def _process(self) -> None:
        worker = Worker(self._db, self._chain)
        dirty = DirtyIndex(self._db.client, self._chain.observed)
        with self._show.processing(self._report.documents) as progress:

            def show() -> None:
                ran = {name: counts.ran for name, counts in list(worker.counts.observers.items())}
                progress(ran, sum(dirty.backlog().values()))

            with periodically(show, _LOOK, "demo-progress"):
                counts = worker.run_until_idle()
        total = counts.total()
        self._report.processed = Processed(
            {name: one.ran for name, one in counts.observers.items()},
            total.conflicts,
            total.quarantined,
            self._count_shown(),
            counts.seconds,
        )
        state = self._crawl.state
        if not state.observers:
            state.observers = self._report.processed.observers
            state.seconds = counts.seconds
            self._crawl.save()
        self._report.first_run, self._report.first_seconds = state.observers, state.seconds

    def _search(self) -> None:
        for query in queries(self._index):
            started = time.perf_counter()
            results = search(query, RESULTS, index=self._index)
            found = Found(query, (time.perf_counter() - started) * 1000, results)
            self._report.searches.append(found)
        self._show.searches(self._report.searches)

    def _update(self) -> None:
        changes = plan(self._crawl, self._index, self._report.run)
        dirty = DirtyIndex(self._db.client, self._chain.observed)
        with BackgroundWorker(self._db, self._chain, self._url, self._index.path) as worker:
            update = Update(self._db, self._crawl, self._index, worker)
            with self._show.waiting("changing documents while a worker runs"):
                started = time.monotonic()
                for change in changes:
                    if change.kind == "duplicated":
                        update.settle(dirty)  # other changes may affect the search that shows a duplicate
                    self._report.changes.append(update.apply(change))
                update.settle(dirty)
                seconds = time.monotonic() - started
                counts = worker.stop()
        observers = counts["observers"]
        self._report.updated = Processed(
            {name: one["ran"] for name, one in observers.items()},
            sum(one["conflicts"] for one in observers.values()),
            sum(one["quarantined"] for one in observers.values()),
            self._count_shown(),
            seconds,
        )
        self._report.proofs = prove(changes, self._index)

    def _check(self) -> None:
        with self._show.waiting("computing the whole index again, to compare"):
            violations = check(self._db.snapshot(), self._index)
        self._report.violations = [str(violation) for violation in violations]

    def _count_shown(self) -> int:
        rows = self._index.query("SELECT count(*) FROM postings WHERE url IS NOT NULL", ())
        return int(str(rows[0][0]))


def _from_here(path: Path) -> str:
    """Return the path as a user would type it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


@contextmanager
def _occupied(folder: Path, *, fresh: bool) -> Iterator[None]:
    """Create and lock the folder for this demo; empty it if ``fresh``."""
    prepare(folder)
    lock = Lock(folder / "demo.lock")
    try:
        if not lock.take(fcntl.LOCK_EX):
            raise ConfigurationError(f"Another demo runs in {folder}: wait for it, or name another --folder.")
        if fresh:
            _empty(folder)
        yield
    finally:
        lock.close()


def _empty(folder: Path) -> None:
    users = Lock(folder / "redis.users")
    try:
        if not users.take(fcntl.LOCK_EX):
            raise ConfigurationError(
                f"The store in {folder} is in use: stop its users before you start over."
            )
        if not (folder / "demo.json").exists() and any(not _is_lock(path) for path in folder.iterdir()):
            raise ConfigurationError(f"{folder} has files that are not a demo's: name another --folder.")
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif not _is_lock(path):
                path.unlink()
    finally:
        users.close()


def _is_lock(path: Path) -> bool:
    return path.name in {"demo.lock", "redis.users", "redis.mutex", "redis.server", "redis.watcher"}
