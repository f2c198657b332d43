"""DAG files: their contents, their errors, and the time to read them."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from percolator_core import Chain
from tests.airflow.running import Dags
from tests.airflow.shop import DAG_FILE, Shop

ROOT = Path(__file__).parents[2]


def test_python_counts_more_than_yaml_key_by_key(shop: Shop) -> None:
    from percolator_airflow.dags.plan import merged

    shop.declare(
        """\
        airflow:
          namespace: there
          observe: {engine: local, budget: 1h}
          monitor: {thresholds: {backlog: 5, observers: {split: {oldest: 1m}, total: {oldest: 2m}}}}
          load: {sources: [{table: docs, paths: a}, {table: docs, paths: b}]}
        """
    )
    over = {
        "connection": "store",
        "namespace": None,
        "observe": {"budget": timedelta(minutes=5), "schedule": None},
        "monitor": {"thresholds": {"oldest": "3m", "observers": {"split": {"backlog": 7}}}},
        "load": {"sources": [{"table": "sums", "paths": Path("c")}]},
        "maintain": False,
    }
    found = merged(shop.chain(), over)
    assert (found.connection, found.namespace, found.maintain.enabled) == ("store", "there", False)
    assert (found.observe.engine, found.observe.budget) == ("local", 300)
    thresholds = found.monitor.thresholds
    assert (thresholds.backlog, thresholds.oldest) == (5, 180)
    assert (thresholds.observers["split"].oldest, thresholds.observers["split"].backlog) == (60, 7)
    assert thresholds.observers["total"].oldest == 120
    assert [(one.table, one.paths) for one in found.load.sources] == [("sums", ("c",))]


BROKEN = {
    "a chain": (
        "",
        "observe={'watch': False}",
        "chain.yaml:6: airflow.observ: is not a known key; did you mean 'observe'?",
    ),
    "an argument": (
        "",
        "observe={'engine': 'sparc'}",
        "chain_dags(…): observe.engine: 'sparc' is not known; did you mean 'spark'?",
    ),
    "a misspelt default argument": (
        "",
        "observe={'default_args': {'retires': 3}}",
        "airflow.default_args: tasks of Airflow have no argument 'retires'; did you mean 'retries'?",
    ),
    "no such part": ("", "monitor=True", "chain_dags(…): monitor: is True; write {} for the chain"),
    "an observer": (
        "",
        "monitor={'thresholds': {'observers': {'splt': {}}}}",
        "monitor.thresholds.observers.splt: the chain has no observer 'splt'; did you mean 'split'?",
    ),
    "a table": (
        "",
        "load={'sources': [{'table': 'dosc', 'paths': 'in'}]}",
        "load.sources[0].table: table 'dosc' is not declared; did you mean 'docs'?",
    ),
}


@pytest.mark.parametrize(
    ("what", "arguments", "expected"), [(name, *rest[1:]) for name, rest in BROKEN.items()], ids=BROKEN
)
def test_what_is_wrong_is_one_import_error_and_other_files_have_their_dags(
    shop: Shop, what: str, arguments: str, expected: str
) -> None:
    shop.dags.write("other.py", "from airflow.sdk import DAG\nother = DAG('other', schedule=None)\n")
    shop.declare("airflow: {observ: {}}\n" if what == "a chain" else "")
    shop.dags.write("shop.py", DAG_FILE.format(chain=str(shop.folder), arguments=arguments))
    bag = shop.dags.bag()
    assert set(bag.dags) == {"other"}
    ((file, error),) = bag.import_errors.items()
    assert file.endswith("shop.py")
    assert expected in error


def test_all_dags_have_what_makes_them_safe_and_say_what_they_do(shop: Shop) -> None:
    shop.declare(
        "airflow:\n"
        "  default_args: {owner: ada, retries: 4, pool: many, retry_delay: 20m}\n"
        "  tags: [nightly]\n"
        "  timezone: Europe/Berlin\n"
    )
    arguments = "tags=['mine'], default_args={'priority_weight': 7}"
    dags = shop.load(f"{arguments}, observe={{'default_args': {{'pool': 'few', 'execution_timeout': '1h'}}}}")
    assert sorted(dags) == ["shop_load", "shop_maintain", "shop_monitor", "shop_observe"]
    for dag in dags.values():
        assert (dag.catchup, dag.max_active_runs) == (False, 1)
        assert dag.tags == {"percolator", "shop", "nightly", "mine"}
        assert "| 3 | `countdown` | `sums.left` |" in dag.doc_md
        assert "flowchart LR" in dag.doc_md
        for task in dag.tasks:
            assert (task.owner, task.priority_weight) == ("ada", 7)
            if task.task_id != "start_drain":
                assert task.retries == 4
            assert task.pool == ("few" if dag.dag_id == "shop_observe" else "many")
            assert task.retry_delay == task.max_retry_delay == timedelta(minutes=20)
    task = dags["shop_observe"].task_dict["until_idle"]
    assert (task.pool, task.execution_timeout) == ("few", timedelta(hours=1))
    assert task.retry_exponential_backoff == 2.0
    assert dags["shop_maintain"].timetable.timezone == "Europe/Berlin"
    assert sorted(shop.load("load=False, maintain={'enabled': False}")) == ["shop_monitor", "shop_observe"]


def test_what_a_run_by_hand_loads() -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from percolator_airflow.dags.load import chosen

    declared = [{"table": "docs", "sources": ["in"], "key": None}]
    run = {"paths": None, "table": "docs", "aside": "", "max_bad": 3}
    assert chosen(declared, ["docs"], run) == [declared[0] | {"aside": None, "max_bad": 3}]
    (named,) = chosen(declared, ["docs"], run | {"paths": ["x", " "], "format": "csv", "key": "id"})
    assert (named["table"], named["sources"], named["key"], named["encoding"]) == ("docs", ["x"], "id", None)
    with pytest.raises(AirflowFailException, match="set the parameter table to one of docs, sums"):
        chosen(declared, ["docs", "sums"], {"paths": ["x"], "table": None})


def test_every_table_has_a_task_of_its_own_whatever_it_is_called(shop: Shop) -> None:
    from percolator_airflow.dags.load import task_ids

    names = ["other", "a b", "a_b", "a/b", "a_b_2", "other_2"]
    declared = "".join(f'  "{name}": {{tablets: 1}}\n' for name in names)
    chain = shop.folder / "chain.yaml"
    chain.write_text(f"{chain.read_text()}{declared}")
    sources = [{"table": name, "paths": "in"} for name in names]
    dag = shop.load(f"load={{'sources': {sources}}}")["shop_load"]
    loads = {task for task in dag.task_ids if task.startswith("load_")}
    assert loads == {"load_other", *task_ids(names).values()}
    assert len(loads) == 7
    assert len(next(iter(task_ids(["x" * 250]).values()))) <= 200


def test_what_a_form_says_is_no_template(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """With templates, a user who may start a run could read the password of any connection."""
    from percolator_airflow import LoadOperator

    given: list[tuple[Any, ...]] = []

    def execute(self: Any, context: Any) -> dict[str, Any]:
        given.append((self.sources, self.base_url, self.columns))
        return {"table": self.table, "aside": None, **dict.fromkeys(COUNTS, 0)}

    monkeypatch.setattr(LoadOperator, "execute", execute)
    secret = "{{ conn.store.host }}"
    dag = shop.load("load={'sources': [{'table': 'docs', 'paths': '{{ ds }}'}]}")["shop_load"]
    assert shop.dags.run(dag)["load_docs[0]"] == "success"
    for table in ("docs", "sums"):
        found = shop.dags.run(dag, table=table, paths=[secret], base_url=secret, columns=secret)
        assert list(found.values()).count("success") == 4, found
    assert given == [(["{{ ds }}"], None, None), *[([secret], secret, secret)] * 2]


COUNTS = ("read", "new", "changed", "unchanged", "repeated", "deleted", "bad")


def test_paths_are_found_where_the_folder_of_dags_is_a_link(shop: Shop, tmp_path: Path) -> None:
    from percolator_airflow.chains import ChainFolder

    project = tmp_path / "elsewhere"
    (project / "dags").mkdir(parents=True)
    (project / "observers").mkdir()
    shop.folder.rename(project / "observers" / "shop")
    (project / "steps.py").write_text((shop.top / "steps.py").read_text())
    (project / "dags" / "shop.py").write_text(DAG_FILE.format(chain="../observers/shop", arguments=""))
    (shop.dags.folder / "below").mkdir()
    (shop.dags.folder / "below" / "mine").symlink_to(project / "dags")
    dag = shop.dags.load()["shop_observe"]
    assert dag.task_dict["until_idle"].chain == str(project / "observers" / "shop")
    assert dag.task_dict["until_idle"].project == str(project)
    (tmp_path / "link").symlink_to(project)
    with ChainFolder.of(tmp_path / "link/observers/shop").imported():
        assert "steps" in sys.modules
    assert "steps" not in sys.modules, "modules of a project behind a link are forgotten, too"


@pytest.mark.parametrize(
    ("sources", "params"),
    [
        ("", {}),
        ("", {"paths": ["a"], "table": "docs", "format": "csv", "max_bad": 0}),
        ("[{'table': 'docs', 'paths': 'in'}]", {"table": None, "columns": "a=b"}),
    ],
)
def test_the_form_takes_what_it_offers(shop: Shop, sources: str, params: dict[str, Any]) -> None:
    from airflow.sdk.exceptions import ParamValidationError

    dag = shop.load(f"load={{'sources': {sources or []}}}")["shop_load"]
    dag.params.update(params)
    dag.params.validate()
    with pytest.raises(ParamValidationError):
        dag.params.update({"format": "cvs"})


READING = """
import socket, sys
import airflow
from airflow.dag_processing.dagbag import DagBag
def refuse(*args): raise AssertionError("a connection at import")
socket.socket.connect = refuse
calls = 0
def count(frame, event, argument):
    global calls
    # Compiled files beside a module change the way it is imported.
    if event == "call" and not frame.f_code.co_filename.startswith("<frozen importlib"):
        calls += 1
