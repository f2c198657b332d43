"""What the DAGs of one chain have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import DAG, CronTriggerTimetable, DeltaTriggerTimetable

from percolator_airflow.dags.document import document
from percolator_airflow.names import TAG, dag_ids

if TYPE_CHECKING:
    from percolator_airflow.chains import ChainFolder
    from percolator_core.observers import Chain
    from percolator_core.observers.scheduling import DagDeclaration, Scheduling

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""The start of all DAGs: no run is made up for what lies before now, so any day of the past is as good."""

_LONGEST_WAIT: Final = timedelta(minutes=10)
"""Between two tries of a task."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the DAGs of one chain have in common."""

    folder: ChainFolder
    settings: Scheduling
    default_args: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[str] = ()
    start_date: datetime = EPOCH

    @property
    def chain(self) -> Chain:
        """The chain, without its code."""
        return self.folder.declared

    @property
    def ids(self) -> dict[str, str]:
        """The ids of the DAGs by what each does."""
        return dag_ids(self.chain.name)

    def place(self) -> dict[str, Any]:
        """The arguments of all operators of this package: which chain, and where."""
        return {
            "chain": str(self.folder.path),
            "project": str(self.folder.project),
            "conn_id": self.settings.connection,
            "namespace": self.settings.namespace,
        }

    def dag(self, part: str, block: DagDeclaration, description: str, schedule: Any, **settings: Any) -> DAG:
        """One of the DAGs: never two runs of it at once, and none made up for the past."""
        default_args: dict[str, Any] = {
            "owner": self.settings.owner,
            "retries": self.settings.retries,
            "retry_delay": timedelta(seconds=self.settings.retry_delay),
            "retry_exponential_backoff": 2.0,
            "max_retry_delay": max(_LONGEST_WAIT, timedelta(seconds=self.settings.retry_delay)),
        }
        if block.pool is not None:
            default_args["pool"] = block.pool
        if block.timeout is not None:
            default_args["execution_timeout"] = timedelta(seconds=block.timeout)
        return DAG(
            dag_id=self.ids[part],
            description=description,
            schedule=schedule,
            doc_md=document(self.chain, part, description),
            start_date=self.start_date,
            catchup=False,
            max_active_runs=1,
            default_args=default_args | dict(self.default_args),
            tags=list(dict.fromkeys([TAG, self.chain.name, *self.settings.tags, *self.tags])),
            **settings,
        )

    def timetable(self, schedule: str | timedelta | None) -> Any:
        """A schedule of the declaration as Airflow has it."""
        if isinstance(schedule, timedelta):
            return DeltaTriggerTimetable(schedule)
        if schedule is None:
            return None
        return CronTriggerTimetable(schedule, timezone=self.settings.timezone)
