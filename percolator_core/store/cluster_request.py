"""An operation on several slots of a cluster: one exchange for each slot, merged for the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from percolator_core.store.packing import Command, first_key
from percolator_core.store.request import AFTER, BEFORE, Exchange
from percolator_core.store.topology import slot_of

Send: TypeAlias = Callable[[Sequence[Exchange]], None]
"""Sends exchanges and returns when they are answered or given up."""


def assemble(
    commands: Sequence[Command], stamp: int, *, durable: bool, oracle_slot: int, send: Send
) -> Exchange:
    """Send each command to the server of its slot, and request a timestamp from the oracle's server.

    Commands to different slots have no order among each other. The returned exchange is answered or failed.
    """
    whole = Exchange((), stamp, durable=durable)
    if stamp == BEFORE and not _stamped(whole, oracle_slot, send):
        return whole
    places: dict[int, list[int]] = {}
    for position, command in enumerate(commands):
        places.setdefault(place_of(command, oracle_slot), []).append(position)
    parts = [
        Exchange([commands[position] for position in positions], slot=slot, durable=durable)
        for slot, positions in places.items()
    ]
    if parts:
        send(parts)
    replies: list[Any] = [None] * len(commands)
    for part, positions in zip(parts, places.values(), strict=True):
        whole.take_in(part)
        for position, reply in zip(positions, part.replies, strict=False):
            replies[position] = reply
    if whole.failure is None:
        whole.replies = replies
        if stamp >= AFTER:
            _stamped(whole, oracle_slot, send)
    return whole


def place_of(command: Command, oracle_slot: int) -> int:
    """Return the slot of a command's first key; without a key, that of the oracle."""
    key = first_key(command)
    return slot_of(key) if isinstance(key, bytes) and key.startswith(b"{") else oracle_slot


def _stamped(whole: Exchange, oracle_slot: int, send: Send) -> bool:
    """Request a timestamp for an exchange; return False if that failed."""
    stamp = Exchange((), BEFORE, slot=oracle_slot)
    send((stamp,))
    whole.timestamp, whole.epoch, whole.failure = stamp.timestamp, stamp.epoch, stamp.failure
    return stamp.failure is None
