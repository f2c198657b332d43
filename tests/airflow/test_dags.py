"""The four DAGs of a chain of plain functions, run on a real store."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from percolator_core import Chain, Database, connect
from percolator_core.notifications.activation import Registration
from percolator_core.samples import samples
from percolator_core.status import status
from tests.airflow.running import Dags, asset_events, pause, runs_of, states, xcom
from tests.core.servers import commit_of, die

if TYPE_CHECKING:
    from pyspark import SparkContext

ROOT = Path(__file__).parents[2]

CHAIN = """\
version: 1
chain: shop
tables:
  docs: {tablets: 4}
  sums: {tablets: 2}
"""
OBSERVERS = {
    "split": "observe: docs.text\nwrites: docs.words\nretry: {attempts: 1}",
    "total": "observe: docs.words\nwrites: [sums.n, sums.left]",
    "countdown": "observe: sums.left\nwrites: [sums.left, sums.rounds]\nfeedback: true",
}
FUNCTIONS = """\
def split(t, cell):
    text = t.get("docs", cell.row, "text") or b""
    if text == b"bad":
        raise ValueError("no such text")
    t.set("docs", cell.row, "words", b"%d" % len(text.split()))


def total(t, cell):
    words = t.get("docs", cell.row, "words")
    t.set("sums", cell.row, "n", words)
    t.set("sums", cell.row, "left", words)


def countdown(t, cell):
    left = int(t.get("sums", cell.row, "left"))
    if left:
        t.set("sums", cell.row, "left", b"%d" % (left - 1))
        rounds = int(t.get("sums", cell.row, "rounds") or 0)
        t.set("sums", cell.row, "rounds", b"%d" % (rounds + 1))
"""
DAG_FILE = """\
from percolator_airflow import chain_dags

