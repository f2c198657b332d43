"""Collecting old versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from percolator_airflow.operators.tablets import TabletsOperator
from percolator_airflow.operators.values import seconds

_CARRY_ON: Final = "what it collected is gone, and the next try carries on"


class CollectGarbageOperator(TabletsOperator):
    """Drops the versions that only old snapshots could see.

    Safe beside everything else, any number at a time.

    The result says up to where (``safe_point``, in microseconds), how many ``versions`` and ``rows`` went,
    and which ``locks`` were resolved before.

    Args:
        chain, conn_id, namespace, tablets, skip_missing: as of `TabletsOperator`.
        keep: seconds, 0 or more; snapshots younger than this stay readable.
    """

    template_fields: Sequence[str] = (*TabletsOperator.template_fields, "keep")

    def __init__(self, *, keep: float = 3600.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.keep = keep

    def execute(self, context: Any) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        """What was collected.

        Raises:
            AirflowFailException: the chain, the connection, a table or a number cannot be.
            AirflowException: the store was away, a transaction older than ``keep`` is still committing, or
                the task was killed; the next try carries on.
        """
        with self.opened(_CARRY_ON) as (db, tablets):
            keep = timedelta(seconds=seconds("keep", self.keep))
            found = db.collect_garbage(keep, tablets=tablets)
        self.log.info("%d versions and %d rows collected", found.versions, found.rows)
        return asdict(found)
