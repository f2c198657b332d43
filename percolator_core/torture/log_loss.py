"""What a power cut takes from a server that logs to disk."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from percolator_core.torture.pairs import Found, Pairs, create_tables, open_pairs
from percolator_core.torture.victim import VictimServer

Fsync: TypeAlias = Literal["always", "everysec"]

_SYNC_PERIOD: Final = 1.0
"""Seconds of writing that "everysec" may lose."""


@dataclass(frozen=True, slots=True)
class LogLoss:
    """What was found after all rounds, in transactions.

    ``unknown`` ended in CommitUndetermined. ``lost``, ``torn``, ``doubled`` and ``unexpected`` are as in
    `Found`. ``longest_loss`` is the most that one round lost.
    """

    fsync: Fsync
    rounds: int
    acknowledged: int
    unknown: int
    lost: int
    torn: int
    doubled: int
    unexpected: int
    longest_loss: int


def log_loss(rounds: int, seed: int, fsync: Fsync, tell: Callable[[str], None]) -> LogLoss:
    """Kill a server in the middle of writing, cut off what its disk need not have, and look what is left.

    A killed process leaves its writes to the kernel, so the cut is made by hand: at a random byte behind all
    that is known to be synced. That is, with "always", the largest size of the log seen after any
    acknowledgement; with "everysec" its size a second before the end, and never less than at the round's
    start. (The server itself speaks of up to two seconds when the disk is slow.) Half of the rounds commit in
    two phases.

    Args:
        rounds: 1 or more, of about a second each, on one server and log.
        seed: of all random choices.
        fsync: the server's ``appendfsync``.
        tell: takes a line for each round.

    Raises:
        StoreUnavailable: the server does not start again.
    """
    choices = random.Random(seed)
    found: list[Found] = []
    acknowledged = unknown = 0
    settings = {"appendonly": "yes", "appendfsync": fsync, "aof-load-truncated": "yes"}
    # One file for all rounds: what an earlier one wrote is never rewritten.
    with VictimServer(**settings, **{"auto-aof-rewrite-percentage": "0"}) as server:
        with open_pairs(server.url) as db:
            create_tables(db)
        for number in range(rounds):
            pairs, left = _round(server, number, choices, fsync)
            found.append(left)
            acknowledged += pairs.acknowledgements
            unknown += pairs.unknown
            tell(f"round {number + 1} of {rounds}: {pairs.acknowledgements} acknowledged, {left.lost} lost")
    return LogLoss(
        fsync,
        rounds,
        acknowledged,
        unknown,
        sum(one.lost for one in found),
        sum(one.torn for one in found),
        sum(one.doubled for one in found),
        sum(one.unexpected for one in found),
        max((one.lost for one in found), default=0),
    )


def _round(server: VictimServer, number: int, choices: random.Random, fsync: Fsync) -> tuple[Pairs, Found]:
    base = server.log_size()
    sizes: list[tuple[float, int]] = []
    enough, place = choices.randint(40, 400), choices.random()
    # Longer than what may be lost, so that something of the round has to stay.
    at_least = _SYNC_PERIOD * choices.uniform(1.05, 1.2) if fsync == "everysec" else 0.0
    killed_at = 0.0

    def strike() -> None:
        nonlocal killed_at
        pairs.await_finished(enough, at_least)
        killed_at = time.monotonic()
        server.kill()

    # Closed when the server is back: so the client takes its liveness token away.
    with open_pairs(server.url, two_phase=number % 2 == 1) as db:
        pairs = Pairs(
            db,
            f"{number}",
            under_hub=number % 4 < 2,
            on_acknowledged=lambda: sizes.append((time.monotonic(), server.log_size())),
        )
        pairs.write(strike)
        _cut(server, _synced(sizes, base, killed_at, fsync), place)
        server.start()
    with open_pairs(server.url) as db:
        return pairs, pairs.find(db)


def _synced(sizes: Sequence[tuple[float, int]], base: int, killed_at: float, fsync: Fsync) -> int:
    """How much of the log is on disk for sure, in bytes."""
    latest = killed_at - _SYNC_PERIOD if fsync == "everysec" else float("inf")
    return max([base, *(size for at, size in sizes if at <= latest)])


def _cut(server: VictimServer, synced: int, place: float) -> None:
    """Cut the log ``place`` of the way (0 to 1) from what is synced to its end."""
    log = server.newest_log()
    assert log is not None
    os.truncate(log, synced + round(place * (log.stat().st_size - synced)))