globals().update(chain_dags({chain!r}, connection="store", {arguments}))
"""


@dataclass
class Shop:
    """A project with one chain, a DAG file for it, and its store."""

    top: Path
    dags: Dags
    url: str
    arguments: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.top / "observers" / "shop"

    def declare(self, block: str = "") -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "chain.yaml").write_text(CHAIN + textwrap.dedent(block))
        for name, text in OBSERVERS.items():
            (self.folder / f"{name}.yaml").write_text(
                f"version: 1\nobserver: {name}\nfunction: steps:{name}\n{text}\n"
            )
        (self.top / "steps.py").write_text(FUNCTIONS)

    def load(self, arguments: str = "observe={'engine': 'local', 'watch': False}") -> dict[str, Any]:
        text = DAG_FILE.format(chain=str(self.folder), arguments=arguments)
        self.dags.write("shop.py", text)
        return self.dags.load()

    def connect(self) -> Database:
        return connect(self.url, "shop")

    def chain(self) -> Chain:
        return Chain.load(self.folder, import_functions=False)

    def put(self, **rows: bytes) -> None:
        with self.connect() as db:
            self.chain().create_tables(db)
            with db.transaction() as t:
                for row, text in rows.items():
                    t.set("docs", row, "text", text)

    def cells(self, table: str = "sums") -> dict[bytes, dict[str, bytes]]:
        with self.connect() as db:
            return dict(db.snapshot().scan(table))


@pytest.fixture
def shop(tmp_path: Path, dags: Dags, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    url = f"embedded:{tmp_path / 'state'}"
    monkeypatch.setenv("AIRFLOW_CONN_STORE", f'{{"conn_type": "percolator", "host": "{url}"}}')
    made = Shop(tmp_path, dags, url)
    made.declare()
    with connect(url):  # keeps the server, which would start for each task
        yield made


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SparkContext]:
    """A running Spark, which the tasks use; each would start one of its own."""
    from percolator_core.spark.session import running_context

    with running_context(None, "local[2]", project=tmp_path) as context:
        yield context


def left_behind(db: Database) -> None:
    """A lock of a client that died in the midst of a commit."""
    transaction = db.begin()
    transaction.set("docs", "stuck", "text", b"never")
    db.client.one_call_a_tablet = True
    commit_of(transaction).prewrite()
    die(db)


def test_observers_run_in_generations_and_then_in_rounds_until_the_chain_is_idle(shop: Shop) -> None:
    dag = shop.load()["shop_observe"]
    assert [sorted(dag.task_group_dict)] == [["generation_1", "generation_2", "generation_3"]]
    assert dag.task_dict["until_idle"].upstream_task_ids == {"generation_3.countdown"}
    shop.put(a=b"one two three", b=b"one")
    names = ["generation_1.split", "generation_2.total", "generation_3.countdown", "until_idle"]
    assert shop.dags.run(dag) == dict.fromkeys(names, "success")
    assert shop.cells()[b"a"] == {"n": b"3", "left": b"0", "rounds": b"3"}
    assert shop.cells()[b"b"] == {"n": b"1", "left": b"0", "rounds": b"1"}


def test_the_observers_again_do_nothing_twice(shop: Shop) -> None:
    dag = shop.load()["shop_observe"]
    date = datetime(2026, 3, 1, tzinfo=UTC)
    shop.put(a=b"one two three")
    shop.dags.run(dag, date=date)
    before = shop.cells()
    shop.dags.run(dag)
    shop.put(b=b"x y")
    # One cleared task of the first run, while the others stay as they are.
    assert set(shop.dags.run(dag, date=date, only="until_idle").values()) == {"success"}
    assert shop.cells()[b"a"] == before[b"a"]
    assert shop.cells()[b"b"] == {"n": b"2", "left": b"0", "rounds": b"2"}


def test_a_namespace_that_is_not_there_yet_is_idle(shop: Shop) -> None:
    dags = shop.load()
    for name in ("shop_observe", "shop_maintain"):
        assert "failed" not in shop.dags.run(dags[name]).values()
    assert shop.dags.run(dags["shop_monitor"]) == {"look": "success", "start_drain": "skipped"}


LOAD = """\
airflow:
  load:
    aside: bad
    sources:
      - {table: docs, paths: in/a.csv, key: id, columns: [text]}
      - {table: docs, paths: [in/b.jsonl], key: id, columns: {body: text}}
