"""``@task.percolator``: a function whose first argument is an open transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from percolator_core import TransactionConflict, connect
from tests.airflow.project import CONN_ID, set_connection


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    url = f"embedded:{tmp_path}/store"
    set_connection(monkeypatch, host=url, extra={"namespace": "here"})
    with connect(url, "here") as db:
        db.create_table("docs")
        yield url


DAG = """
from airflow.sdk import DAG, task

with DAG("transactions", schedule=None):

    @task.percolator(conn_id="words")
    def write(t, word: str, *, ds=None, times: int = 1) -> dict[str, str]:
        assert ds, "the context comes by name"
        t.set("docs", word, "text", (word * times).encode())
        return {"word": word}

    @task.percolator(conn_id="words")
    def read(t, word):
        return t.get("docs", word, "text").decode()

    write("a", times=2) >> read.expand(word=["a", "a"])
    read.override(task_id="last")(write.override(task_id="more")("b")["word"])
"""


def test_in_a_dag_with_arguments_context_results_and_mapping(url: str, dags: Any) -> None:
    dags.write("transactions.py", DAG)
    states = dags.run(dags.load()["transactions"])
    assert states == dict.fromkeys(["write", "read[0]", "read[1]", "more", "last"], "success")
    with connect(url, "here") as db:
        assert [db.snapshot().get("docs", row, "text") for row in "ab"] == [b"aa", b"b"]


def operator(function: Any, **arguments: Any) -> Any:
    from airflow.sdk import DAG, task

    with DAG("unscheduled", schedule=None) as dag:
        task.percolator(conn_id=CONN_ID, **arguments)(function)()
    return dag.tasks[0]


def test_runs_again_after_a_conflict(url: str) -> None:
    seen = []

    def write(t: Any) -> int:
        seen.append(t.get("docs", "a", "text"))
        if len(seen) == 1:
            with connect(url, "here") as db, db.transaction() as other:
                other.set("docs", "a", "text", b"other")
        t.set("docs", "a", "text", b"mine")
        return len(seen)

    assert operator(write).execute({}) == 2
    assert seen == [None, b"other"]


def test_gives_up_after_so_many_attempts(url: str) -> None:
    from airflow.sdk.exceptions import AirflowException

    def write(t: Any) -> None:
        raise TransactionConflict("docs", b"a", "text", "newer commit")

    with pytest.raises(AirflowException, match="run the transaction again"):
        operator(write, attempts=2).execute({})


def test_writes_nothing_when_the_function_raises(url: str) -> None:
    def write(t: Any) -> None:
        t.set("docs", "a", "text", b"mine")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        operator(write).execute({})
    with connect(url, "here") as db:
        assert db.snapshot().get("docs", "a", "text") is None


def test_functions_that_cannot_be_are_refused_where_the_dag_is_written(airflow_home: Path) -> None:
    async def later(t: Any) -> None: ...

    with pytest.raises(ValueError, match="takes the transaction first"):
        operator(lambda: None)
    with pytest.raises(ValueError, match="a plain function"):
        operator(later)
    with pytest.raises(ValueError, match="attempts is 1 or more"):
        operator(lambda t: None, attempts=0, task_id="x")
