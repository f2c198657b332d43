"""The common part of a chain's DAGs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import DAG, BaseOperator, CronTriggerTimetable, DeltaTriggerTimetable

from percolator_airflow.dags.document import document
from percolator_airflow.names import TAG, dag_ids
from percolator_core.errors import ConfigurationError
from percolator_core.observers.loading import CHAIN_FILE
from percolator_core.observers.yaml_file import did_you_mean

if TYPE_CHECKING:
    from percolator_airflow.chains import ChainFolder
    from percolator_core.observers import Chain
    from percolator_core.observers.scheduling import DagDeclaration, Scheduling

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""The default start date of the DAGs. Any day of the past works: no run is created for the past."""

_DEFAULTS: Final[Mapping[str, Any]] = {
    "retries": 2,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": 2.0,
}
"""Arguments of all tasks; the chain and the DAG file override them."""

_LONGEST_WAIT: Final = timedelta(minutes=10)
"""The longest wait between two tries of a task, unless the first wait is longer."""

_TASK_ARGUMENTS: Final = frozenset(inspect.signature(BaseOperator.__init__).parameters) - {"self", "kwargs"}
"""The known default arguments. Airflow would ignore a misspelled argument, so it is refused here."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a chain's DAGs."""

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
        """The ids of the DAGs by part."""
        return dag_ids(self.chain.name)

    def place(self) -> dict[str, Any]:
        """Return the arguments that all operators of this package share: the chain and its store."""
        return {
            "chain": str(self.folder.path),
            "project": str(self.folder.project),
            "conn_id": self.settings.connection,
            "namespace": self.settings.namespace,
        }

    def dag(self, part: str, block: DagDeclaration, description: str, schedule: Any, **settings: Any) -> DAG:
        """Return one of the DAGs; it has one active run at most, and no runs for the past."""
        default_args = self._default_args(block)
        return DAG(
            dag_id=self.ids[part],
            description=description,
            schedule=schedule,
            doc_md=document(self.chain, part, description),
            start_date=self.start_date,
            catchup=False,
            max_active_runs=1,
            default_args=default_args,
            tags=list(dict.fromkeys([TAG, self.chain.name, *self.settings.tags, *self.tags])),
            **settings,
        )

    def _default_args(self, block: DagDeclaration) -> dict[str, Any]:
        """Merge the arguments of package, chain, block and DAG file; later values replace earlier ones."""
        declared = self.settings.default_args | block.default_args
        unknown = sorted(declared.keys() - _TASK_ARGUMENTS)
        if unknown:
            raise ConfigurationError(
                f"{self.folder.path / CHAIN_FILE}: airflow.default_args: tasks of Airflow have no argument "
                f"{unknown[0]!r}{did_you_mean(unknown[0], _TASK_ARGUMENTS)}"
            )
        found: dict[str, Any] = {**_DEFAULTS, **declared, **self.default_args}
        delay = found["retry_delay"]
        first_wait = delay if isinstance(delay, timedelta) else timedelta(seconds=delay or 0)
        return {"max_retry_delay": max(_LONGEST_WAIT, first_wait)} | found

    def timetable(self, schedule: str | timedelta | None) -> Any:
        """Return Airflow's timetable for a declared schedule."""
        if isinstance(schedule, timedelta):
            return DeltaTriggerTimetable(schedule)
        if schedule is None:
            return None
        return CronTriggerTimetable(schedule, timezone=self.settings.timezone)
