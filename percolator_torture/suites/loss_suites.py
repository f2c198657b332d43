"""The suites that kill a server, and their results: ``aof``, ``oracle`` and ``failover``.

They run rounds in portions, so that a run that is ended early keeps its results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial, reduce
from operator import add
from typing import Final, TypeVar

from percolator_core.errors import StoreUnavailable
from percolator_core.notation.amounts import count_of
from percolator_torture.losses.failover import SETTINGS, FailoverRow, Setting, failover
from percolator_torture.losses.log_loss import Fsync, LogLoss, log_loss
from percolator_torture.losses.pairs import Found
from percolator_torture.losses.timestamps import timestamps
from percolator_torture.suites.result import Result, Table
from percolator_torture.suites.settings import Settings

T = TypeVar("T")

LOG_ROUNDS: Final = 10
RESTARTS: Final = 20
FAILOVERS: Final = 4
"""Rounds if the settings name no number."""

_PORTION: Final = 20
_FAILOVER_PORTION: Final = 4
"""Rounds of each setting in a portion: one for each combination of ``two_phase`` and ``under_hub``."""


class _Stopped(Exception):
    """The user has ended the run in the middle of a portion."""


def run_log_loss(settings: Settings) -> Result:
    """Kill a server while clients write, and cut the log in the part that need not be on disk.

    With ``appendfsync always`` no acknowledged write may be lost, and none torn or doubled. The loss of
    ``everysec`` is measured. Raises the errors of `run`.
    """
    result, began = Result("aof", settings.seed), time.monotonic()
    found: dict[Fsync, LogLoss] = {}
    fsyncs: tuple[Fsync, ...] = ("always", "everysec")
    for fsync in fsyncs:
        portion = partial(log_loss, fsync=fsync)
        name, rounds = f"aof, {fsync}", settings.rounds or LOG_ROUNDS
        portions = list(_portions(settings, result, name, rounds, _PORTION, portion))
        if portions:
            total = found[fsync] = reduce(add, portions)
            result.wrong += _judge(f"appendfsync {fsync}", total.found, safe=fsync == "always")
    if "always" in found:
        rounds, sums = found["always"].rounds, found["always"].found
        result.run = f"SIGKILL mid-write x {rounds}, the log cut in its unsynced tail (appendfsync always)"
        result.found = f"{_sums(sums)}; {sums.undetermined:,} undetermined"
    result.figures = {fsync: asdict(one) for fsync, one in found.items()}
    result.tables = [_log_table(list(found.values()))]
    result.seconds = time.monotonic() - began
    return result


def run_timestamps(settings: Settings) -> Result:
    """Restart servers, lose logs, promote replicas, set clocks back; check that timestamps only increase.

    Raises the errors of `run`.
    """
    result, began = Result("oracle", settings.seed), time.monotonic()
    portions = list(_portions(settings, result, "oracle", settings.rounds or RESTARTS, _PORTION, timestamps))
    if portions:
        total = reduce(add, portions)
        result.figures = asdict(total)
        result.run = (
            f"{count_of(total.restarts, 'restart')} ("
            + "; ".join(f"{count} {kind}" for kind, count in sorted(total.by_kind.items()))
            + f"), the clock set back an hour at {total.clock_jumps} of them"
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
    """Measure the loss of each durability when a primary dies with its disk.

    No write may be torn or doubled, and none lost if the promoted replica has all acknowledged writes. Other
    losses are measured. Raises the errors of `run`.
    """
    result, began = Result("failover", settings.seed), time.monotonic()
    portion = partial(failover, settings=tried)
    rounds = settings.rounds or FAILOVERS
    portions = list(_portions(settings, result, "failover", rounds, _FAILOVER_PORTION, portion))
    rows = [reduce(add, same) for same in zip(*portions, strict=True)]
    if rows:
        result.run = f"{count_of(sum(row.rounds for row in rows), 'failover')}, {rows[0].rounds} of each kind"
        result.found = f"{_sums(sum((row.found for row in rows), Found()))}: see the table"
    for row in rows:
        result.wrong += _judge(f"{row.durability}, {row.before}", row.found, safe=row.safe)
    speeds = _relative_speeds(rows)
    result.figures = {
        "rows": [
            {**asdict(row), "per_second": row.per_second, "relative": speed}
            for row, speed in zip(rows, speeds, strict=True)
        ]
    }
    result.tables = [_failover_table(rows, speeds)]
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
    """Run ``rounds`` rounds, ``most`` at a time, until the user ends the run or a server stops answering."""
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
            # The factor is large, so that the portions of runs with neighboring seeds have different seeds.
            found = run(portion, settings.seed + done * 1_000_003, tell)
        except _Stopped:
            result.interrupted = True
            return
        except StoreUnavailable as error:
            result.wrong.append(f"{name} broke off after {count_of(done, 'round')} or more: {error}")
            return
        done += portion
        yield found


def _sums(found: Found) -> str:
    return (
        f"of {found.acknowledged:,} acknowledged {found.lost:,} lost, {found.torn:,} torn, "
        f"{found.doubled:,} doubled, {found.unexpected:,} unexpected"
    )


def _judge(where: str, found: Found, *, safe: bool) -> Iterator[str]:
    """Return the violations. Transactions may be lost only without ``safe``, and only as a whole."""
    judged = [
        (found.torn, "torn: in only one of two cells"),
        (found.doubled, "committed twice"),
        (found.unexpected, "reported as not committed, but present"),
    ]
    if safe:
        judged.append((found.lost, "acknowledged and lost"))
    for count, what in judged:
        if count:
            yield f"{where}: {count_of(count, 'transaction')} {what}"


def _log_table(found: Sequence[LogLoss]) -> Table:
    headings = ("acknowledged", "undetermined", "lost", "most in a round", "torn", "doubled", "unexpected")
    table = Table("A power cut, by appendfsync", ("appendfsync", "rounds", *headings))
    for one in found:
        sums = one.found
        numbers = [sums.acknowledged, sums.undetermined, sums.lost, one.most_lost]
        numbers += [sums.torn, sums.doubled, sums.unexpected]
        table.rows.append((one.fsync, f"{one.rounds:,}", *(f"{number:,}" for number in numbers)))
    return table


def _relative_speeds(rows: Sequence[FailoverRow]) -> list[float]:
    """Return the speed of each row of the report, relative to the first one with the same ``before``."""
    firsts = {row.before: row.per_second for row in reversed(rows)}
    return [row.per_second / (firsts[row.before] or 1.0) for row in rows]


def _failover_table(rows: Sequence[FailoverRow], speeds: Sequence[float]) -> Table:
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
            "doubled",
            "unexpected",
            "undetermined",
            "speed",
        ),
    )
    for row, speed in zip(rows, speeds, strict=True):
        sums = row.found
        numbers = [row.rounds, sums.acknowledged, sums.lost, row.rounds_with_loss]
        numbers += [sums.torn, sums.doubled, sums.unexpected, sums.undetermined]
        names = (row.durability, str(row.replicas), row.before)
        table.rows.append((*names, *(f"{number:,}" for number in numbers), f"{speed:.2f}"))
    return table
