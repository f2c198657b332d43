"""Maintain the columnar bases of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from percolator_airflow.operators.tablets import TabletsOperator

_CARRY_ON: Final = "the next try continues"


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
        with self.opened(_CARRY_ON) as (db, tablets):
            based = db.maintainer().tables()
            for table in based if tablets is None else sorted({table for table, _ in tablets} & {*based}):
                some: Sequence[tuple[str, int]] | None = None
                if tablets is not None:
                    some = [one for one in tablets if one[0] == table]
                done[table] = asdict(db.flush(table, tablets=some, rate=self.rate, share=self.share))
                self.log.info("%s: %d rows moved to the base", table, done[table]["rows"])
        return done
