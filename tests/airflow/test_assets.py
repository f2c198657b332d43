"""Assets name a connection, a namespace and a table, always in the same way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.airflow.project import make_project
from tests.airflow.running import Dags


@pytest.mark.parametrize(
    ("given", "uri"),
    [
        ("percolator://mine/words/docs", "percolator://mine/words/docs"),
        ("percolator://mine/docs", "percolator://mine/docs"),
        ("PERCOLATOR://mine//words/docs/", "percolator://mine/words/docs"),
        ("percolator://mine/a%20b/%64ocs", "percolator://mine/a%20b/docs"),
        ("percolator://mine/words?dirty=words", "percolator://mine/words?dirty=words"),
    ],
)
def test_a_uri_is_written_in_one_way(airflow_home: Path, given: str, uri: str) -> None:
    from airflow.sdk import Asset

    assert Asset(given).uri == uri
    assert Asset(uri).uri == uri


@pytest.mark.parametrize(
    "given",
    [
        "percolator://mine",
        "percolator://mine/a/b/c",
        "percolator:///docs",
        "percolator://127.0.0.1:6379/docs",
        "percolator://user@mine/docs",
        "percolator://mine/words?other=1",
        "percolator://mine/words/docs?dirty=words",
    ],
)
def test_others_are_refused(airflow_home: Path, given: str) -> None:
    from airflow.sdk import Asset

    with pytest.raises(ValueError, match="percolator://"):
        Asset(given)


def test_the_asset_of_a_table(airflow_home: Path) -> None:
    from percolator_airflow import table_asset

    assert table_asset("docs").uri == "percolator://percolator_default/docs"
    assert table_asset("a/b", "mine", "some words").uri == "percolator://mine/some%20words/a%2Fb"
    assert table_asset("docs", "mine", "words", group="words").group == "words"


def test_the_asset_of_a_chain_that_has_something_to_do(tmp_path: Path, airflow_home: Path) -> None:
    from percolator_airflow import DirtyTrigger, dirty_asset

    words = make_project(tmp_path, "")
    asset = dirty_asset(words.chain, "mine", remind=60)
    assert asset.name == asset.uri == "percolator://mine/words?dirty=words"
    assert dirty_asset(words.chain).name != asset.name
    trigger = asset.watchers[0].trigger
    assert isinstance(trigger, DirtyTrigger)
    assert trigger.serialize()[1] == {
        "chain": words.chain,
        "conn_id": "mine",
        "namespace": None,
        "poll": 0.5,
        "settle": 0.2,
        "remind": 60,
    }


def test_a_chain_beside_the_dag_file(airflow_home: Path, dags: Dags) -> None:
    make_project(dags.folder / "mine", "")
    text = "from airflow.sdk import DAG\nfrom percolator_airflow import dirty_asset\n"
    dags.write("mine/own.py", f"{text}own = DAG('own', schedule=[dirty_asset('observers/words')])\n")
    (watcher,) = dags.load()["own"].schedule[0].watchers
    assert watcher.trigger.serialize()[1]["chain"] == str(dags.folder / "mine/observers/words")
