"""Load a test's DAG files like Airflow, and run the DAGs in this process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG


@dataclass
class Dags:
    """DAG files that are loaded like in Airflow, and run in this process."""

    folder: Path

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def bag(self) -> Any:
        """All DAGs of the folder, and the errors of files that have none: ``dags``, ``import_errors``."""
        from airflow.dag_processing.dagbag import DagBag

        return DagBag(str(self.folder), load_op_links=False)

    def load(self) -> dict[str, DAG]:
        """Return the DAGs by name; fail if a file has an error."""
        bag = self.bag()
        assert not bag.import_errors, "\n".join(bag.import_errors.values())
        return dict(bag.dags)

    def run(self, dag: DAG, *, date: datetime | None = None, only: str = "", **conf: Any) -> dict[str, str]:
        """The state of each task of a run by hand, mapped ones as ``name[0]``.

        ``conf`` are its parameters. A run of the same ``date`` is cleared and run again; of one with ``only``
        that task alone, the others stay done.
        """
        others = re.compile(rf"(?!{re.escape(only)}$).*") if only else None
        date = date or datetime.now(UTC)
        return states(dag.test(logical_date=date, run_conf=conf or None, mark_success_pattern=others))


def xcom(dag_id: str, task_id: str, key: str = "return_value") -> Any:
    """Return the last XCom of a task, or of the last part of a mapped task; None if there is none."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        found = (
            session.query(XComModel)
            .filter_by(dag_id=dag_id, task_id=task_id, key=key)
            .order_by(XComModel.timestamp.desc())
            .first()
        )
        return None if found is None else XComModel.deserialize_value(found)


def asset_events() -> list[str]:
    """Return the URIs of all updated assets, in order."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session

    with create_session() as session:
        events = session.query(AssetModel.uri).join(AssetEvent, AssetEvent.asset_id == AssetModel.id)
        return [uri for (uri,) in events.order_by(AssetEvent.id)]


def states(run: DagRun) -> dict[str, str]:
    """Return the state of each task of a run."""
    from airflow.utils.session import create_session

    with create_session() as session:
        return {
            one.task_id if one.map_index < 0 else f"{one.task_id}[{one.map_index}]": str(one.state)
            for one in run.get_task_instances(session=session)
        }


def runs_of(dag_id: str, state: str) -> int:
    """Return the number of a DAG's runs in a state."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        return int(session.query(DagRun).filter_by(dag_id=dag_id, state=state).count())


def pause(dag_id: str, *, paused: bool) -> None:
    """Pause or unpause a DAG."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        session.query(DagModel).filter_by(dag_id=dag_id).update({"is_paused": paused})


def forget_runs() -> None:
    """Delete all runs, so that no run of one test is queued in the next."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        for run in session.query(DagRun):
            session.delete(run)


def map_names(dag_id: str, task_id: str) -> list[str | None]:
    """Return the names of a mapped task's parts, in order."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    with create_session() as session:
        parts = session.query(TaskInstance).filter_by(dag_id=dag_id, task_id=task_id)
        return [part.rendered_map_index for part in parts.order_by(TaskInstance.map_index)]
