"""The suites that take a server away, with what they found as results: ``aof``, ``oracle`` and ``failover``.

Their rounds are made in portions, so that a run that is ended early keeps what it has found.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from percolator_core.errors import StoreUnavailable
from percolator_core.torture.failover import SETTINGS, FailoverRow, Setting, failover
from percolator_core.torture.log_loss import Fsync, LogLoss, log_loss
from percolator_core.torture.result import Result, Table, count_of
from percolator_core.torture.settings import Settings
from percolator_core.torture.timestamps import TimestampsResult, timestamps

T = TypeVar("T")
D = TypeVar("D", LogLoss, TimestampsResult)

LOG_ROUNDS: Final = 10
RESTARTS: Final = 20
FAILOVERS: Final = 4
"""Rounds where the settings do not say how many."""

_PORTION: Final = 20
_FAILOVER_PORTION: Final = 4
"""The rounds of each row take turns in four ways to write."""


class _Stopped(Exception):
    """The user has had enough, in the middle of a portion."""


def run_log_loss(settings: Settings) -> Result:
    """Kill a server while clients write, and cut the log in the part that no disk had to have.

    With ``appendfsync always`` nothing acknowledged may be lost, nor anything torn or doubled. What
    ``everysec`` loses is measured. Raises as `log_loss`.
    """
    result, began = Result("aof", settings.seed), time.monotonic()
    found: dict[Fsync, LogLoss] = {}
    fsyncs: tuple[Fsync, ...] = ("always", "everysec")
    for fsync in fsyncs:

        def portion(rounds: int, seed: int, tell: Callable[[str], None], fsync: Fsync = fsync) -> LogLoss:
            return log_loss(rounds, seed, fsync, tell)

        portions = list(
            _portions(settings, result, f"aof, {fsync}", settings.rounds or LOG_ROUNDS, _PORTION, portion)
        )
        if portions:
            total = found[fsync] = _sum(portions)
            found[fsync] = dataclasses.replace(
                total, fsync=fsync, longest_loss=max(one.longest_loss for one in portions)
            )
    for fsync, one in found.items():
        result.wrong += _judge_log(fsync, one)
    if "always" in found:
        one = found["always"]
        result.run = (
            f"SIGKILL mid-write x {one.rounds}, the log cut in its unsynced tail (appendfsync always)"
        )
        result.found = (
            f"of {one.acknowledged:,} acknowledged {one.lost:,} lost, {one.torn:,} torn, "
            f"{one.doubled:,} doubled; {one.unknown:,} undetermined"
        )
    result.figures = {fsync: dataclasses.asdict(one) for fsync, one in found.items()}
    result.tables = [_log_table(list(found.values()))]
    result.seconds = time.monotonic() - began
    return result


def run_timestamps(settings: Settings) -> Result:
    """Restarts, lost logs, promoted replicas, clocks set back: no timestamp twice, none backwards.

    Raises as `timestamps`.
    """
    result, began = Result("oracle", settings.seed), time.monotonic()
    portions = list(_portions(settings, result, "oracle", settings.rounds or RESTARTS, _PORTION, timestamps))
    if portions:
        total = _sum(portions)
        kinds: Counter[str] = Counter()
        for one in portions:
            kinds.update(one.by_kind)
        total = dataclasses.replace(total, by_kind=dict(kinds))
        result.figures = dataclasses.asdict(total)
        result.run = (
            f"{count_of(total.restarts, 'restart')} ("
            + "; ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
            + f"), the clock set back an hour at {total.clock_jumps}"
        )
        result.found = (
            f"{total.handed_out:,} timestamps: {total.repeated} repeated, {total.backwards} backwards"
        )
        for count, what in (
            (total.repeated, "handed out twice"),
            (total.backwards, "not above earlier ones"),
        ):
            if count:
                result.wrong.append(f"{count_of(count, 'timestamp')} {what}")
    result.seconds = time.monotonic() - began
    return result


def run_failover(settings: Settings, tried: Sequence[Setting] = SETTINGS) -> Result:
    """What each durability loses when a primary dies with its disk: measured, not judged.

    Raises as `failover`.
    """
    result, began = Result("failover", settings.seed), time.monotonic()

    def portion(rounds: int, seed: int, tell: Callable[[str], None]) -> list[FailoverRow]:
        return failover(rounds, seed, tell, tried)

    rounds = settings.rounds or FAILOVERS
    portions = list(_portions(settings, result, "failover", rounds, _FAILOVER_PORTION, portion))
    rows = _join(portions)
    if rows:
        result.run = f"{count_of(sum(row.rounds for row in rows), 'failover')}, {rows[0].rounds} of each kind"
        lost = sum(row.lost for row in rows)
        result.found = (
            f"of {sum(row.acknowledged for row in rows):,} acknowledged {lost:,} lost, "
            f"{sum(row.torn for row in rows):,} torn: see the table"
        )
    result.figures = {"rows": [dataclasses.asdict(row) for row in rows]}
    result.tables = [_failover_table(rows)]
    result.seconds = time.monotonic() - began
    return result


def _portions(  # noqa: PLR0917
    settings: Settings,
    result: Result,
    name: str,
    rounds: int,
    most: int,
    run: Callable[[int, int, Callable[[str], None]], T],
) -> Iterator[T]:
    """Run so many rounds, ``most`` at a time, until the user has had enough."""
    done = 0

    def tell(line: str) -> None:
        settings.tell(f"{name}: {line}", done, rounds)
        if settings.stop.is_set():
            raise _Stopped

    while done < rounds:
        portion = min(most, rounds - done)
        if settings.stop.is_set():
            result.interrupted = True
            return
        try:
            # Seeds of portions do not meet those of a neighbouring seed.
            found = run(portion, settings.seed + done * 1_000_003, tell)
        except (_Stopped, StoreUnavailable):
            if not settings.stop.is_set():
                raise
            result.interrupted = True  # a server may have heard Ctrl-C, too
            return
        done += portion
        yield found


def _sum(portions: Sequence[D]) -> D:
    """The first of them, with all numbers added up."""
    first = portions[0]
    numbers = {
        field.name: sum(getattr(one, field.name) for one in portions)
        for field in dataclasses.fields(first)
        if isinstance(getattr(first, field.name), int)
    }
    return dataclasses.replace(first, **numbers)


def _judge_log(fsync: Fsync, found: LogLoss) -> Iterator[str]:
    """What must not be: with "everysec" only transactions as a whole may be lost."""
    judged = [
        (found.torn, "torn: one of its two cells has it"),
        (found.doubled, "committed twice"),
        (found.unexpected, "reported as not committed and there all the same"),
    ]
    if fsync == "always":
        judged.append((found.lost, "acknowledged and lost"))
    for count, what in judged:
        if count:
            yield f"appendfsync {fsync}: {count_of(count, 'transaction')} {what}"


def _log_table(found: Sequence[LogLoss]) -> Table:
    table = Table(
        "A power cut, by appendfsync",
        ("appendfsync", "rounds", "acknowledged", "undetermined", "lost", "most in a round", "torn"),
    )
    for one in found:
        numbers = (one.rounds, one.acknowledged, one.unknown, one.lost, one.longest_loss, one.torn)
        table.rows.append((one.fsync, *(f"{number:,}" for number in numbers)))
    return table


def _join(portions: Sequence[Sequence[FailoverRow]]) -> list[FailoverRow]:
    """Row by row over all portions; the speed is the mean of the portions'."""
    rows = []
    for same in zip(*portions, strict=True):
        row = same[0]
        rows.append(
            dataclasses.replace(
                row,
                **{
                    name: sum(getattr(one, name) for one in same)
                    for name in (
                        "rounds",
                        "acknowledged",
                        "undetermined",
                        "lost",
                        "rounds_with_loss",
                        "torn",
                        "doubled",
                        "unexpected",
                    )
                },
                per_second=sum(one.per_second for one in same) / len(same),
            )
        )
    firsts = {row.lagging: row.per_second for row in reversed(rows)}
    return [dataclasses.replace(row, relative=row.per_second / (firsts[row.lagging] or 1.0)) for row in rows]


def _failover_table(rows: Sequence[FailoverRow]) -> Table:
    table = Table(
        "A primary dies with its disk, by durability",
        (
            "durability",
            "replicas",
            "before it dies",
            "rounds",
            "acknowledged",
            "lost",
            "rounds with loss",
            "torn",
            "undetermined",
            "speed",
        ),
    )
    for row in rows:
        numbers = (row.rounds, row.acknowledged, row.lost, row.rounds_with_loss, row.torn, row.undetermined)
        table.rows.append(
            (
                row.durability,
                str(row.replicas),
                "replicas cut off" if row.lagging else "replicas in step",
                *(f"{number:,}" for number in numbers),
                f"{row.relative:.2f}",
            )
        )
    return table
