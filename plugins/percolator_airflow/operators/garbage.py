"""Collecting old versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from percolator_airflow.operators.base import StoreOperator
from percolator_airflow.operators.values import Tablets, read_tablets, seconds, still_there
from percolator_core.errors import ConfigurationError

_CARRY_ON: Final = "what it collected is gone, and the next try carries on"


class CollectGarbageOperator(StoreOperator):
    """Drops the versions that only old snapshots could see.

    Safe beside everything else, any number at a time.

    The result says up to where (``safe_point``, in microseconds), how many ``versions`` and ``rows`` went,
    and which ``locks`` were resolved before.

    Args:
        chain, project, conn_id, namespace: as of `StoreOperator`; a chain is needed for its name alone.
        keep: seconds, 0 or more; snapshots younger than this stay readable.
        tablets: collect in these only, pairs of a table and the number of a tablet; None is all.
        skip_missing: leave out tablets that are not there any more, rather than fail.
    """

    template_fields: Sequence[str] = (*StoreOperator.template_fields, "keep", "tablets")

    def __init__(
        self,
        *,
        keep: float = 3600.0,
        tablets: Tablets | None = None,
        skip_missing: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.keep = keep
        self.tablets = tablets
        self.skip_missing = skip_missing

    def execute(self, context: Any) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        """What was collected.

        Raises:
            AirflowFailException: the chain, the connection, a table or a number cannot be.
            AirflowException: the store was away, a transaction older than ``keep`` is still committing, or
                the task was killed; the next try carries on.
        """
        with self.guarded(_CARRY_ON):
            keep = seconds("keep", self.keep)
            tablets = read_tablets(self.tablets)
            if self.chain:
                self.folder()
            with self.hook().get_conn() as db:
                if self.skip_missing and tablets is not None:
                    tablets = still_there(db, tablets)
                try:
                    found = db.collect_garbage(timedelta(seconds=keep), tablets=tablets)
                except ValueError as error:  # a tablet that is not there
                    raise ConfigurationError(str(error)) from None
        self.log.info("%d versions and %d rows collected", found.versions, found.rows)
        return asdict(found)
