"""Resolving the locks that dead clients left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from percolator_airflow.operators.tablets import TabletsOperator
from percolator_airflow.operators.values import seconds

_CARRY_ON: Final = "what it resolved stays, and the next try carries on"


class ResolveLocksOperator(TabletsOperator):
    """Rolls forward or back what dead clients left. Safe beside everything else, any number at a time.

    The result says how many locks were ``committed``, ``rolled_back``, or left because their client is
    ``live``.

    Args:
        chain, conn_id, namespace, tablets, skip_missing: as of `TabletsOperator`.
        older_than: seconds that nobody has touched a lock, 0 or more.
    """

    template_fields: Sequence[str] = (*TabletsOperator.template_fields, "older_than")

    def __init__(self, *, older_than: float = 30.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.older_than = older_than

    def execute(self, context: Any) -> dict[str, int]:  # noqa: ARG002 - Airflow's signature
        """How many locks were resolved.

        Raises:
            AirflowFailException: the chain, the connection, a table or a number cannot be.
            AirflowException: the store was away, or the task was killed; the next try carries on.
        """
        with self.opened(_CARRY_ON) as (db, tablets):
            age = timedelta(seconds=seconds("older_than", self.older_than))
            found = db.resolve_locks(age, tablets=tablets)
        self.log.info(
            "%d locks committed, %d rolled back, %d left to clients that are alive",
            *(found.committed, found.rolled_back, found.live),
        )
        return asdict(found)
