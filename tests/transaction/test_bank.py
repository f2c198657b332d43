"""The bank on a store of every kind, with clients that are killed: each snapshot has the same total."""

from __future__ import annotations

import pytest

from percolator_torture.clients.schedule import Nemesis
from percolator_torture.suites.settings import Settings
from percolator_torture.suites.workload_suite import run_workload

SEED = 23
TRANSACTIONS = 1500
KILLS = 3


@pytest.mark.slow
def test_bank(url_of_every_kind: str) -> None:
    """Each client makes part of its commits in one call, where the store can, and part in two phases."""
    settings = Settings(
        seed=SEED,
        transactions=TRANSACTIONS,
        kills=KILLS,
        clients=2,
        nemeses=(Nemesis.KILL,),
        url=url_of_every_kind,
    )
    result = run_workload("bank", settings)
    figures = result.figures
    assert result.ok, f"seed {SEED}, histories in {result.folder}: {result.wrong[:20]}"
    assert (figures["transactions"], figures["struck"]) == (TRANSACTIONS, {"kill": KILLS}), f"seed {SEED}"
    assert (figures["undetermined"]["torn"], figures["locks_left"]) == (0, 0), f"seed {SEED}"
    assert figures["ended"]["ok"] > TRANSACTIONS / 2, f"seed {SEED}: {figures}"
