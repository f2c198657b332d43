"""Transactions and snapshots of one actor: how they end, and which refusals have a reason."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from percolator_core import (
    CommitUndetermined,
    ConfigurationError,
    Database,
    LockTimeout,
    PercolatorError,
    RowExists,
    RowNotFound,
    SnapshotTooOld,
    StoreUnavailable,
    TransactionConflict,
    UnknownColumn,
    UnknownTable,
)
from tests.attack.views import OpenScan, View

if TYPE_CHECKING:
    from tests.attack.attack import Attack

WITNESS: Final = "witness"
"""A raw table that never changes, to which each transaction writes: so it is known what committed."""

REFUSALS: Final = (TransactionConflict, SnapshotTooOld, UnknownTable, UnknownColumn)
"""The errors of a read that a change of its table may cause."""

_NOT_COMMITTED: Final = (*REFUSALS, LockTimeout, StoreUnavailable, RowExists, RowNotFound)


class Session:
    """The open views of an actor, for one thread."""

    def __init__(self, attack: Attack, name: str, tables: Sequence[str]) -> None:
        self.name = name
        self.at = f"{name}, before step 1"
        self.moved_at = time.monotonic()
        self._attack = attack
        self._ledger = attack.ledger
        self._tables = tables
        self._number = 0
        self._step = 0
        self._views: list[View] = []
        self._scans: list[OpenScan] = []

    def _transact(self, db: Database, put: Callable[[View], object]) -> None:
        for _ in range(20):
            view = View(db.begin, self.name, self._next())
            if self._commit(view, partial(put, view)):
                return

    def _commit(self, view: View, derive: Callable[[], object]) -> bool:
        """Write what is derived, and the witness, and commit; whether that was done."""
        try:
            derive()
            view.set(WITNESS, view.id.encode(), "by", b"")
        except _NOT_COMMITTED as error:
            self._may_refuse(view, error, *self._tables)
            self._keep(view, "fail")
            view.close()
            return False
        except (ConfigurationError, ValueError) as error:
            self._may_differ(view, error)
            return False
        try:
            commit_ts = view.commit()
        except _NOT_COMMITTED as error:
            self._keep(view, "fail")
            if not isinstance(error, TransactionConflict):  # others may write the same cells
                self._may_refuse(view, error, *self._tables)
            return False
        except CommitUndetermined as error:
            self._keep(view, "unknown")
            if not self._attack.disturbed:
                self._complain(f"a commit raised {error!r}, though the store was never away")
            return False
        except BaseException:
            self._keep(view, "unknown")
            raise
        self._keep(view, "ok", commit_ts)
        return True

    def _try(self, view: View, table: str, read: Callable[[], object]) -> None:
        """Read; a view that is refused is closed."""
        try:
            read()
        except (*REFUSALS, LockTimeout, StoreUnavailable) as error:
            # A first read is also refused if another table changes between its timestamp and its look-up.
            any_table = isinstance(error, TransactionConflict)
            self._may_refuse(view, error, *(self._tables if any_table else (table,)))
        except ConfigurationError as error:
            self._may_differ(view, error)
            return
        except Exception:  # noqa: BLE001 - reported with the seed and the step
            self._complain(f"a read of {table}: {traceback.format_exc(limit=-12)}")
        else:
            return
        self._abandon(view)

    def _abandon(self, view: View) -> None:
        if view in self._views:
            self._views.remove(view)
        for found in [one for one in self._scans if one.view is view]:
            self._scans.remove(found)
        view.close()
        self._keep(view, "fail")

    def _may_refuse(self, view: View, error: PercolatorError, *tables: str) -> None:
        """Complain of a refusal that nothing explains, not even a change of one of ``tables``."""
        if isinstance(error, StoreUnavailable | LockTimeout):
            if not self._attack.disturbed:
                self._complain(f"{view.id} was refused: {error!r}, though the store was never away")
        elif isinstance(error, RowExists | RowNotFound):
            return  # by what others have written
        elif not any(self._ledger.changed_since(table, view.began_at) for table in tables):
            too_old = isinstance(error, SnapshotTooOld) and self._attack.collected_at is not None
            if not too_old:
                self._complain(
                    f"{view.id} was refused by {error!r}, though there was no change lately of "
                    + ", ".join(f"{table} ({self._ledger.story(table)})" for table in tables)
                )

    def _may_differ(self, view: View, error: Exception) -> None:
        """A table may be another one by now than the actor knows: raw or typed, or with other columns."""
        self._abandon(view)
        changed = [one for one in self._tables if self._ledger.changed_since(one, view.began_at)]
        if not changed:
            self._complain(f"{view.id} was refused by {error!r}, though no table has changed")

    def _keep(self, view: View, outcome: Any, commit_ts: int | None = None) -> None:
        self._attack.records.append(view.finished(outcome, commit_ts))
        for sentence in view.complaints:
            self._complain(f"{view.id}: {sentence}")

    def _open(self, view: View) -> View:
        self._views.append(view)
        return view

    def _next(self) -> int:
        self._number += 1
        self._attack.steps[f"{self.name}:{self._number}"] = self.at
        return self._number

    def _note(self, kind: str) -> None:
        self._step += 1
        self.at = f"{self.name}, step {self._step} ({kind})"
        self._attack.latest.append(self.at)
        self.moved_at = time.monotonic()
        self._attack.moved()

    def _complain(self, sentence: str) -> None:
        self._attack.complaints.append(f"{self.at}: {sentence}")
