"""The four DAGs of a chain of plain functions, run on a real store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from percolator_core import Database
from percolator_core.admin.samples import samples
from percolator_core.admin.status import status
from percolator_core.notifications.activation import Registration
from tests.airflow.running import asset_events, map_names, pause, runs_of, states, xcom
from tests.airflow.shop import Shop
from tests.servers.plain import commit_of, die

if TYPE_CHECKING:
    from pyspark import SparkContext


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SparkContext]:
    """A running Spark for all tasks, each of which would otherwise start its own."""
    from percolator_core.spark.session import running_context

    with running_context(None, "local[2]", project=tmp_path) as context:
        yield context


def left_behind(db: Database) -> None:
    """A lock of a client that died during a commit."""
    transaction = db.begin()
    transaction.set("docs", "stuck", "text", b"never")
    db.client.one_call_a_tablet = True
    commit_of(transaction).prewrite()
    die(db)


def test_observers_run_in_generations_and_then_in_rounds_until_the_chain_is_idle(shop: Shop) -> None:
    dag = shop.load()["shop_observe"]
    assert {name: set(task.upstream_task_ids) for name, task in dag.task_dict.items()} == {
        "generation_1.split": set(),
        "generation_2.total": {"generation_1.split"},
        "generation_3.countdown": {"generation_2.total"},
        "until_idle": {"generation_3.countdown"},
    }
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
    # One task of the first run is cleared.
    assert set(shop.dags.run(dag, date=date, only="until_idle").values()) == {"success"}
    assert shop.cells()[b"a"] == before[b"a"]
    assert shop.cells()[b"b"] == {"n": b"2", "left": b"0", "rounds": b"2"}


def test_a_namespace_that_is_not_there_yet_is_idle(shop: Shop) -> None:
    dags = shop.load()
    for name in ("shop_observe", "shop_maintain"):
        assert "failed" not in shop.dags.run(dags[name]).values()
    assert shop.dags.run(dags["shop_monitor"]) == {"look": "success", "start_drain": "skipped"}


def test_derived_tables_are_assets_with_their_origin(shop: Shop) -> None:
    """A table gets an event from each task that ran an observer which writes it, and from no other."""
    dag = shop.load()["shop_observe"]
    assets = {
        name: ([one.uri for one in task.inlets], [one.uri for one in task.outlets if hasattr(one, "uri")])
        for name, task in dag.task_dict.items()
    }
    docs, sums = "percolator://store/shop/docs", "percolator://store/shop/sums"
    assert assets == {
        "generation_1.split": ([docs], [docs]),
        "generation_2.total": ([docs], [sums]),
        "generation_3.countdown": ([sums], [sums]),
        "until_idle": ([], []),
    }
    known = len(asset_events())
    shop.put(a=b"one")
    shop.dags.run(dag)
    assert asset_events()[known:] == [docs, sums, sums]
    idle = shop.dags.run(dag)
    assert idle == dict.fromkeys(list(assets)[:3], "skipped") | {"until_idle": "success"}
    shop.put(b=b"one")
    # The last task finds what the others left.
    assert shop.dags.run(dag, only="until_idle")["until_idle"] == "success"
    assert asset_events()[known + 3 :] == [docs, sums]


def test_a_repeated_last_task_reports_the_tables_of_all_observers(shop: Shop) -> None:
    last = shop.load()["shop_observe"].task_dict["until_idle"]
    [alias] = last.outlets
    found = {}
    for number in (1, 2):
        added: list[str] = []
        events = {alias: SimpleNamespace(add=lambda asset, added=added: added.append(asset.uri))}
        context = {"ti": SimpleNamespace(try_number=number), "outlet_events": events}
        last._post_execute_hook(context, {"observers": {}})
        found[number] = added
    assert found == {1: [], 2: ["percolator://store/shop/docs", "percolator://store/shop/sums"]}


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
    assert map_names("shop_load", "load_docs") == ["in/a.csv", "in/b.jsonl"]
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
        "split: 1 cell in quarantine, more than 0: correct the cause, then retry or discard them"
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
    # One queued run is enough.
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
                for task in ("resolve_locks", "collect_garbage", "maintain_bases")
                for part in range(4)
            },
        }
        assert status(db).locks == 0
        assert [len(db.history("docs", row, "text")) for row in ("a", "b")] == [1, 1]
        assert db.snapshot().get("docs", "a", "text") == b"three"
    assert shop.dags.run(dag) == found


def test_clean_up_goes_on_when_a_table_is_dropped_meanwhile(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from percolator_airflow.dags import maintain

    list_tablets = maintain.tablets_of

    def and_then_drop(db: Database) -> list[list[str | int]]:
        db.create_table("gone", tablets=3)
        found = list_tablets(db)
        db.drop_table("gone")
        return found

    monkeypatch.setattr(maintain, "tablets_of", and_then_drop)
    dag = shop.load("maintain={'keep': '1ms', 'parts': 2}")["shop_maintain"]
    for text in (b"one", b"two"):
        shop.put(a=text)
    assert set(shop.dags.run(dag).values()) == {"success"}
    with shop.connect() as db:
        assert len(db.history("docs", "a", "text")) == 1


def test_the_watcher_and_a_schedule_start_the_observers(shop: Shop) -> None:
    shop.declare("airflow: {observe: {engine: local}}\n")
    watched = shop.load("observe={'remind': '5s'}")["shop_observe"]
    (watcher,) = watched.schedule[0].watchers
    assert watcher.trigger.serialize()[1]["remind"] == 5
    shop.put(a=b"one")
    assert set(shop.dags.run(watched).values()) == {"success"}
    both = shop.load("observe={'schedule': '@daily'}")["shop_observe"]
    assert type(both.timetable).__name__ == "AssetOrTimeSchedule"
    assert set(shop.dags.run(both).values()) == {"success", "skipped"}
    timed = shop.load("observe={'schedule': '10m', 'watch': False}")["shop_observe"]
    assert type(timed.timetable).__name__ == "DeltaTriggerTimetable"
    by_hand = shop.load("observe={'watch': False}")["shop_observe"]
    assert by_hand.timetable.can_be_scheduled is False
