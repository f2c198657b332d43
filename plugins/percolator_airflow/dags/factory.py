"""`chain_dags`: from the folder of a chain to its DAGs.

A DAG file is read over and over, so nothing here imports the chain's code, Spark, or opens a connection.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import DAG, CronTriggerTimetable, DeltaTriggerTimetable

from percolator_airflow.chains import ChainFolder
from percolator_airflow.dags.document import document
from percolator_airflow.dags.settings import merged, refuse
from percolator_airflow.names import TAG, dag_ids
from percolator_core.observers.scheduling import DagDeclaration, Scheduling

if TYPE_CHECKING:
    from os import PathLike

    from percolator_core.observers import Chain

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""The start of all DAGs: no run is made up for what lies before now, so any day of the past is as good."""

_LONGEST_WAIT: Final = timedelta(minutes=10)
"""Between two tries of a task."""

Block = Mapping[str, Any] | bool


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


def chain_dags(
    path: str | PathLike[str],
    *,
    project: str | PathLike[str] | None = None,
    connection: str | None = None,
    namespace: str | None = None,
    load: Block | None = None,
    observe: Block | None = None,
    monitor: Block | None = None,
    maintain: Block | None = None,
    default_args: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    start_date: datetime | None = None,
) -> dict[str, DAG]:
    """The DAGs of a chain by their ids, for the globals of a DAG file.

    ::

        from percolator_airflow import chain_dags

        globals().update(chain_dags("../observers/webindex"))

    They are ``<chain>_load``, ``<chain>_observe``, ``<chain>_monitor`` and ``<chain>_maintain``. What they do
    is said by the ``airflow:`` block of the chain's ``chain.yaml``; these arguments count more, key by key.

    Args:
        path: the chain's folder; a relative one is looked for from the folder of the file that calls this.
        project: the folder that the chain's functions are imported from; found by itself when None.
        connection: the id of the Airflow connection of the store.
        namespace: in the store.
        load: as in the block, such as ``{"max_bad": 0}``; False: there is no such DAG.
        observe: likewise, such as ``{"engine": "local"}``.
        monitor: likewise.
        maintain: likewise.
        default_args: of all tasks, as of Airflow's DAG: ``on_failure_callback``, ``owner``, ``retries`` …
        tags: further tags of the DAGs.
        start_date: of the DAGs; no run is made up for the past in any case.

    Raises:
        ConfigurationError: with one line for each thing that is wrong with the chain or the arguments.
            Airflow shows it as the import error of the file.
    """
    here = _folder_of_caller()
    folder = ChainFolder.of(_located(here, path), None if project is None else _located(here, project))
    given: dict[str, Any] = {
        "connection": connection,
        "namespace": namespace,
        "load": load,
        "observe": observe,
        "monitor": monitor,
        "maintain": maintain,
    }
    for name, value in given.items():
        if value is True:
            raise refuse(f"{name}: is True; write {{}} for what the chain says, or False for no such DAG")
    plan = Plan(
        folder,
        merged(folder.declared, given),
        dict(default_args or {}),
        tuple(tags),
        start_date or EPOCH,
    )
    return {dag.dag_id: dag for part, make in _makers().items() if (dag := _made(plan, part, make))}


def _makers() -> dict[str, Callable[[Plan], DAG]]:
    from percolator_airflow.dags.load import load_dag
    from percolator_airflow.dags.maintain import maintain_dag
    from percolator_airflow.dags.monitor import monitor_dag
    from percolator_airflow.dags.observe import observe_dag

    return {"load": load_dag, "observe": observe_dag, "monitor": monitor_dag, "maintain": maintain_dag}


def _made(plan: Plan, part: str, make: Callable[[Plan], DAG]) -> DAG | None:
    return make(plan) if getattr(plan.settings, part).enabled else None


def _folder_of_caller() -> Path:
    """The folder of the file that calls `chain_dags`; the current directory if there is no such file."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    file = None if frame is None else frame.f_globals.get("__file__")
    return Path(file).absolute().parent if file else Path.cwd()


def _located(here: Path, path: str | PathLike[str]) -> str:
    return os.path.normpath(here / Path(path).expanduser())
