"""The suites that take a server away find nothing wrong with the library, and can find something."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from percolator_core import scripts
from percolator_core.scripts import Script
from percolator_torture.faults.clock import FakeClock
from percolator_torture.losses import log_loss as log_loss_module
from percolator_torture.losses import timestamps as timestamps_module
from percolator_torture.losses.failover import SETTINGS, Before, failover
from percolator_torture.losses.log_loss import log_loss
from percolator_torture.losses.pairs import Found
from percolator_torture.losses.timestamps import Taken, backwards, timestamps

SEED = 20

_NO_MEMORY = """
local WINDOW = 0

local function next_timestamps(key, count)
  local last = math.floor(now() / 1000000) * 1000000
  redis.call('HSET', key, 'last', string.format('%.0f', last), 'limit', string.format('%.0f', last))
  return last
end
"""
"""An oracle that trusts its clock, of which it takes the seconds."""


@pytest.fixture
def told() -> list[str]:
    """What a suite tells; pytest shows it with a failure."""
    return []


@pytest.fixture
def tell(told: list[str]) -> Callable[[str], None]:
    def note(line: str) -> None:
        told.append(line)
        print(line)

    return note


def judged(found: Found) -> tuple[int, int, int, int]:
    return found.lost, found.torn, found.doubled, found.unexpected


def test_a_log_that_is_always_synced_loses_nothing_acknowledged(
    tell: Callable[[str], None], told: list[str]
) -> None:
    found = log_loss(3, SEED, tell, "always")
    assert found.rounds == len(told) == 3
    assert found.found.acknowledged >= 3 * 40
    assert judged(found.found) == (0, 0, 0, 0), f"seed {SEED}: {found}"


def test_a_log_that_is_synced_every_second_tears_nothing(tell: Callable[[str], None]) -> None:
    found = log_loss(1, SEED, tell, "everysec")
    assert found.found.acknowledged >= 40
    assert judged(found.found)[1:] == (0, 0, 0), f"seed {SEED}: {found}"


def test_a_cut_below_what_was_acknowledged_is_noticed(
    tell: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_loss_module, "_synced", lambda sizes, base, killed_at, fsync: base)
    found = log_loss(2, SEED, tell, "always")
    assert 0 < found.most_lost <= found.found.lost <= 2 * found.most_lost, f"seed {SEED}: {found}"


def test_timestamps_survive_restarts(tell: Callable[[str], None], told: list[str]) -> None:
    found = timestamps(6, SEED, tell)
    assert found.restarts == len(told) == sum(found.by_kind.values()) == 6
    assert len(found.by_kind) == 4
    assert found.clock_jumps == 2
    assert found.handed_out >= 6 * 70
    assert (found.repeated, found.backwards) == (0, 0), f"seed {SEED}: {found}"


def test_an_oracle_that_trusts_its_clock_is_noticed(
    tell: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Trusting(FakeClock):
        def load_scripts(self, shebang: bool) -> Mapping[str, Script]:
            return scripts.assemble(shebang, {"clock": self._source, "oracle": _NO_MEMORY})

    monkeypatch.setattr(timestamps_module, "FakeClock", Trusting)
    found = timestamps(3, SEED, tell)
    assert found.clock_jumps == 1
    assert found.repeated > 0
    assert found.backwards > 0


def test_a_timestamp_must_lie_above_those_returned_before_it_was_asked_for() -> None:
    one = Taken(begun=10, ended=20, timestamp=5)
    assert backwards([one, Taken(begun=15, ended=30, timestamp=4)]) == 0  # at the same time
    assert backwards([Taken(begun=25, ended=30, timestamp=4), one]) == 1
    assert backwards([Taken(begun=25, ended=30, timestamp=5), one]) == 1
    assert backwards([Taken(begun=25, ended=30, timestamp=6), one]) == 0


def test_a_failover_loses_what_no_replica_had_to_have(tell: Callable[[str], None]) -> None:
    rows = failover(1, SEED, tell)
    assert [(row.durability, row.replicas, row.before) for row in rows] == [
        (setting.name, setting.replicas, before)
        for before in Before
        for setting in SETTINGS
        if before in setting.befalls
    ]
    for row in rows:
        assert judged(row.found)[1:] == (0, 0, 0), f"seed {SEED}: {row}"
        if row.before is not Before.IN_STEP:
            # Cut off on purpose: the suite sees the loss, or that the commit did not promise anything.
            assert row.rounds_with_loss or row.found.undetermined, f"seed {SEED}: {row}"
    found = {(row.before, row.durability): row for row in rows}
    safe = {key for key in found if key[1].startswith("replicas")} - {(Before.PASSED_OVER, "replicas=1")}
    assert len(safe) == 5
    assert safe == {key for key, row in found.items() if row.safe}
    for key in safe:
        assert found[key].found.lost == 0, f"seed {SEED}: {found[key]}"
    assert found[Before.CUT_OFF, "none"].found.lost > 0
    assert found[Before.CUT_OFF, "replicas=1"].found.undetermined > 0
    # The replica that acknowledged is not the one that is promoted.
    assert found[Before.PASSED_OVER, "none"].found.lost > 0
    assert found[Before.PASSED_OVER, "replicas=1"].found.lost > 0
    assert found[Before.PASSED_OVER, "replicas=2"].found.undetermined > 0
