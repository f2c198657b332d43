"""Measure the losses of a power cut on a server with a log on disk."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from percolator_torture.losses.pairs import Found, Pairs, create_tables, open_pairs
from percolator_torture.servers.private_server import PrivateServer

Fsync: TypeAlias = Literal["always", "everysec"]

_SYNC_PERIOD: Final = 1.0
"""Seconds of writing that "everysec" may lose."""


@dataclass(frozen=True, slots=True)
class LogLoss:
    """The outcome of all rounds, in transactions; ``most_lost`` is the largest loss of one round.

    Outcomes can be added.
    """

    fsync: Fsync
    rounds: int = 0
    found: Found = field(default_factory=Found)
    most_lost: int = 0

    def __add__(self, other: LogLoss) -> LogLoss:
        return LogLoss(
            self.fsync,
            self.rounds + other.rounds,
            self.found + other.found,
            max(self.most_lost, other.most_lost),
        )


def log_loss(rounds: int, seed: int, tell: Callable[[str], None], fsync: Fsync) -> LogLoss:
    """Kill a server in the middle of writing, cut the unsynced part of its log, and look for losses.

    The kernel still has the writes of a killed process. So the test cuts the log itself, at a random byte
    after the part that is certainly synced. With "always", that part ends at the largest size of the log
    seen after an acknowledgement. With "everysec", it ends at the size that the log had a second before the
    kill, or at the start of the round if that is larger. (By its documentation, Redis may need two seconds if
    the disk is slow.) Half of the rounds commit in two phases.

    Args:
        rounds: 1 or more, of about a second each, on one server and log.
        seed: of all random choices.
        tell: called with a line for each round.
        fsync: the server's ``appendfsync``.

    Raises:
        StoreUnavailable: the server does not start again.
    """
    choices = random.Random(seed)
    total = LogLoss(fsync)
    # All rounds append to one log, which is never rewritten.
    with PrivateServer(
        appendonly="yes", appendfsync=fsync, aof_load_truncated="yes", auto_aof_rewrite_percentage="0"
    ) as server:
        with open_pairs(server.url) as db:
            create_tables(db)
        for number in range(rounds):
            left = _round(server, number, choices, fsync)
            total += LogLoss(fsync, 1, left, left.lost)
            tell(f"round {number + 1} of {rounds}: {left.acknowledged} acknowledged, {left.lost} lost")
    return total


def _round(server: PrivateServer, number: int, choices: random.Random, fsync: Fsync) -> Found:
    base = server.log_size()
    sizes: list[tuple[float, int]] = []
    enough, place = choices.randint(40, 400), choices.random()
    # Longer than the time whose writes may be lost: the first writes of the round have to survive.
    at_least = _SYNC_PERIOD * choices.uniform(1.05, 1.2) if fsync == "everysec" else 0.0
    killed_at = 0.0

    def strike() -> None:
        nonlocal killed_at
        pairs.await_finished(enough, at_least)
        killed_at = time.monotonic()
        server.kill()

    # Closed when the server is back, so that the client removes its liveness token.
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
        return pairs.find(db)


def _synced(sizes: Sequence[tuple[float, int]], base: int, killed_at: float, fsync: Fsync) -> int:
    """Return the bytes of the log that are certainly on disk."""
    latest = killed_at - _SYNC_PERIOD if fsync == "everysec" else float("inf")
    return max([base, *(size for at, size in sizes if at <= latest)])


def _cut(server: PrivateServer, synced: int, place: float) -> None:
    """Cut the log at ``place`` (0 to 1) between the synced part and its end."""
    log = server.newest_log()
    assert log is not None
    os.truncate(log, synced + round(place * (log.stat().st_size - synced)))
