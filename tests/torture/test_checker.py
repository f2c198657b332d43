"""The checker flags what is wrong, by its name, and nothing else."""

from __future__ import annotations

import pytest

from percolator_torture.checker.check import check
from percolator_torture.checker.report import KEPT, Anomaly
from percolator_torture.histories.final_state import FinalState
from percolator_torture.histories.history import History
from tests.torture.known_bad import ALLOWED, CASES, Case, Example, X, Y, Z, example, txn
from tests.torture.simulator import simulate


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_known_bad(case: Case) -> None:
    report = check(*case.bad)
    assert report.names == {case.anomaly}, str(report)
    assert not report.ok
    for violation in report.violations:
        assert violation.sentence in str(report)
        assert "\n" not in violation.sentence


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_good_sibling(case: Case) -> None:
    report = check(*case.good)
    assert report.ok, str(report)


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name: str) -> None:
    report = check(*ALLOWED[name])
    assert report.ok, str(report)


def test_every_anomaly_has_a_case() -> None:
    assert {case.anomaly for case in CASES} == set(Anomaly)


def test_a_violation_names_transactions_and_cells() -> None:
    report = check(*example(txn("T1", 3, 5, w=[X]), txn("T2", 4, 6, w=[X])))
    (violation,) = report.violations
    assert violation.transactions == ("T1:1", "T2:1")
    assert violation.cells == (X,)
    assert violation.sentence == (
        "T2:1 began at 4 and wrote t.v of row b'x', although T1:1 committed to it at 5, before T2:1 did at 6"
    )
    assert str(report).startswith("3 transactions (3 ok, 0 fail, 0 unknown; 0 unknown committed), 0 reads")


def test_a_flood_of_violations_is_counted_not_kept() -> None:
    records = [txn(f"T{number}", 2 * number, r={X: None}) for number in range(2, 500)]
    report = check(*example(*records))
    assert report.counts == {Anomaly.STALE_READ: 498}
    assert len(report.violations) == KEPT


def test_transactions_that_are_lost_or_torn_are_counted_once() -> None:
    lost, torn = txn("T1", 3, 4, w=[X, Y]), txn("T2", 5, w=[X, Y, Z], outcome="unknown")
    without = [(name, cell) for name in ("T1", "T2") for cell in (X, Y)]
    report = check(*example(lost, torn, committed={"T2": (5, 6)}, without=without))
    assert (report.lost, report.torn) == ({"T1:1"}, {"T2:1"})
    assert report.counts == {Anomaly.MISSING: 2, Anomaly.PARTIAL: 2}


def test_nothing_at_all() -> None:
    assert check(History(), FinalState()).ok


def test_order_of_the_records_does_not_matter() -> None:
    history, final = simulate(3, 500)
    assert check(History(reversed(list(history))), final).ok
    records = [txn("T2", 5, r={X: "T1", Y: "T0"}), txn("T1", 3, 4, w=[X])]
    assert check(*example(*records)).ok


def test_records_come_out_as_they_went_in() -> None:
    examples: list[Example] = [case.bad for case in CASES]
    for history, final in [*examples, simulate(11, 300)]:
        records = list(history)
        assert list(History(records)) == records
        assert all(
            final.versions(cell) == sorted(final.versions(cell), key=lambda version: version.commit_ts)
            for cell in final.cells
        )


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (txn("T1", 3, r={X: None}, returned=0, began=5), "returned before it began"),
        (txn("T1", None, r={X: None}), "no start timestamp"),
        (txn("T1", 3, w=[X]), "lacks a timestamp"),
        (txn("T1", 3, 4), "no writes"),
        (txn("T1", 3, 4, w=[X], r={X: None}, blind=True), "it is blind, but has reads"),
        (txn("T1", 3, 4, w=[X, X]), "twice"),
        (txn("T0", 3), "the id T0:1"),
        (txn("T/1", 3), "letters"),
    ],
)
def test_impossible_records(record: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        example(record)  # type: ignore[arg-type]