"""


@pytest.mark.spark
def test_the_declared_sources_are_loaded_and_what_is_put_aside_is_told(
    shop: Shop, spark: SparkContext
) -> None:
    shop.declare(LOAD)
    folder = shop.top / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("id,text\na,one two\nb,one\n")
    (folder / "b.jsonl").write_text('{"id": "c", "body": "x y z"}\nno json\n')
    (folder / "c.csv").write_text("id,n\nz,7\n")
    dags = shop.load("observe={'watch': False, 'tasks': 1}")
    load, observe = dags["shop_load"], dags["shop_observe"]
    first = {
        "inputs_of_docs": "success",
        "load_docs[0]": "success",
        "load_docs[1]": "success",
        "inputs_of_other": "success",
        "load_other": "skipped",
        "report": "success",
    }
    assert shop.dags.run(load) == first
    report = xcom("shop_load", "report")
    assert report["tables"]["docs"] == {
        "read": 4, "new": 3, "changed": 0, "unchanged": 0, "repeated": 0, "deleted": 0, "bad": 1
    }  # fmt: skip
    assert [Path(file).parent for file in report["aside"]] == [shop.top / "bad"]
    assert asset_events()[-2:] == ["percolator://store/shop/docs"] * 2

    assert set(shop.dags.run(observe).values()) == {"success"}
    assert shop.cells()[b"c"] == {"n": b"3", "left": b"0", "rounds": b"3"}

    found = shop.dags.run(load, paths=["in/c.csv"], table="sums", key="id", format="csv", max_bad=0)
    assert (found["load_docs"], found["load_other[0]"], found["report"]) == ("skipped", "success", "success")
    assert shop.cells()[b"z"] == {"n": b"7"}
    assert asset_events()[-1] == "percolator://store/shop/sums"


def test_a_breach_fails_the_look_out_with_a_sentence_and_leaves_a_history(shop: Shop) -> None:
    dags = shop.load("observe={'engine': 'local', 'watch': False}, monitor={'on_breach': 'warn'}")
    shop.put(a=b"bad", b=b"fine")
    shop.dags.run(dags["shop_observe"])
    assert shop.dags.run(dags["shop_monitor"]) == {"look": "success", "start_drain": "skipped"}
    seen = xcom("shop_monitor", "look")
    assert seen["breaches"] == [
        "split: 1 cell in quarantine, more than 0: see why, mend it, and put them back or discard them"
    ]
    assert (seen["quarantine"], seen["backlog"], seen["workers"], seen["drains"]) == (1, 0, 0, 0)
    dag = shop.load("observe={'engine': 'local', 'watch': False}")["shop_monitor"]
    run = dag.test()
    assert states(run) == {"look": "failed", "start_drain": "skipped"}
    assert run.state == "failed"
    with shop.connect() as db:
        found = samples(db)
        assert [one.observers["split"].failed for one in found] == [1, 1]


def test_the_look_out_starts_the_observers_where_nobody_is_at_work(shop: Shop) -> None:
    dags = shop.load()
    shop.put(a=b"one")
    shop.dags.run(dags["shop_observe"])  # known to Airflow from here on
    shop.put(a=b"one two")
    waiting = runs_of("shop_observe", "queued")
    assert shop.dags.run(dags["shop_monitor"]) == {"look": "success", "start_drain": "success"}
    assert runs_of("shop_observe", "queued") == waiting + 1
    # One that waits already is enough.
    assert shop.dags.run(dags["shop_monitor"]) == {"look": "success", "start_drain": "skipped"}
    assert runs_of("shop_observe", "queued") == waiting + 1


def test_the_look_out_starts_the_observers_although_there_is_a_breach(shop: Shop) -> None:
    dags = shop.load()
    shop.put(a=b"bad")
    shop.dags.run(dags["shop_observe"])
    shop.put(b=b"one")
    pause("shop_observe", paused=True)
    assert shop.dags.run(dags["shop_monitor"]) == {"look": "failed", "start_drain": "skipped"}
    pause("shop_observe", paused=False)
    assert shop.dags.run(dags["shop_monitor"]) == {"look": "failed", "start_drain": "success"}


def test_the_look_out_leaves_a_store_alone_that_has_a_worker(shop: Shop) -> None:
    dags = shop.load()
    shop.put(a=b"one")
    with shop.connect() as db:
        Registration(db, shop.chain().digest, "here").refresh()
        assert shop.dags.run(dags["shop_monitor"]) == {"look": "success", "start_drain": "skipped"}
    assert xcom("shop_monitor", "look")["due"] == 1


def test_clean_up_goes_over_the_tablets_in_parts(shop: Shop) -> None:
    dag = shop.load("maintain={'keep': '1ms', 'older_than': '1ms', 'parts': 4}")["shop_maintain"]
    for text in (b"one", b"two", b"three"):
        shop.put(a=text, b=text)
    with shop.connect() as dead:
        left_behind(dead)
    with shop.connect() as db:
        assert status(db).locks == 1
        found = shop.dags.run(dag)
        assert found == {
            "tablets": "success",
            **{
                f"{task}[{part}]": "success"
                for task in ("resolve_locks", "collect_garbage")
                for part in range(4)
            },
        }
        assert status(db).locks == 0
        assert [len(db.history("docs", row, "text")) for row in ("a", "b")] == [1, 1]
        assert db.snapshot().get("docs", "a", "text") == b"three"
    assert shop.dags.run(dag) == found


def test_python_counts_more_than_yaml_key_by_key(shop: Shop) -> None:
    from percolator_airflow.dags.settings import merged

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
    "no such part": ("", "monitor=True", "chain_dags(…): monitor: is True; write {} for what the chain says"),
    "an observer": (
        "",
        "monitor={'thresholds': {'observers': {'splt': {}}}}",
        "monitor.thresholds.observers.splt: the chain has no observer 'splt'; did you mean 'split'?",
    ),
    "a table": (
        "",
        "load={'sources': [{'table': 'dosc', 'paths': 'in'}]}",
        "load.sources[0].table: the chain has no table 'dosc'; did you mean 'docs'?",
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


def test_the_watcher_and_a_schedule_start_the_observers(shop: Shop) -> None:
    shop.declare("airflow: {observe: {engine: local}}\n")
    watched = shop.load("observe={'remind': '5s'}")["shop_observe"]
    (watcher,) = watched.schedule[0].watchers
    assert watcher.trigger.serialize()[1]["remind"] == 5
    shop.put(a=b"one")
    assert set(shop.dags.run(watched).values()) == {"success"}
    both = shop.load("observe={'schedule': '@daily'}")["shop_observe"]
    assert type(both.timetable).__name__ == "AssetOrTimeSchedule"
    assert set(shop.dags.run(both).values()) == {"success"}
    timed = shop.load("observe={'schedule': '10m', 'watch': False}")["shop_observe"]
    assert type(timed.timetable).__name__ == "DeltaTriggerTimetable"
    by_hand = shop.load("observe={'watch': False}")["shop_observe"]
    assert by_hand.timetable.can_be_scheduled is False


def test_all_dags_have_what_makes_them_safe_and_say_what_they_do(shop: Shop) -> None:
    shop.declare("airflow: {owner: ada, tags: [nightly], retries: 4, timezone: Europe/Berlin}\n")
    arguments = "tags=['mine'], default_args={'priority_weight': 7}"
    dags = shop.load(f"{arguments}, observe={{'pool': 'few', 'timeout': '1h'}}")
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
    with pytest.raises(AirflowFailException, match="add the parameter table, one of docs, sums"):
        chosen(declared, ["docs", "sums"], {"paths": ["x"], "table": None})


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


def test_reading_a_dag_file_is_quick_and_touches_nothing() -> None:
    program = """
