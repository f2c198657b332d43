"""The parts of a trace as text, for the command line and for pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from percolator_core.admin.trace.found import Outcome, Run, Trace
from percolator_core.notation.amounts import count_of
from percolator_core.observers import Chain

KIND_VERBS: Final = {"put": "written", "delete": "deleted", "notify": "notified"}
"""The participle for each kind of a change."""

_STATES: Final = {
    "pending": "waits for a worker",
    "leased": "waits: a worker has it",
    "collected": "not known: garbage collection or a flush has dropped the acknowledgement",
    "unobserved": "not run: the observer was not active when this was written",
}


def state_text(outcome: Outcome, error: str) -> str:
    """Describe a change that no run has observed; ``error`` is the error of a cell in quarantine."""
    attempts = count_of(outcome.attempts, "attempt")
    if outcome.state == "quarantined":
        return f"in quarantine after {attempts}: {error}"
    if outcome.state == "retrying":
        return f"waits for a retry after {attempts} that failed"
    return _STATES[outcome.state]


def run_notes(run: Run) -> list[str]:
    """Describe a run that observed several changes, or that has a revision above 1."""
    notes = []
    if run.changes_seen > 1:
        notes.append(f"for {count_of(run.changes_seen, 'change')}")
    if run.revision > 1:
        notes.append(f"revision {run.revision}")
    return notes


def summary(found: Trace, span: Callable[[float], str]) -> str:
    """Describe a trace in one sentence; ``span`` formats a number of seconds."""
    if found.seconds is None:
        text = "no run yet"
    else:
        text = f"{count_of(len(found.runs), 'run')} in {span(found.seconds)}"
    if found.waiting:
        text += f", {found.waiting:,} waiting"
    if found.quarantined:
        text += f", {found.quarantined:,} in quarantine"
    return text


def missing_parts(found: Trace, chain: Chain, declared: str, further: str, limit: int = 1000) -> list[str]:
    """Return a sentence for each part that may be missing in a trace, with the remedy.

    Args:
        found: the trace.
        chain: the chain of the trace.
        declared: says where the user finds the chain's ``chain.yaml``.
        further: says how the user increases the depth.
        limit: the limit of changes of the trace.
    """
    sentences = []
    if found.unrecorded:
        sentences.append(
            f"the writes of {count_of(found.unrecorded, 'run')} were not recorded: "
            + (
                "the workers did not have 'trace: true' in chain.yaml yet"
                if chain.trace
                else f"put 'trace: true' into {declared} and restart the workers to record later runs"
            )
        )
    if found.unfollowed:
        followed = len(found.changes) + sum(len(run.changes) for run in found.runs)
        why = further if followed < limit else f"a trace follows {limit:,} at most"
        sentences.append(f"{count_of(found.unfollowed, 'change')} more not followed: {why}")
    if found.uncertain:
        sentences.append(
            f"{count_of(found.uncertain, 'change')} from before the safe point of garbage collection: runs "
            "may be missing, or a later run may be shown for an earlier one; gc --keep keeps more"
        )
    return sentences
