"""Reruns: every cell that is marked is run once more, whatever happens meanwhile, and no other."""

from __future__ import annotations

import dataclasses
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import percolator_core
from percolator_core import Cell, ConfigurationError, Hash, PrimaryKey, Table, UnknownColumn, Worker
from percolator_core.admin import rerun as rerun_module
from percolator_core.admin.quarantine import Quarantine
from percolator_core.admin.rerun import CellCounts, RerunCounts, rerun
from percolator_core.admin.status import status
from percolator_core.layout.acknowledgements import Ack
from percolator_core.layout.keys import acknowledgement
from percolator_core.notifications.ack import acknowledge
from percolator_core.schema.predicates import ColumnExpression, Predicate
from percolator_core.scripts.calls import Call
from percolator_core.store import Store
from percolator_core.store.packing import Command
from percolator_core.tables.model import definition_of
from percolator_core.transaction.commit import Commit
from percolator_core.transaction.transaction import Transaction
from tests.chains import chain_of, dirty_of, put, watch
from tests.servers.plain import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from percolator_core import Chain, Database
    from percolator_core.notifications.dirty import Lease
    from percolator_core.observers import Observer
    from percolator_core.worker import Counts

ROWS = [f"d{number:02}" for number in range(20)]


class Copy:
    """An observer that copies a text to ``sums.copy``, and counts its runs that began by row."""

    def __init__(self) -> None:
        self.ran: dict[bytes, int] = {}
        self.change: Callable[[bytes], bytes] = bytes

    def __call__(self, t: Transaction, cell: Cell) -> None:
        self.ran[cell.row] = self.ran.get(cell.row, 0) + 1
        text = t.get("docs", cell.row, "text")
        value = None if text is None else self.change(text)
        if value is not None and t.get("sums", cell.row, "copy") != value:
            t.set("sums", cell.row, "copy", value)


@pytest.fixture
def copy() -> Copy:
    return Copy()


@pytest.fixture
def chain(db: Database, copy: Copy) -> Chain:
    made = chain_of(watch("copy", copy, "docs.text", writes=("sums.copy",)))
    made.create_tables(db)
    return made


def drain(db: Database, chain: Chain) -> Counts:
    return Worker(db, chain).run_until_idle(PATIENCE)


def at_revision(chain: Chain, revision: int) -> Chain:
    """The same chain with newer code."""
    one: Observer
    [one] = chain.observers.values()
    return chain_of(dataclasses.replace(one, revision=revision))


def write_all(db: Database, chain: Chain, copy: Copy | None = None) -> None:
    """Write a text to every row, have it observed, and forget the runs."""
    with db.transaction() as t:
        for row in ROWS:
            t.set("docs", row, "text", row.encode())
    drain(db, chain)
    if copy is not None:
        copy.ran.clear()


def begin_run(db: Database, held: Lease) -> Transaction:
    transaction = Transaction(db.client)
    assert acknowledge(transaction, held, "strong") is not None
    return transaction


def claim(db: Database, chain: Chain, lease: float = 5.0) -> Lease:
    [held], _ = dirty_of(db, chain).claim(10, lease)
    return held


def ack_of(db: Database, row: bytes) -> Any:
    acked = acknowledgement("copy", b"text")
    [version] = Transaction(db.client).versions("docs", row, [acked])
    return version


@pytest.mark.parametrize("one_call_a_tablet", [False, True])
def test_everything_is_redone_exactly_once(
    db: Database, chain: Chain, copy: Copy, one_call_a_tablet: bool
) -> None:
    db.client.one_call_a_tablet = one_call_a_tablet
    write_all(db, chain, copy)
    with db.transaction() as t:
        t.delete("docs", "d03", "text")
    drain(db, chain)
    assert copy.ran == {b"d03": 1}
    copy.ran.clear()
    counts = rerun(db, chain, "copy")
    assert counts == RerunCounts(20, 20, 20, columns={"docs.text": CellCounts(20, 20, 20)})
    assert (counts.looked_at, counts.chosen, counts.marked) == (20, 20, 20)
    done = drain(db, chain).observers["copy"]
    assert (done.ran, done.collapsed, done.conflicts) == (20, 0, 0)
    assert copy.ran == dict.fromkeys(map(str.encode, ROWS), 1)
    assert drain(db, chain).ran == 0


