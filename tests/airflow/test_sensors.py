"""The sensor waits until a chain is idle."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.project import CONN_ID, Project, project_with_store


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    with project_with_store(tmp_path, monkeypatch) as words:
        words.activate()
        yield words


def sensor(words: Project, **arguments: Any) -> Any:
    from percolator_airflow import IdleSensor

    return IdleSensor(**{"task_id": "idle", "chain": words.chain, "conn_id": CONN_ID, **arguments})


def test_ends_at_once_when_it_is_idle(words: Project) -> None:
    sensor(words).execute({})


def test_defers_when_it_is_not(words: Project) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    from percolator_airflow.triggers import IdleTrigger

    words.put("a")
    with pytest.raises(TaskDeferred) as deferred:
        sensor(words, timeout=90).execute({})
    assert isinstance(deferred.value.trigger, IdleTrigger)
    assert deferred.value.trigger.serialize()[1] == {
        "chain": words.chain,
        "conn_id": CONN_ID,
        "namespace": None,
        "poll": 1.0,
    }
    assert deferred.value.method_name == "execute_complete"
    assert deferred.value.timeout is not None
    assert deferred.value.timeout.total_seconds() == 90


def test_the_event_ends_it(words: Project) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    task = sensor(words)
    task.execute_complete({}, {"chain": "words", "backlog": 0, "due": 0, "oldest": None})
    with pytest.raises(AirflowFailException, match="there is no connection 'x'"):
        task.execute_complete({}, {"error": "there is no connection 'x'"})


def test_looks_itself_when_it_may_not_defer(words: Project) -> None:
    from airflow.sdk.exceptions import AirflowSensorTimeout

    words.put("a")
    task = sensor(words, deferrable=False, timeout=0, poke_interval=0.01)
    with pytest.raises(AirflowSensorTimeout):
        task.execute({})


def test_what_cannot_be_is_told_at_once(words: Project) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match="there is no connection 'nowhere'"):
        sensor(words, conn_id="nowhere").execute({})


def test_in_a_dag_that_is_drained_meanwhile(words: Project, dags: Any) -> None:
    words.put("a", "b")
    dags.write(
        "waiting.py",
        f"""
from airflow.sdk import DAG
from percolator_airflow import IdleSensor

with DAG("waiting", schedule=None):
    IdleSensor(task_id="idle", chain={words.chain!r}, conn_id="words", poke_interval=0.05)
""",
    )
    dag = dags.load()["waiting"]
    drain = threading.Timer(1.0, words.drain)
    drain.start()
    try:
        assert dags.run(dag) == {"idle": "success"}
    finally:
        drain.join()
    assert words.counted() == 2