import sys, time, socket
import airflow
from airflow.dag_processing.dagbag import DagBag
def refuse(*args): raise AssertionError("a connection at import")
socket.socket.connect = refuse
began = time.process_time()
bag = DagBag(sys.argv[1], load_op_links=False, collect_dags=False)
bag.process_file(sys.argv[1])
took = time.process_time() - began
assert not bag.import_errors, bag.import_errors
assert len(bag.dags) == 4, bag.dags
print(took, sum(name.split(".")[0] in ("pyspark", "py4j", "pyarrow", "observers") for name in sys.modules))
"""
    path = ROOT / "dags" / "webindex.py"
    took = []
    for _ in range(3):
        # Seconds of the processor: others use it as well while tests run.
        ended = subprocess.run(
            [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False, cwd=ROOT
        )
        assert ended.returncode == 0, ended.stderr
        seconds, imported = ended.stdout.split()[-2:]
        assert imported == "0"
        took.append(float(seconds))
        if took[-1] <= 0.5:
            return
    assert min(took) <= 0.5, took


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


def test_a_new_project_has_its_dags(tmp_path: Path, dags: Dags) -> None:
    from airflow.dag_processing.dagbag import DagBag

    from percolator_core.cli.init import write_project

    write_project(tmp_path / "made")
    bag = DagBag(str(tmp_path / "made" / "dags"), load_op_links=False)
    assert not bag.import_errors
    assert sorted(bag.dags) == ["words_load", "words_maintain", "words_monitor", "words_observe"]
    assert bag.dags["words_observe"].task_dict["until_idle"].engine == "local"