def test_cells_that_are_dirty_are_chosen_and_stay_dirty(db: Database, chain: Chain, copy: Copy) -> None:
    write_all(db, chain, copy)
    put(db, "d00", b"changed")
    put(db, "new", b"new")
    counts = rerun(db, chain, "copy")
    assert (counts.looked_at, counts.chosen, counts.marked) == (21, 21, 19)
    assert rerun(db, chain, "copy").marked == 0
    assert drain(db, chain).ran == 21
    assert set(copy.ran.values()) == {1}


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        (["row='d07'"], ["d07"]),
        (["row = 'no such'"], []),
        (["row^='d1'"], ROWS[10:]),
        (["row>='d05'", "row<'d07'"], ["d05", "d06"]),
        (["row>'d17'", "row<='d19'", "row!='d18'"], ["d19"]),
        (["row<'d05'", "row>'d05'"], []),
        (["text>'d16'"], ["d17", "d18", "d19"]),
        (["text^='d0' and language='en'"], ["d02", "d04"]),
        (["language!='en'"], ["d06"]),
        ([ColumnExpression("text") <= b"d01"], ["d00", "d01"]),
    ],
)
def test_a_part_is_redone(
    db: Database, chain: Chain, copy: Copy, where: list[str | Predicate], rows: list[str]
) -> None:
    with db.transaction() as t:
        for row, language in (("d02", b"en"), ("d04", b"en"), ("d06", b"de"), ("d11", b"en")):
            t.set("docs", row, "language", language)
    write_all(db, chain, copy)
    assert rerun(db, chain, "copy", where).chosen == len(rows)
    drain(db, chain)
    assert sorted(copy.ran) == [row.encode() for row in rows]


class Priced(Table, name="priced", partition=[Hash("name", buckets=3)]):
    name: PrimaryKey[str]
    price: int | None = None


def test_typed_values_are_compared(db: Database) -> None:
    chain = chain_of(watch("look", lambda t, cell: None, "priced.price"), tables=(definition_of(Priced),))
    chain = dataclasses.replace(chain, models={"priced": Priced})
    chain.create_tables(db)
    with db.transaction() as t:
        for name, price in (("a", 9), ("b", 10), ("c", -1), ("d", 3)):
            t.insert(Priced(name=name, price=price))
    drain(db, chain)
    with db.transaction() as t:
        t.remove(Priced, name="d")
    db.add_column(Grown, "stock")
    drain(db, chain)

    def chosen(*where: str | Predicate) -> int:
        return rerun(db, chain, "look", where, dry_run=True).chosen

    worth = ColumnExpression("price")
    assert (chosen(), chosen(worth > 8), chosen("price > 8"), chosen(worth < 0, "name = 'c'")) == (4, 2, 2, 1)
    assert (chosen("revision < 2", worth >= 0), chosen("revision<1")) == (2, 0)
    # What has no value is null; what was removed has not even the default of a later column.
    assert (chosen("stock = 5"), chosen("price is null"), chosen("name = 'd'")) == (3, 0, 1)
    with pytest.raises(TypeError, match="price: "):
        chosen(worth == b"1")
    with pytest.raises(UnknownColumn, match="has no column 'prize'"):
        chosen("prize = 1")


class Grown(Table, name="priced", partition=[Hash("name", buckets=3)]):
    name: PrimaryKey[str]
    price: int | None = None
    stock: int = 5


def test_a_raw_table_is_compared_with_bytes(db: Database, chain: Chain, copy: Copy) -> None:
    write_all(db, chain, copy)
    with pytest.raises(TypeError, match="text: "):
        rerun(db, chain, "copy", [ColumnExpression("text") == "d01"])
    assert rerun(db, chain, "copy", ["text=x'643031'"], dry_run=True).chosen == 1