before = len(sys.modules)
sys.setprofile(count)
bag = DagBag(sys.argv[1], load_op_links=False, collect_dags=False)
bag.process_file(sys.argv[1])
sys.setprofile(None)
assert not bag.import_errors, bag.import_errors
assert len(bag.dags) == 4, bag.dags
heavy = [name for name in sys.modules if name.split(".")[0] in ("pyspark", "py4j", "pyarrow", "observers")]
print(calls, len(sys.modules) - before, heavy)
"""


def test_reading_a_dag_file_is_quick_and_touches_nothing() -> None:
    """Airflow reads it every few seconds. The test counts calls, because seconds depend on the machine."""
    path = ROOT / "dags" / "webindex.py"
    ended = subprocess.run(
        [sys.executable, "-c", READING, str(path)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr
    calls, imported, heavy = ended.stdout.splitlines()[-1].split(maxsplit=2)
    assert heavy == "[]"
    # 278,700 calls of functions and 577 modules took a third of a second.
    assert int(calls) < 400_000
    assert int(imported) < 650


@pytest.mark.parametrize("name", ["webindex", "pagedeps"])
def test_the_shipped_dag_files(dags: Dags, name: str) -> None:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(ROOT / "dags" / f"{name}.py"), load_op_links=False)
    assert not bag.import_errors
    assert sorted(bag.dags) == [f"{name}_{part}" for part in ("load", "maintain", "monitor", "observe")]
    generations = [sorted(one.name for one in each) for each in Chain.load(ROOT / "observers" / name).order()]
    groups = bag.dags[f"{name}_observe"].task_group_dict
    for number, names in enumerate(generations, 1):
        assert sorted(groups[f"generation_{number}"].children) == [
            f"generation_{number}.{one}" for one in names
        ]


@pytest.mark.parametrize("template", ["typed", "html", "words"])
def test_a_new_project_has_its_dags(
    template: Literal["typed", "html", "words"], tmp_path: Path, dags: Dags
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    from percolator_core.cli.init import write_project

    write_project(tmp_path / "made", template)
    bag = DagBag(str(tmp_path / "made" / "dags"), load_op_links=False)
    assert not bag.import_errors
    assert sorted(bag.dags) == ["made_load", "made_maintain", "made_monitor", "made_observe"]
    assert bag.dags["made_observe"].task_dict["until_idle"].engine == "local"
    loads = [task for task in bag.dags["made_load"].tasks if task.task_type == "GivenLoadOperator"]
    assert loads
    assert {task.partial_kwargs["engine"] for task in loads} == {"local"}
