"""Resolving the locks that dead clients left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from percolator_airflow.operators.base import StoreOperator
from percolator_airflow.operators.values import Tablets, read_tablets, seconds, still_there
from percolator_core.errors import ConfigurationError

_CARRY_ON: Final = "what it resolved stays, and the next try carries on"


class ResolveLocksOperator(StoreOperator):
    """Rolls forward or back what dead clients left. Safe beside everything else, any number at a time.

    The result says how many locks were ``committed``, ``rolled_back``, or left because their client is
    ``live``.

    Args:
        chain, project, conn_id, namespace: as of `StoreOperator`; a chain is needed for its name alone.
        older_than: seconds that nobody has touched a lock, 0 or more.
        tablets: look at these only, pairs of a table and the number of a tablet; None is all.
        skip_missing: leave out tablets that are not there any more, rather than fail.
    """

    template_fields: Sequence[str] = (*StoreOperator.template_fields, "older_than", "tablets")

    def __init__(
        self,
        *,
        older_than: float = 30.0,
        tablets: Tablets | None = None,
        skip_missing: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.older_than = older_than
        self.tablets = tablets
        self.skip_missing = skip_missing

    def execute(self, context: Any) -> dict[str, int]:  # noqa: ARG002 - Airflow's signature
        """How many locks were resolved.

        Raises:
            AirflowFailException: the chain, the connection, a table or a number cannot be.
            AirflowException: the store was away, or the task was killed; the next try carries on.
        """
        with self.guarded(_CARRY_ON):
            age = seconds("older_than", self.older_than)
            tablets = read_tablets(self.tablets)
            if self.chain:
                self.folder()
            with self.hook().get_conn() as db:
                if self.skip_missing and tablets is not None:
                    tablets = still_there(db, tablets)
                try:
                    found = db.resolve_locks(timedelta(seconds=age), tablets=tablets)
                except ValueError as error:  # a tablet that is not there
                    raise ConfigurationError(str(error)) from None
        self.log.info(
            "%d locks committed, %d rolled back, %d left to clients that are alive",
            *(found.committed, found.rolled_back, found.live),
        )
        return asdict(found)