def test_only_what_older_code_dealt_with(db: Database, chain: Chain, copy: Copy) -> None:
    write_all(db, chain, copy)
    newer = at_revision(chain, 2)
    put(db, "d00", b"changed")
    put(db, "new", b"new")
    drain(db, newer)
    copy.ran.clear()
    assert rerun(db, newer, "copy", ["revision<2"], dry_run=True).chosen == 19
    assert drain(db, newer).ran == 0
    counts = rerun(db, newer, "copy", ["revision<2"])
    assert (counts.looked_at, counts.chosen, counts.marked) == (21, 19, 19)
    drain(db, newer)
    assert copy.ran == dict.fromkeys(map(str.encode, ROWS[1:]), 1)
    assert rerun(db, newer, "copy", ["revision<2"]).chosen == 0
    assert rerun(db, newer, "copy", ["revision=2"], dry_run=True).chosen == 21
    assert Ack.unpack(ack_of(db, b"d05").value).revision == 2
    assert [one.revision for one in status(db, newer).observers] == [2]
    assert [one.revision for one in status(db).observers] == [None]


def test_a_new_observer_is_given_what_is_there_already(db: Database, chain: Chain, copy: Copy) -> None:
    write_all(db, chain, copy)
    late = Copy()
    both = chain_of(chain.observers["copy"], watch("late", late, "docs.text"))
    both.create_tables(db)
    assert rerun(db, both, "late", ["revision=0"]).marked == 20
    assert drain(db, both).observers["late"].ran == 20
    assert len(late.ran) == 20
    assert not copy.ran


def test_what_follows_is_redone_where_something_changed(db: Database, copy: Copy) -> None:
    followed = []

    def follow(t: Transaction, cell: Cell) -> None:
        followed.append(cell.row)

    chain = chain_of(
        watch("copy", copy, "docs.text", writes=("sums.copy",)), watch("follow", follow, "sums.copy")
    )
    chain.create_tables(db)
    write_all(db, chain)
    followed.clear()
    copy.change = lambda text: text.upper() if text in {b"d03", b"d11"} else text
    rerun(db, chain, "copy")
    counts = drain(db, chain)
    assert counts.observers["copy"].ran == 20
    assert sorted(followed) == [b"d03", b"d11"]


