"""Each workload finds nothing wrong with the library under its nemeses, and finds what is wrong elsewhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from percolator_core.errors import ConfigurationError
from percolator_torture.clients.schedule import (
    DEFAULT,
    FAULTS,
    OF_BASES,
    Event,
    Nemesis,
    make_schedule,
    parse_nemeses,
)
from percolator_torture.histories.final_state import FinalState, FinalVersion
from percolator_torture.histories.history import (
    CellKey,
    History,
    Outcome,
    Read,
    TransactionRecord,
    Write,
)
from percolator_torture.histories.marks import Mark
from percolator_torture.suites.result import Result
from percolator_torture.suites.settings import Settings
from percolator_torture.suites.workload_suite import run_workload
from percolator_torture.workloads import TABLE, WORKLOADS, State
from percolator_torture.workloads.bank import ACCOUNTS, OPENING
from percolator_torture.workloads.long_fork import MEMBERS
from percolator_torture.workloads.ring import RINGS

SEED = 11
BROKEN = Path(__file__).with_name("broken_client.py")


def assert_ok(result: Result) -> None:
    assert result.ok, f"seed {result.seed}, histories in {result.folder}: {result.wrong}"
    assert result.figures["locks_left"] == 0
    assert result.figures["undetermined"]["torn"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["counter", "long-fork", "ring"])
def test_a_workload_under_all_nemeses(name: str) -> None:
    result = run_workload(name, Settings(seed=SEED, transactions=2500, kills=5, clients=3))
    assert_ok(result)
    assert result.figures["transactions"] == 2500
    wanted = set(DEFAULT) - set(FAULTS) - OF_BASES
    assert set(result.figures["struck"]) == {nemesis.value for nemesis in wanted}
    assert result.figures["struck"]["kill"] == 5
    assert sum(result.figures["faults"].values()) > 0
    assert result.figures["ended"]["ok"] > 1000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bank", "ring"])
def test_a_workload_beside_garbage_collection(name: str) -> None:
    nemeses = (*DEFAULT, Nemesis.COLLECT)
    result = run_workload(name, Settings(seed=SEED, transactions=2000, kills=4, clients=2, nemeses=nemeses))
    assert_ok(result)
    assert result.figures["struck"]["collect"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "bug", "nemeses"),
    [
        ("bank", "ignore_newer_commits", ()),
        ("counter", "ignore_newer_commits", ()),
        ("append", "report_unknown_as_failed", (Nemesis.DROP_REPLY,)),
        ("bank", "roll_back_what_committed", (Nemesis.KILL, Nemesis.DROP_REQUEST)),
    ],
)
def test_a_broken_client_is_found_out(workload: str, bug: str, nemeses: Sequence[Nemesis]) -> None:
    program = (sys.executable, str(BROKEN), bug)
    # A bug that takes a fault at the right moment need not strike in each run.
    results = (
        run_workload(
            workload,
            Settings(seed=seed, transactions=4000, kills=4, clients=2, nemeses=nemeses, program=program),
        )
        for seed in range(SEED, SEED + 4)
    )
    result = next((result for result in results if not result.ok), None)
    assert result is not None, f"not in four runs, seeds from {SEED} on"
    assert not any(" ended with " in sentence for sentence in result.wrong), result.wrong
    assert result.folder is not None  # to look into
    assert list(Path(result.folder).glob("*.history"))
    shutil.rmtree(result.folder)


def test_a_client_that_crashes_is_told() -> None:
    program = (sys.executable, "-c", "raise SystemExit('no such luck')")
    result = run_workload(
        "counter", Settings(transactions=100, kills=0, clients=2, nemeses=(), program=program)
    )
    assert "no such luck" in result.wrong[0]
    assert "0 transactions of 100 were made" in result.wrong
    assert result.folder is not None
    shutil.rmtree(result.folder)


# Schedules.


def schedule(seed: int = 1, *nemeses: Nemesis) -> list[Event]:
    return make_schedule(seed, 1000, 20, 4, nemeses or DEFAULT)


def test_a_seed_repeats_the_schedule() -> None:
    assert schedule(1) == schedule(1) != schedule(2)


def test_leaving_out_a_nemesis_does_not_move_the_others() -> None:
    alone = schedule(1, Nemesis.KILL)
    assert alone == [event for event in schedule(1) if event.nemesis == Nemesis.KILL]
    assert len(alone) == 20


def test_events_are_in_the_run_and_in_order() -> None:
    events = schedule()
    assert events == sorted(events)
    assert all(0 < event.at <= 950 and event.seat in range(4) for event in events)
    counts = {nemesis: sum(event.nemesis == nemesis for event in events) for nemesis in DEFAULT}
    assert counts[Nemesis.STOP] == counts[Nemesis.SCRIPT_FLUSH] == 10
    assert counts[Nemesis.SERVER_KILL] == counts[Nemesis.CLOCK_BACK] == counts[Nemesis.OUT_OF_MEMORY] == 4


def test_nemeses_are_named() -> None:
    assert parse_nemeses("kill, stop,kill") == (Nemesis.KILL, Nemesis.STOP)
    assert parse_nemeses("none") == ()
    assert parse_nemeses("all") == DEFAULT
    assert Nemesis.COLLECT not in DEFAULT
    with pytest.raises(ConfigurationError, match="there is no nemesis 'flood': choose from kill, stop"):
        parse_nemeses("kill,flood")
    with pytest.raises(ConfigurationError, match="no nemesis is named"):
        parse_nemeses(" ,")
    for alone in ("all", "none"):
        with pytest.raises(ConfigurationError, match=f"{alone} stands alone"):
            parse_nemeses(f"{alone},kill")


# What each workload must find in a state.


def record(
    number: int,
    cells: Sequence[CellKey],
    *,
    outcome: Outcome = "ok",
    start_ts: int = 0,
    reads: Sequence[Read] = (),
) -> TransactionRecord:
    start_ts = start_ts or number * 10
    return TransactionRecord(
        process="w",
        number=number,
        began=number,
        returned=number + 1,
        start_ts=start_ts,
        commit_ts=start_ts + 5 if outcome == "ok" and cells else None,
        outcome=outcome,
        reads=tuple(reads),
        writes=tuple(Write(cell) for cell in cells),
    )


def verify(name: str, state: State, history: History, final: FinalState | None = None) -> list[str]:
    return list(WORKLOADS[name](1).verify(state, history, final or FinalState()))


def accounts() -> State:
    return {b"account%03d" % number: {"balance": b"%d" % OPENING} for number in range(ACCOUNTS)}


def test_bank_counts_its_money() -> None:
    state = accounts()
    assert verify("bank", state, History()) == []
    state[b"account001"]["balance"] = b"%d" % (OPENING + 1)
    assert f"has {ACCOUNTS * OPENING + 1} on all accounts" in verify("bank", state, History())[0]
    del state[b"account001"]
    assert f"has {ACCOUNTS - 1} accounts of {ACCOUNTS}" in verify("bank", state, History())[0]


def lists(*entries: int, outcome: Outcome = "ok", versions: Sequence[int] = (10, 20)) -> list[str]:
    """What append finds in a list, after the transactions begun at 10 (ok) and 20."""
    cell = CellKey(TABLE, b"list", "entries")
    history = History([record(1, [cell]), record(2, [cell], outcome=outcome)])
    final = FinalState({cell: [FinalVersion(at + 5, at, Mark("w", at // 10)) for at in versions]})
    payload = ",".join(map(str, entries)).encode()
    return verify("append", {b"list": {"entries": payload}} if entries else {}, history, final)


def test_append_finds_lost_doubled_and_unordered_entries() -> None:
    assert lists(10, 20) == []
    assert lists(10, outcome="unknown", versions=[10]) == []
    assert any("lost: the commit of w:2" in sentence for sentence in lists(10, versions=[10]))
    assert any("the commit of w:2 failed" in sentence for sentence in lists(10, 20, outcome="fail"))
    assert any("doubled: the list list has the entry of w:2 2 times" in one for one in lists(10, 20, 20))
    assert "in their order" in lists(20, 10)[0]


def test_append_finds_a_torn_transaction() -> None:
    cells = [CellKey(TABLE, row, "entries") for row in (b"one", b"two")]
    history = History([record(1, cells, outcome="unknown")])
    final = FinalState({cells[0]: [FinalVersion(15, 10, Mark("w", 1))]})
    assert verify("append", {b"one": {"entries": b"10"}}, history, final) == [
        "torn: of w:1 some lists have the entry, and others do not"
    ]


@pytest.mark.parametrize(
    ("value", "versions", "found"),
    [
        (b"1", 1, None),
        (b"2", 2, None),
        (b"0", 1, "with 1 increments acknowledged"),
        (b"3", 3, "and 2 that may have committed"),
        (b"2", 1, "is at 2 after 1 committed"),
    ],
)
def test_counter_compares_value_and_increments(value: bytes, versions: int, found: str | None) -> None:
    cell = CellKey(TABLE, b"counter001", "count")
    history = History(
        [record(1, [cell]), record(2, [cell], outcome="unknown"), record(3, [cell], outcome="fail")]
    )
    final = FinalState({cell: [FinalVersion(15 + at, 10 + at, Mark("w", 1)) for at in range(versions)]})
    told = verify("counter", {b"counter001": {"count": value}}, history, final)
    assert told == [] if found is None else any(found in sentence for sentence in told)


@pytest.mark.parametrize(("second", "forked"), [((0, 1), True), ((1, 1), False)])
def test_long_fork_compares_readers(second: tuple[int, int], forked: bool) -> None:
    cells = [CellKey(TABLE, b"group00/%d" % member, "seen") for member in range(MEMBERS)]
    marks = [Mark("w", 1), Mark("w", 2)]
    writers = [record(number, [cells[number - 1]]) for number in (1, 2)]

    def reader(number: int, *seen: int) -> TransactionRecord:
        found = [marks[at] if at < 2 and seen[at] else None for at in range(MEMBERS)]
        return record(number, [], reads=[Read(cell, one) for cell, one in zip(cells, found, strict=True)])

    history = History([*writers, reader(3, 1, 0), reader(4, *second)])
    final = FinalState({cells[at]: [FinalVersion(15, 10, marks[at])] for at in range(2)})
    told = verify("long-fork", {}, history, final)
    assert bool(told) == forked
    assert all("long fork in group 0" in sentence for sentence in told)


def test_ring_wants_one_token_with_its_moves() -> None:
    state: State = {b"ring%02d/0" % ring: {"token": b"0"} for ring in range(RINGS)}
    history = History()
    assert verify("ring", state, history) == []
    state[b"ring00/1"] = {"token": b"0"}
    assert verify("ring", state, history) == ["ring 0 is left with 2 tokens"]
    del state[b"ring00/1"]
    state[b"ring01/0"] = {"token": b"1"}
    assert "the token of ring 1 counts 1 moves" in verify("ring", state, history)[0]
