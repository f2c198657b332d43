"""Collect old versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from percolator_airflow.operators.tablets import TabletsOperator
from percolator_airflow.operators.values import seconds

_CARRY_ON: Final = "the next try collects the rest"


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
        with self.opened(_CARRY_ON) as (db, tablets):
            keep = timedelta(seconds=seconds("keep", self.keep))
            found = db.collect_garbage(keep, tablets=tablets)
        self.log.info("%d versions and %d rows dropped", found.versions, found.rows)
        return asdict(found)
