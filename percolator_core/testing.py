"""For tests of your own observers: a pytest fixture with a private store, and a run of a chain to its end.

One line in the ``conftest.py`` at the top of your tests makes the fixtures known::

    pytest_plugins = ["percolator_core.testing"]

A test is then::

    def test_words_are_counted(percolator_db):
        chain = Chain.load("observers/words")
        chain.create_tables(percolator_db)
        with percolator_db.transaction() as t:
            t.set("documents", "a", "text", b"the dog and the fox")
        run_until_idle(percolator_db, chain)
        assert percolator_db.snapshot().get("totals", "the", "count") == b"2"

PYTEST_DONT_REWRITE: pytest finds this word, and leaves the module as it is, also if a ``conftest.py`` has
imported it before. There is no ``assert`` here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from percolator_core.admin.quarantine import FailedCell, Quarantine
from percolator_core.database import Database, connect
from percolator_core.errors import abbreviated
from percolator_core.observers import Chain
from percolator_core.worker import Counts, Worker


class ObserverFailed(AssertionError):
    """An observer raised an exception; the message has its traceback. Mend the observer, or the test's data.

    ``cells`` has the cells in quarantine, each with ``observer``, ``table``, ``row``, ``column``, ``error``
    and ``traceback``.
    """

    def __init__(self, cells: list[FailedCell]) -> None:
        self.cells = cells
        first = cells[0]
        more = f"; {len(cells) - 1:,} more cells failed" if len(cells) > 1 else ""
        super().__init__(
            f"observer {first.observer} failed on {first.table}.{abbreviated(first.column)} of row "
            f"{abbreviated(repr(first.row))}{more}:\n{first.traceback or first.error}"
        )


@pytest.fixture(scope="session")
def percolator_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a private store for all tests of the session. It ends with the session."""
    url = f"embedded:{tmp_path_factory.mktemp('percolator')}"
    # This connection keeps the server between two tests: a start takes longer than most tests.
    with connect(url, "session"):
        yield url


@pytest.fixture
def percolator_db(percolator_store: str) -> Iterator[Database]:
    """A database without tables, for one test: a namespace of its own in the private store."""
    with connect(percolator_store, f"test-{uuid4().hex}") as db:
        yield db


def run_until_idle(
    db: Database,
    chain: Chain | str | Path,
    *,
    timeout: float = 60.0,
    attempts: int | None = 1,
    fail: bool = True,
) -> Counts:
    """Run the observers of a chain until no notification is left, and return the counts of the runs.

    Args:
        db: the database; missing tables are created. Create them before that with ``chain.create_tables`` if
            the test writes before the first call.
        chain: the chain, or its folder.
        timeout: seconds, above 0, after which TimeoutError is raised.
        attempts: the number of runs after which a failing cell goes to quarantine, 1 to 100, so that a test
            does not wait for retries; None means as each observer declares. Conflicts are no failures.
        fail: raise ObserverFailed if a cell is in quarantine; with False, return the counts instead.

    Raises:
        ObserverFailed: a cell is in quarantine, and ``fail`` is true.
        TimeoutError: notifications were left after ``timeout`` seconds.
        ConfigurationError: the chain has an invalid declaration.
    """
    if not isinstance(chain, Chain):
        chain = Chain.load(chain)
    if attempts is not None:
        chain = _with_attempts(chain, attempts)
    counts = Worker(db, chain).run_until_idle(timeout)
    if fail:
        cells = list(Quarantine(db, chain).cells())
        if cells:
            raise ObserverFailed(cells)
    return counts


def _with_attempts(chain: Chain, attempts: int) -> Chain:
    observers = {
        name: replace(one, retry=replace(one.retry, attempts=attempts))
        for name, one in chain.observers.items()
    }
    return replace(chain, observers=observers)
