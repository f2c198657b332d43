"""Maintain a store: resolve locks, collect garbage, and maintain the columnar bases of tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from percolator_airflow.operators.base import StoreOperator, seconds
from percolator_core.errors import ConfigurationError

if TYPE_CHECKING:
    from percolator_core.database import Database

Tablets = Iterable[Sequence[Any]]
"""Pairs. Each pair has a table's name, and the number of one of the table's tablets."""


def read_tablets(tablets: Tablets | None) -> list[tuple[str, int]] | None:
    """Return ``tablets`` as a list of pairs: a table's name, and a tablet's number. None means all tablets.

    Raises:
        ConfigurationError: an element is not such a pair.
    """
    if tablets is None:
        return None
    try:
        return [(str(table), int(number)) for table, number in tablets]
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"tablets are pairs of a table and a number, such as [['documents', 0]], not {tablets!r}"
        ) from None


def still_there(db: Database, tablets: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the tablets that exist: a table may be dropped while a task is queued."""
    numbers = {table.name: len(db.catalog.table(table.name).tags) for table in db.tables()}
    return [(table, number) for table, number in tablets if number < numbers.get(table, 0)]


class TabletsOperator(StoreOperator):
    """A task on all tablets of a store, or on some, so that several tasks share the work.

    Args:
        chain, project, conn_id, namespace: see `StoreOperator`; only the chain's name is used.
        tablets: pairs of a table's name and a tablet's number; None means all tablets.
        skip_missing: True skips tablets that no longer exist; with False they fail the task.
    """

    template_fields: Sequence[str] = (*StoreOperator.template_fields, "tablets")

    def __init__(self, *, tablets: Tablets | None = None, skip_missing: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tablets = tablets
        self.skip_missing = skip_missing

    @contextmanager
    def opened(self, carry_on: str) -> Iterator[tuple[Database, list[tuple[str, int]] | None]]:
        """Open the database for the whole task, and parse ``self.tablets``; ``carry_on``: see `guarded`."""
        with self.database(carry_on) as db:
            tablets = read_tablets(self.tablets)
            if self.skip_missing and tablets is not None:
                tablets = still_there(db, tablets)
            yield db, tablets


class ResolveLocksOperator(TabletsOperator):
    """Roll the locks of dead clients forward or back.

    The task may run at any time, also at the same time as other tasks of this kind.

    The result has the numbers of locks that were ``committed`` or ``rolled_back``, and of locks that were
    left because their client is ``live``.

    Args:
        chain, conn_id, namespace, tablets, skip_missing: see `TabletsOperator`.
        older_than: seconds, 0 or more. Locks that were written or refreshed less than this long ago are
            skipped.
    """

    template_fields: Sequence[str] = (*TabletsOperator.template_fields, "older_than")

    def __init__(self, *, older_than: float = 30.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.older_than = older_than

    def execute(self, context: Any) -> dict[str, int]:  # noqa: ARG002 - Airflow's signature
        """Resolve the locks, and return the result.

        Raises:
            AirflowFailException: the chain, the connection, a table or a number is invalid.
            AirflowException: the store was unavailable, or the task was killed; a retry does the rest.
        """
        with self.opened("the next try resolves the rest") as (db, tablets):
            age = timedelta(seconds=seconds("older_than", self.older_than))
            found = db.resolve_locks(age, tablets=tablets)
        self.log.info(
            "%d locks committed, %d rolled back, %d left because their clients are alive",
            *(found.committed, found.rolled_back, found.live),
        )
        return asdict(found)


class CollectGarbageOperator(TabletsOperator):
    """Drop the versions that only old snapshots can see.

    The task may run at any time, also at the same time as other tasks of this kind.

    The result has the ``safe_point`` (µs), and the numbers of dropped ``versions`` and ``rows``. A collection
    first resolves old locks; ``locks`` counts these locks, as the result of `ResolveLocksOperator` does.

    Args:
        chain, conn_id, namespace, tablets, skip_missing: see `TabletsOperator`.
        keep: seconds, 0 or more; snapshots that are younger than this stay readable.
    """

    template_fields: Sequence[str] = (*TabletsOperator.template_fields, "keep")

    def __init__(self, *, keep: float = 3600.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.keep = keep

    def execute(self, context: Any) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        """Collect, and return the result.

        Raises:
            AirflowFailException: the chain, the connection, a table or a number is invalid.
            AirflowException: the store was unavailable, a transaction older than ``keep`` is still
                committing, or the task was killed; a retry does the rest.
        """
        with self.opened("the next try collects the rest") as (db, tablets):
            keep = timedelta(seconds=seconds("keep", self.keep))
            found = db.collect_garbage(keep, tablets=tablets)
        self.log.info("%d versions and %d rows dropped", found.versions, found.rows)
        return asdict(found)


class MaintainBasesOperator(TabletsOperator):
    """Move cold rows of tables to their bases, merge row sets, and remove files that no reader needs.

    Tables without a base are left out. The task may run at any time, also at the same time as other tasks of
    this kind.

    The result has for each table the ``rows`` that left the store, the ``bytes`` that were written, and the
    ``seconds`` that this took.

    Args:
        chain, conn_id, namespace, tablets, skip_missing: see `TabletsOperator`.
        rate: at most this many bytes per second are written to files; None means no limit.
        share: the part of the time, above 0 and at most 1, in which the store works for this task.
    """

    def __init__(self, *, rate: float | None = None, share: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = rate
        self.share = share

    def execute(self, context: Any) -> dict[str, dict[str, Any]]:  # noqa: ARG002 - Airflow's signature
        """Maintain the bases, and return the result.

        Raises:
            AirflowFailException: the chain, the connection, a table or a number is invalid.
            AirflowException: the store or a location was unavailable, a file is damaged, a transaction older
                than the cold rows is still committing, or the task was killed; a retry does the rest.
        """
        done = {}
        with self.opened("the next try continues") as (db, tablets):
            based = db.maintainer().tables()
            for table in based if tablets is None else sorted({table for table, _ in tablets} & {*based}):
                some: Sequence[tuple[str, int]] | None = None
                if tablets is not None:
                    some = [one for one in tablets if one[0] == table]
                done[table] = asdict(db.flush(table, tablets=some, rate=self.rate, share=self.share))
                self.log.info("%s: %d rows moved to the base", table, done[table]["rows"])
        return done
