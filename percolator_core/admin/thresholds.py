"""Compare a chain's state with its thresholds; each breach is one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from percolator_core.admin.locks import HeldLock
from percolator_core.admin.status import ObserverStatus, Status
from percolator_core.notation.amounts import count_of, show_age, show_size
from percolator_core.observers.scheduling import ObserverThresholds, ThresholdsDeclaration

FEWEST_RUNS: Final = 10
"""The fewest runs from which a failure rate is computed: with one run, one failure would be 100 %."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The numbers of an observer's runs that committed and that raised, since the namespace was created."""

    ran: int
    failures: int


def breaches(
    now: Status,
    before: Mapping[str, Runs],
    locks: Sequence[HeldLock],
    thresholds: ThresholdsDeclaration,
) -> list[str]:
    """Return one sentence for each breach.

    Args:
        now: the state.
        before: the runs of each observer at the previous check, without observers that were added since then.
        locks: the oldest locks, oldest first.
        thresholds: the limits.
    """
    found: list[str] = []
    for observer in now.observers:
        found += _of_observer(observer, before.get(observer.name), own_thresholds(observer.name, thresholds))
    found += _of_locks(locks, thresholds)
    found += _of_store(now, thresholds)
    return found


def own_thresholds(name: str, thresholds: ThresholdsDeclaration) -> ObserverThresholds:
    """Return the thresholds of one observer. If it does not declare a threshold, the chain's value counts."""
    own = thresholds.observers.get(name)
    if own is None:
        return thresholds
    return thresholds.model_copy(update={field: getattr(own, field) for field in own.model_fields_set})


def _of_observer(now: ObserverStatus, before: Runs | None, allowed: ObserverThresholds) -> Iterator[str]:
    if allowed.backlog is not None and now.backlog > allowed.backlog:
        yield f"{now.name}: the backlog is {count_of(now.backlog, 'cell')}, more than {allowed.backlog:,}"
    if allowed.oldest is not None and now.oldest is not None and now.oldest > allowed.oldest:
        yield (
            f"{now.name}: a cell has waited for {show_age(now.oldest)}, longer than "
            f"{show_age(allowed.oldest)}: start workers or a drain, or see why its runs fail"
        )
    if allowed.quarantine is not None and now.failed > allowed.quarantine:
        yield (
            f"{now.name}: {count_of(now.failed, 'cell')} in quarantine, more than {allowed.quarantine:,}: "
            "correct the cause, then retry or discard them"
        )
    rate = failure_rate(now, before)
    if allowed.failure_rate is not None and rate is not None and rate > allowed.failure_rate:
        yield (
            f"{now.name}: {rate:.0%} of its runs since the last check failed, more than "
            f"{allowed.failure_rate:.0%}"
        )


def failure_rate(now: ObserverStatus, before: Runs | None) -> float | None:
    """Return the share of the runs since ``before`` that raised; None if runs are unknown or too few."""
    if before is None:
        return None
    ran, failures = now.ran - before.ran, now.failures - before.failures
    # A difference is negative if the namespace was created again in between.
    if ran < 0 or failures < 0 or ran + failures < FEWEST_RUNS:
        return None
    return failures / (ran + failures)


def _of_locks(locks: Sequence[HeldLock], allowed: ThresholdsDeclaration) -> Iterator[str]:
    limit = allowed.lock_age
    old = [lock for lock in locks if limit is not None and lock.age > limit]
    if old:
        whose = "whose owner is alive" if old[0].owner_alive else "whose owner is gone"
        yield (
            f"{count_of(len(old), 'lock')} older than {show_age(limit)}, the oldest {show_age(old[0].age)} "
            f"in {old[0].table}, {whose}: check that the maintenance DAG runs"
        )


def _of_store(now: Status, allowed: ThresholdsDeclaration) -> Iterator[str]:
    memory, limit = now.store.memory, allowed.memory
    # If the threshold is a share of the store's limit and the store has no limit, any size is allowed.
    most = limit * now.store.memory_limit if isinstance(limit, float) else limit
    if most and memory > most:
        of = f" of {show_size(now.store.memory_limit)}" if isinstance(limit, float) else ""
        yield (
            f"the store holds {show_size(memory)}{of}, more than {show_size(most)}: collect garbage, or give "
            "it more memory"
        )
    if now.continuous < allowed.workers:
        there = count_of(now.continuous, "continuous worker")
        yield f"{there} alive, fewer than {allowed.workers}: start some"