def test_a_worker_that_comes_between_the_two_steps_redoes_the_cells_later(
    db: Database, chain: Chain, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks that are there before the acknowledgements are gone would be taken for done, and cleared."""
    write_all(db, chain, copy)
    commit = Transaction.commit
    between: list[int] = []

    def work_then_commit(self: Transaction) -> int:
        if not between and any(mutation.table == "docs" for mutation in self.mutations()):
            between.append(0)
            between[0] = drain(db, chain).total().ran
        return commit(self)

    monkeypatch.setattr(Transaction, "commit", work_then_commit)
    assert rerun(db, chain, "copy").chosen == 20
    assert between == [0]
    drain(db, chain)
    assert copy.ran == dict.fromkeys(map(str.encode, ROWS), 1)


def test_a_run_that_ended_before_does_not_clear_the_mark(db: Database, chain: Chain, copy: Copy) -> None:
    """It has committed, and is about to clear its mark, when the rerun takes its acknowledgement away."""
    put(db, "a", b"1")
    held = claim(db, chain)
    run = begin_run(db, held)
    run.commit()
    assert rerun(db, chain, "copy").marked == 0  # the mark of the run is there still
    dirty = dirty_of(db, chain)
    assert not db.store.run(dirty.clear(held, "strong", run.start_timestamp))
    drain(db, chain)
    assert copy.ran == {b"a": 1}


def test_a_failure_from_before_does_not_end_in_quarantine(db: Database, chain: Chain, copy: Copy) -> None:
    put(db, "a", b"1")
    held = claim(db, chain)
    run = begin_run(db, held)
    rerun(db, chain, "copy")
    record = {"error": "", "traceback": "", "attempts": 3, "time": 1}
    dirty = dirty_of(db, chain)
    assert not db.store.run(dirty.quarantine(held, "strong", run.start_timestamp, record))
    drain(db, chain)
    assert copy.ran == {b"a": 1}


def test_a_run_under_way_begins_again(db: Database, chain: Chain, copy: Copy) -> None:
    """A first one too, which has no acknowledgement yet: it read what was there before."""
    put(db, "a", b"1")
    worker = Worker(db, chain)
    original = copy.change
    reran: list[int] = []

    def in_between(text: bytes) -> bytes:
        if not reran:
            reran.append(rerun(db, chain, "copy").chosen)
        return original(text)

    copy.change = in_between
    counts = worker.run_until_idle(PATIENCE).observers["copy"]
    assert reran == [1]
    assert (counts.ran, counts.conflicts) == (1, 1)
    assert copy.ran == {b"a": 2}


def test_workers_and_writers_go_on_meanwhile(
    store_url: str, namespace: str, db: Database, chain: Chain, copy: Copy
) -> None:
    write_all(db, chain, copy)
    rate = 1
    copy.change = lambda text: text + b" by rate %d" % rate

    def write() -> None:
        for number in range(200):
            put(db, ROWS[number % 20], b"text %d" % number)

    with percolator_core.connect(store_url, namespace) as mine:
        worker = Worker(mine, chain)
        working, writing = threading.Thread(target=worker.run), threading.Thread(target=write)
        working.start()
        writing.start()
        for rate in range(2, 12):  # noqa: B007 - the observer reads it
            assert rerun(db, chain, "copy").chosen == 20
        writing.join()
        worker.stop()
        working.join()
    drain(db, chain)
    assert {cells["copy"] for _, cells in db.snapshot().scan("sums")} == {
        b"text %d by rate 11" % number for number in range(180, 200)
    }
    assert drain(db, chain).ran == 0


def test_locks_in_the_way_are_settled(
    store_url: str, namespace: str, db: Database, chain: Chain, copy: Copy
) -> None:
    """Of two writers that died, one after its commit."""
    write_all(db, chain, copy)
    for row, committed in (("d00", False), ("new", True)):
        with percolator_core.connect(store_url, namespace) as other:
            other.client.one_call_a_tablet = True
            t = other.begin()
            start_ts = t.start_timestamp
            for each in (f"{row}:first", row, f"{row}:last"):
                t.set("docs", each, "text", b"written")
            writer = Commit(other.client, start_ts, t.mutations())
            commit_ts = writer.prewrite()
            if committed:
                writer.commit_primary(commit_ts)
    assert rerun(db, chain, "copy", ["row^='d'"]).chosen == 20
    assert rerun(db, chain, "copy", ["row^='new'"]).chosen == 3
    assert not list(db.locks())
    drain(db, chain)
    assert len(copy.ran) == 23


class Crash(Exception):
    """Ends a rerun where it hurts."""


@pytest.mark.parametrize("condition", [[], ["revision=1"], ["revision<2"]])
def test_a_rerun_that_broke_off_between_the_two_steps_is_repeated(
    db: Database, chain: Chain, copy: Copy, condition: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all(db, chain, copy)
    newer = at_revision(chain, 2)
    command = Store.command
    marks = []

    def crash(self: Store, call: Call[Any]) -> Command:
        if call[0] == "mark":
            marks.append(call)
            if len(marks) == 3:
                raise Crash
        return command(self, call)

    with monkeypatch.context() as patch:
        patch.setattr(rerun_module, "_BATCH", 3)
        patch.setattr(Store, "command", crash)
        with pytest.raises(Crash):
            rerun(db, newer, "copy", condition)
    gone = [row for row in ROWS if ack_of(db, row.encode()).value is None]
    assert 0 < dirty_of(db, chain).backlog()["copy"] < len(gone) < 20
    rerun(db, newer, "copy", condition)
    assert drain(db, newer).ran == 20
    assert copy.ran == dict.fromkeys(map(str.encode, ROWS), 1)


def test_what_was_lost_in_a_crash_is_found_after_the_rest_has_run(
    db: Database, chain: Chain, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all(db, chain, copy)
    newer = at_revision(chain, 2)
    with monkeypatch.context() as patch:
        patch.setattr(rerun_module._Rerun, "_mark", lambda *_: 0)
        rerun(db, newer, "copy", ["revision=1", "row<'d05'"])
    drain(db, newer)
    assert not copy.ran
    counts = rerun(db, newer, "copy", ["revision=1"])
    assert (counts.chosen, counts.marked) == (20, 20)
    drain(db, newer)
    assert copy.ran == dict.fromkeys(map(str.encode, ROWS), 1)


def test_a_cell_in_quarantine_has_all_its_attempts_and_then_is_no_more(
    db: Database, chain: Chain, copy: Copy
) -> None:
    def fail(text: bytes) -> bytes:
        raise ValueError(text)

    copy.change = fail
    put(db, "a", b"1")
    drain(db, chain)
    quarantine = Quarantine(db, chain)
    assert quarantine.count() == {"copy": 1}
    assert rerun(db, chain, "copy").marked == 1
    # Until it has run the record stands: it may fail again.
    assert quarantine.count() == {"copy": 1}
    counts = drain(db, chain).observers["copy"]
    assert (counts.failed, counts.quarantined) == (3, 1)
    copy.change = bytes
    assert rerun(db, chain, "copy").marked == 1
    assert drain(db, chain).ran == 1
    assert quarantine.count() == {"copy": 0}
    assert db.snapshot().get("sums", "a", "copy") == b"1"


def test_failed_attempts_of_the_old_code_do_not_count(db: Database, chain: Chain) -> None:
    put(db, "a", b"1")
    dirty = dirty_of(db, chain)
    db.store.run(dirty.postpone(claim(db, chain), 0, failed=True))
    rerun(db, chain, "copy")
    assert claim(db, chain).tries == 0


@pytest.fixture
def weak(db: Database, copy: Copy) -> Chain:
    made = chain_of(watch("look", copy, "sums.dirty", mode="weak"))
    made.create_tables(db)
    return made


def notify(db: Database, *rows: str) -> None:
    with db.transaction() as t:
        for row in rows:
            t.notify("sums", row, "dirty")


def test_a_weak_observer_redoes_the_rows_it_ran_for(db: Database, weak: Chain, copy: Copy) -> None:
    notify(db, "a", "b", "c")
    drain(db, weak)
    put(db, "other", b"1", "sums", "n")
    before = db.timestamp()
    seen: list[int] = []
    copy.change = bytes
    counts = rerun(db, weak, "look", ["row!='b'"])
    assert counts == RerunCounts(3, 2, 2, columns={"sums.dirty": CellCounts(3, 2, 2)})
    leases, _ = dirty_of(db, weak).claim(10, 0.0)
    seen = [held.due for held in leases]
    assert all(due >= before - 1 for due in seen)
    assert drain(db, weak).ran == 2
    assert copy.ran == {b"a": 2, b"b": 1, b"c": 2}


def test_a_weak_run_that_ended_before_does_not_clear_the_mark(db: Database, weak: Chain, copy: Copy) -> None:
    notify(db, "a")
    dirty = dirty_of(db, weak)
    [held], _ = dirty.claim(10)
    run = Transaction(db.client)
    acknowledge(run, held, "weak")
    run.commit()
    assert rerun(db, weak, "look").chosen == 1
    assert not db.store.run(dirty.clear(held, "weak", run.start_timestamp))
    drain(db, weak)
    assert copy.ran == {b"a": 1}


def test_garbage_collection_forgets_what_a_weak_observer_ran_for(db: Database, weak: Chain) -> None:
    notify(db, "a")
    drain(db, weak)
    db.collect_garbage(timedelta(0))
    assert rerun(db, weak, "look").looked_at == 0


def test_garbage_collection_keeps_what_a_strong_rerun_needs(db: Database, chain: Chain, copy: Copy) -> None:
    write_all(db, chain, copy)
    rerun(db, chain, "copy")
    db.collect_garbage(timedelta(0))
    assert rerun(db, chain, "copy").looked_at == 20
    drain(db, chain)
    assert copy.ran == dict.fromkeys(map(str.encode, ROWS), 1)


def test_limit_rate_and_progress(db: Database, chain: Chain, copy: Copy) -> None:
    write_all(db, chain, copy)
    assert rerun(db, chain, "copy", limit=7).chosen == 7
    assert drain(db, chain).ran == 7
    told: list[int] = []
    counts = rerun(db, chain, "copy", limit=6, rate=40, progress=lambda now: told.append(now.chosen))
    assert counts.chosen == 6
    assert told == sorted(told)
    assert told[-1] == 6
    for bad in ({"limit": 0}, {"rate": 0}):
        with pytest.raises(ValueError, match=r"is 1 or more, not 0|above 0, not 0"):
            rerun(db, chain, "copy", **bad)  # type: ignore[arg-type]


def test_the_rate_is_kept(db: Database, chain: Chain, copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all(db, chain, copy)
    slept: list[float] = []
    now = [100.0]

    def sleep(self: Store, seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(Store, "sleep", sleep)
    monkeypatch.setattr("percolator_core.admin.rerun.time.monotonic", lambda: now[0])
    rerun(db, chain, "copy", rate=5)
    assert sum(slept) == pytest.approx(4)
    assert max(slept) <= 0.25


def test_memory_does_not_grow_with_the_table(
    db: Database, chain: Chain, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all(db, chain, copy)
    monkeypatch.setattr(rerun_module, "_BATCH", 2)
    command = Store.command
    most = 0

    def measure(self: Store, call: Call[Any]) -> Command:
        nonlocal most
        script, _, arguments, _ = call
        most = max(most, len(arguments) - 3 if script == "mark" else 0)
        return command(self, call)

    monkeypatch.setattr(Store, "command", measure)
    assert rerun(db, chain, "copy").marked == 20
    assert most == 2


def test_what_cannot_be(db: Database, chain: Chain) -> None:
    with pytest.raises(ConfigurationError, match="test has no observer 'nobody': name one of copy"):
        rerun(db, chain, "nobody")
    other = chain_of(*chain.observers.values(), watch("more", lambda *_: None, "docs.text"))
    with pytest.raises(ConfigurationError, match=r"more is not active in the namespace .*: start a worker"):
        rerun(db, other, "more")
    weak = chain_of(watch("look", lambda *_: None, "sums.copy"))
    weak.create_tables(db)
    with pytest.raises(UnknownColumn, match="notify-only"):
        rerun(db, weak, "look", ["dirty='1'"])


def test_an_observer_that_is_retired_meanwhile_is_not_marked(
    db: Database, chain: Chain, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all(db, chain, copy)
    other = chain_of(watch("other", lambda *_: None, "docs.text"))
    monkeypatch.setattr(rerun_module, "_BATCH", 1)
    with pytest.raises(ConfigurationError, match="copy is not active"):
        rerun(db, chain, "copy", progress=lambda _: other.create_tables(db))
    chain.create_tables(db)
    assert dirty_of(db, chain).backlog() == {"copy": 0}


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (" row ^= 'd0' and row >= 'd08'", ["d08", "d09"]),
        ("text = x'643031' or text = 'd02'", ["d01", "d02"]),
        ('"content type" is not null', ["d03"]),
        ("row in ('d01', 'd02', 'x') and not text = 'd02'", ["d01"]),
        ("revision = 1 and revision <= 12 ", ROWS),
        ("revision < 0", []),
    ],
)
def test_conditions(db: Database, chain: Chain, copy: Copy, text: str, rows: list[str]) -> None:
    with db.transaction() as t:
        t.set("docs", "d03", "content type", b"text/html; a")
    write_all(db, chain, copy)
    assert rerun(db, chain, "copy", [text], dry_run=True).chosen == len(rows)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "row",
        "= 'a'",
        "row = a",
        "revision = 'two'",
        "revision ^= 1",
        "revision <",
        "text = 5",
        "row = x'0'",
    ],
)
def test_no_conditions(db: Database, chain: Chain, copy: Copy, text: str) -> None:
    write_all(db, chain, copy)
    with pytest.raises(ValueError, match="at character"):
        rerun(db, chain, "copy", [text])
