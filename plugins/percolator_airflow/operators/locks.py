"""Resolve the locks of dead clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from percolator_airflow.operators.tablets import TabletsOperator
from percolator_airflow.operators.values import seconds

_CARRY_ON: Final = "the next try resolves the rest"


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
        with self.opened(_CARRY_ON) as (db, tablets):
            age = timedelta(seconds=seconds("older_than", self.older_than))
            found = db.resolve_locks(age, tablets=tablets)
        self.log.info(
            "%d locks committed, %d rolled back, %d left because their clients are alive",
            *(found.committed, found.rolled_back, found.live),
        )
        return asdict(found)
