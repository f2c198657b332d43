"""The parts of a trace in words, for the command line and for pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from percolator_core.admin.trace.found import Outcome, Run, Trace
from percolator_core.notation.amounts import count_of

SAID: Final = {"put": "written", "delete": "deleted", "notify": "notified"}
"""What was done to a cell, by the kind of the change."""

_STATES: Final = {
    "pending": "waits for a worker",
    "leased": "waits: a worker has it",
    "collected": "not known: garbage collection has dropped what would tell",
    "unobserved": "not run: it was not active when this was written",
}


def told_state(outcome: Outcome, error: str) -> str:
    """What became of a change that no run has dealt with.

    Args:
        outcome: what one observer made of it; its state is none of those with a run.
        error: that of a cell in quarantine, as it is to be shown.
    """
    attempts = count_of(outcome.attempts, "attempt")
    if outcome.state == "quarantined":
        return f"in quarantine after {attempts}: {error}"
    if outcome.state == "retrying":
        return f"waits to be tried again, after {attempts} that failed"
    return _STATES[outcome.state]


def told_run(run: Run) -> list[str]:
    """What is out of the ordinary about a run: that it stood for several changes, and newer code."""
    told = []
    if run.changes_seen > 1:
        told.append(f"for {count_of(run.changes_seen, 'change')}")
    if run.revision > 1:
        told.append(f"revision {run.revision}")
    return told


def told_sum(found: Trace, span: Callable[[float], str]) -> str:
    """The trace in a sentence; ``span`` writes a length of time, which is given in seconds."""
    if found.seconds is None:
        told = "no run yet"
    else:
        told = f"{count_of(len(found.runs), 'run')} in {span(found.seconds)}"
    if found.waiting:
        told += f", {found.waiting:,} waiting"
    if found.quarantined:
        told += f", {found.quarantined:,} in quarantine"
    return told
