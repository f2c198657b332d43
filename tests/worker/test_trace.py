"""What became of a row: every run that its changes caused, found again in what the store keeps."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from percolator_core import ConfigurationError, TableDefinition, Worker
from percolator_core.admin.quarantine import Quarantine
from percolator_core.admin.rerun import rerun
from percolator_core.admin.trace import Outcome, Trace, trace
from tests.chains import chain_of, dirty_of, put, watch
from tests.servers.plain import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from percolator_core import Cell, Chain, Database, Transaction
    from percolator_core.admin.trace import Run
    from percolator_core.observers import Observer


def traced(db: Database, *observers: Observer) -> Chain:
    chain = replace(chain_of(*observers), trace=True)
    chain.create_tables(db)
    return chain


def drain(db: Database, chain: Chain) -> int:
    return Worker(db, chain).run_until_idle(PATIENCE).ran


def names(found: Trace) -> list[str]:
    return [run.observer for run in found.runs]


def outcome(found: Trace) -> Outcome:
    [change] = found.changes
    [only] = change.outcomes
    return only


def split(t: Transaction, cell: Cell) -> None:
    for word in (t.get("docs", cell.row, "text") or b"").split():
        t.set("sums", word, "count", b"1")
        t.set("sums", word, "by", cell.row)


def count(t: Transaction, cell: Cell) -> None:
    t.set("docs", b"seen " + cell.row, "title", b"1")
    t.notify("sums", "all", "dirty")


def add(t: Transaction, cell: Cell) -> None:
    t.set("sums", cell.row, "total", b"1")


def three(db: Database) -> Chain:
    return traced(
        db,
        watch("split", split, "docs.text", writes=("sums.count",)),
        watch("count", count, "sums.count", writes=("sums.dirty", "docs.title")),
        watch("add", add, "sums.dirty", mode="weak"),
    )


def looping(most: int) -> Callable[[Transaction, Cell], None]:
    def down(t: Transaction, cell: Cell) -> None:
        number = int(t.get("docs", cell.row, "text") or b"0")
        if number < most:
            t.set("docs", cell.row, "text", b"%d" % (number + 1))

    return down


def feeding_back(db: Database, most: int) -> Chain:
    return traced(db, watch("down", looping(most), "docs.text", writes=("docs.text",), feedback=True))


def boom(t: Transaction, cell: Cell) -> None:
    raise ValueError("no such word")


@pytest.mark.parametrize("one_call_a_tablet", [False, True])
def test_every_run_is_found_with_its_times_and_its_writes(db: Database, one_call_a_tablet: bool) -> None:
    db.client.one_call_a_tablet = one_call_a_tablet
    chain = three(db)
    put(db, "other", b"d e f")
    at = put(db, "a", b"x")
    drain(db, chain)
    found = trace(db, chain, "docs", "a")
    assert names(found) == ["split", "count", "add"]
    first, second, last = found.runs
    [version] = db.history("sums", "x", "count")
    assert (first.start_timestamp, first.commit_timestamp) == (version.start_ts, version.commit_ts)
    assert [(one.table, one.row, one.column, one.kind) for one in first.cells] == [
        ("sums", b"x", "count", "put"),
        ("sums", b"x", "by", "put"),
    ]
    assert {(one.column, one.kind) for one in second.cells} == {("dirty", "notify"), ("title", "put")}
    assert [run.written for run in found.runs] == [2, 2, 1]
    [change] = found.changes
    assert (change.timestamp, change.kind, change.row, change.column) == (at, "put", b"a", "text")
    assert change.outcomes == (Outcome("split", "ran", 1, (first.start_timestamp - at) / 1e6),)
    [[caused], [notified], none] = [run.changes for run in found.runs]
    assert (caused.row, caused.column, caused.timestamp) == (b"x", "count", first.commit_timestamp)
    assert (notified.kind, notified.outcomes[0].run, none) == ("notify", 3, ())
    assert last.commit_timestamp > last.start_timestamp > second.commit_timestamp
    assert found.seconds == (last.commit_timestamp - at) / 1e6
    assert (found.waiting, found.unrecorded, found.unfollowed, found.uncertain) == (0, 0, 0, 0)


def test_a_run_of_two_causes_is_there_once(db: Database) -> None:
    chain = three(db)
    put(db, "a", b"x y z")
    ran = drain(db, chain)
    found = trace(db, chain, "docs", "a")
    assert len(found.runs) == ran
    assert names(found)[:4] == ["split", "count", "count", "count"]
    woken = [each.run for run in found.runs if run.observer == "count" for each in run.changes[0].outcomes]
    assert len(woken) == 3
    assert set(woken) == {run.number for run in found.runs if run.observer == "add"}
    seen = [run.changes_seen for run in found.runs if run.observer == "add"]
    assert sum(seen) == 3


def test_a_loop_ends_and_is_cut_where_one_asks(db: Database) -> None:
    chain = feeding_back(db, 6)
    put(db, "a", b"0")
    ran = drain(db, chain)
    found = trace(db, chain, "docs", "a", change="all")
    assert len(found.runs) == ran == 7
    assert len(found.changes) == 1, "those that runs wrote are found there, and are no roots"
    assert [run.changes_seen for run in found.runs] == [1] * 7
    shallow = trace(db, chain, "docs", "a", change=found.changes[0].timestamp or 0, depth=3)
    assert (len(shallow.runs), shallow.unfollowed) == (3, 1)
    few = trace(db, chain, "docs", "a", change=found.changes[0].timestamp or 0, limit=2)
    assert (len(few.runs), few.unfollowed) == (2, 1)


def test_several_changes_that_became_one_run(db: Database) -> None:
    chain = traced(db, watch("look", lambda t, cell: None, "docs.text"))
    put(db, "a", b"0")
    drain(db, chain)
    times = [put(db, "a", b"%d" % number) for number in range(3)]
    drain(db, chain)
    latest = trace(db, chain, "docs", "a")
    assert [change.timestamp for change in latest.changes] == times[2:]
    assert latest.runs[0].changes_seen == 3
    every = trace(db, chain, "docs", "a", change="all")
    assert [change.outcomes[0].run for change in every.changes] == [1, 2, 2, 2]
    assert [run.changes_seen for run in every.runs] == [1, 3]
    second = trace(db, chain, "docs", "a", change=times[1])
    assert [change.timestamp for change in second.changes] == [times[1]]
    assert second.runs == latest.runs


def test_a_change_during_a_run_belongs_to_the_next_one(db: Database) -> None:
    times: list[int] = []

    def look(t: Transaction, cell: Cell) -> None:
        if not times:
            times.append(put(db, "a", b"2"))

    chain = traced(db, watch("look", look, "docs.text"))
    first = put(db, "a", b"1")
    drain(db, chain)
    found = trace(db, chain, "docs", "a", change="all")
    assert [change.timestamp for change in found.changes] == [first, *times]
    assert [change.outcomes[0].run for change in found.changes] == [1, 2]
    assert [run.changes_seen for run in found.runs] == [1, 1]
    assert found.runs[0].commit_timestamp > times[0] > found.runs[0].start_timestamp


def test_the_run_of_a_change_long_ago_is_found_behind_many_others(db: Database) -> None:
    chain = traced(db, watch("look", lambda t, cell: None, "docs.text"))
    times: list[int] = []
    for number in range(30):
        times.append(put(db, "a", b"%d" % number))
        drain(db, chain)
    runs = [trace(db, chain, "docs", "a", change=at).runs[0] for at in times]
    assert len({run.start_timestamp for run in runs}) == 30
    assert all(run.changes_seen == 1 for run in runs)


def test_two_observers_of_one_cell_and_two_columns_of_a_row(db: Database) -> None:
    chain = traced(
        db,
        watch("one", lambda t, cell: None, "docs.text", "docs.title"),
        watch("two", lambda t, cell: None, "docs.text"),
    )
    with db.transaction() as t:
        t.set("docs", "a", "text", b"1")
        t.delete("docs", "a", "title")
    drain(db, chain)
    found = trace(db, chain, "docs", "a")
    assert {(change.column, change.kind) for change in found.changes} == {
        ("text", "put"),
        ("title", "delete"),
    }
    assert sorted((run.observer, run.column) for run in found.runs) == [
        ("one", "text"),
        ("one", "title"),
        ("two", "text"),
    ]
    [title] = trace(db, chain, "docs", "a", "title").changes
    assert title.column == "title"


def test_what_waits_says_for_what(db: Database) -> None:
    chain = traced(db, watch("look", boom, "docs.text"))
    put(db, "a", b"1")
    index = dirty_of(db, chain)
    assert outcome(trace(db, chain, "docs", "a")) == Outcome("look", "pending")
    [lease], _ = index.claim(1)
    assert outcome(trace(db, chain, "docs", "a")) == Outcome("look", "leased")
    db.store.run(index.postpone(lease, 3600, failed=True))
    found = trace(db, chain, "docs", "a")
    assert outcome(found) == Outcome("look", "retrying", attempts=1)
    assert (found.waiting, found.runs, found.seconds) == (1, (), None)


def test_a_lease_that_is_over_waits_for_a_worker(db: Database) -> None:
    chain = traced(db, watch("look", boom, "docs.text"))
    put(db, "a", b"1")
    leases, _ = dirty_of(db, chain).claim(1, lease=0.001)
    assert leases
    while db.timestamp() <= leases[0].deadline:
        pass
    assert outcome(trace(db, chain, "docs", "a")) == Outcome("look", "pending")


def test_what_is_in_quarantine_is_shown_with_its_error(db: Database) -> None:
    chain = traced(
        db,
        watch("split", split, "docs.text", writes=("sums.count",)),
        watch("count", boom, "sums.count"),
    )
    put(db, "a", b"x")
    drain(db, chain)
    found = trace(db, chain, "docs", "a")
    [given_up] = found.runs[0].changes[0].outcomes
    assert (given_up.state, given_up.attempts) == ("quarantined", 3)
    assert given_up.error == "ValueError: no such word"
    assert (found.quarantined, found.waiting) == (1, 0)
    Quarantine(db, chain).retry()
    assert trace(db, chain, "docs", "a").runs[0].changes[0].outcomes == (Outcome("count", "pending"),)


def test_what_was_written_before_the_observer_was_active(db: Database) -> None:
    db.create_table("docs", 4)
    put(db, "a", b"1")
    chain = traced(db, watch("look", lambda t, cell: None, "docs.text"))
    assert outcome(trace(db, chain, "docs", "a")) == Outcome("look", "unobserved")


def test_without_recording_there_are_the_runs_of_the_row_alone(db: Database) -> None:
    chain = replace(three(db), trace=False)
    put(db, "a", b"x")
    drain(db, chain)
    found = trace(db, chain, "docs", "a")
    assert names(found) == ["split"]
    assert (found.runs[0].recorded, found.runs[0].cells, found.unrecorded) == (False, (), 1)
    assert found.runs[0].seconds > 0


def test_a_rerun_with_newer_code_is_told_beside_the_first_run(db: Database) -> None:
    first = traced(db, watch("look", lambda t, cell: None, "docs.text"))
    at = put(db, "a", b"1")
    drain(db, first)
    second = traced(db, watch("look", lambda t, cell: None, "docs.text", revision=2))
    assert rerun(db, second, "look").marked == 1
    waits = trace(db, second, "docs", "a")
    assert [each.state for each in waits.changes[0].outcomes] == ["ran", "pending"]
    drain(db, second)
    found = trace(db, second, "docs", "a")
    [change] = found.changes
    assert change.timestamp == at
    assert [(each.run, each.again) for each in change.outcomes] == [(1, False), (2, True)]
    assert [run.revision for run in found.runs] == [1, 2]
    assert [run.changes_seen for run in found.runs] == [1, 1]


def test_notifications_from_outside_show_the_runs_that_they_woke(db: Database) -> None:
    chain = three(db)
    assert trace(db, chain, "sums", "all").changes == ()
    runs: list[Run] = []
    for _ in range(2):
        with db.transaction() as t:
            t.notify("sums", "all", "dirty")
        assert outcome_states(trace(db, chain, "sums", "all"))[-1] == "pending"
        drain(db, chain)
        runs += trace(db, chain, "sums", "all").runs
    assert len({run.start_timestamp for run in runs}) == 2
    every = trace(db, chain, "sums", "all", change="all")
    assert [run.start_timestamp for run in every.runs] == [run.start_timestamp for run in runs]
    [change] = every.changes
    assert (change.kind, change.timestamp, change.outcomes[0].lag) == ("notify", None, None)
    since = trace(db, chain, "sums", "all", change=runs[0].start_timestamp + 1)
    assert [run.start_timestamp for run in since.runs] == [runs[1].start_timestamp]


def outcome_states(found: Trace) -> list[str]:
    return [each.state for each in found.outcomes]


def test_a_notification_of_the_row_follows_the_change_that_caused_it(db: Database) -> None:
    def changed(t: Transaction, cell: Cell) -> None:
        t.notify("sums", cell.row, "dirty")

    chain = traced(
        db,
        watch("changed", changed, "sums.count", writes=("sums.dirty",)),
        watch("add", add, "sums.dirty", mode="weak"),
    )
    with db.transaction() as t:
        t.set("sums", "all", "count", b"1")
    drain(db, chain)
    found = trace(db, chain, "sums", "all")
    assert [(change.column, change.kind) for change in found.changes] == [
        ("count", "put"),
        ("dirty", "notify"),
    ]
    assert names(found) == ["changed", "add"]


def test_what_garbage_collection_dropped_is_not_made_up(db: Database) -> None:
    chain = three(db)
    put(db, "a", b"x")
    drain(db, chain)
    assert names(trace(db, chain, "docs", "a")) == ["split", "count", "add"]
    put(db, "x", b"2", table="sums", column="count")
    drain(db, chain)
    db.collect_garbage(keep=timedelta(0))
    found = trace(db, chain, "docs", "a")
    assert names(found) == ["split"], "the run of the later write must not pass for the one that is gone"
    assert outcome_states(found) == ["ran", "collected"]
    assert found.uncertain == 2
    put(db, "b", b"y")
    drain(db, chain)
    assert trace(db, chain, "docs", "b").uncertain == 0


def test_nothing_is_written(db: Database) -> None:
    chain = three(db)
    put(db, "a", b"x")
    drain(db, chain)
    before = [list(db.snapshot().scan(table)) for table in ("docs", "sums")]
    versions = db.history("sums", "x", "count")
    assert trace(db, chain, "docs", "a") == trace(db, chain, "docs", "a")
    assert [list(db.snapshot().scan(table)) for table in ("docs", "sums")] == before
    assert db.history("sums", "x", "count") == versions


def test_a_table_that_was_dropped_is_not_followed(db: Database) -> None:
    def write(t: Transaction, cell: Cell) -> None:
        t.set("gone", "a", "x", b"1")

    observers = watch("write", write, "docs.text", writes=("gone.x",)), watch("look", count, "gone.x")
    tables = (TableDefinition("docs", 1), TableDefinition("gone", 1))
    chain = replace(chain_of(*observers, tables=tables), trace=True)
    chain.create_tables(db)
    put(db, "a", b"1")
    Worker(db, chain).run_until_idle(PATIENCE)
    db.drop_table("gone")
    found = trace(db, chain, "docs", "a")
    assert [(run.observer, run.written, run.changes) for run in found.runs] == [("write", 1, ())]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"column": "size"}, ConfigurationError, r"watches docs\.size: they watch docs\.text"),
        ({"table": "dogs"}, ConfigurationError, "watches a column of dogs"),
        ({"depth": 0}, ValueError, "depth is 1 or more"),
        ({"limit": 0}, ValueError, "limit is 1 or more"),
        ({"change": 0}, ValueError, "change is 1 or more"),
    ],
)
def test_refusals(db: Database, arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    chain = traced(db, watch("look", lambda t, cell: None, "docs.text"))
    settings = {"table": "docs", "row": "a"} | arguments
    with pytest.raises(error, match=words):
        trace(db, chain, **settings)
    assert trace(db, chain, "docs", "a").changes == ()
