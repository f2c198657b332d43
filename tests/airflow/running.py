"""DAGs of a test: their files, as Airflow loads them, and their runs, all in this process."""

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
    """Files of DAGs, loaded as Airflow loads them, and run in this process."""

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
        """The DAGs by name; no file is wrong."""
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
    """What a task left last; of a mapped one, its last part. None if there is nothing."""
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
    """The URIs of all assets that were updated, in order."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session

    with create_session() as session:
        events = session.query(AssetModel.uri).join(AssetEvent, AssetEvent.asset_id == AssetModel.id)
        return [uri for (uri,) in events.order_by(AssetEvent.id)]


def states(run: DagRun) -> dict[str, str]:
    """The state of each task of a run."""
    from airflow.utils.session import create_session

    with create_session() as session:
        return {
            one.task_id if one.map_index < 0 else f"{one.task_id}[{one.map_index}]": str(one.state)
            for one in run.get_task_instances(session=session)
        }


def runs_of(dag_id: str, state: str) -> int:
    """How many runs of a DAG are in a state."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        return int(session.query(DagRun).filter_by(dag_id=dag_id, state=state).count())


def pause(dag_id: str, *, paused: bool) -> None:
    """Pause a DAG that Airflow knows, or let it go on."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        session.query(DagModel).filter_by(dag_id=dag_id).update({"is_paused": paused})


def forget_runs() -> None:
    """Delete all runs, so that none of one test waits in the next."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        for run in session.query(DagRun):
            session.delete(run)


def map_names(dag_id: str, task_id: str) -> list[str | None]:
    """What the parts of a mapped task are called, in order."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    with create_session() as session:
        parts = session.query(TaskInstance).filter_by(dag_id=dag_id, task_id=task_id)
        return [part.rendered_map_index for part in parts.order_by(TaskInstance.map_index)]
