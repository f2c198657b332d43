"""An operation upon several slots: where its parts go, in which order, and what they add up to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from percolator_core.errors import StoreUnavailable
from percolator_core.store.cluster import assemble
from percolator_core.store.request import AFTER, BEFORE, NONE, Exchange
from percolator_core.store.topology import slot_of

ORACLE = 7
A, B = b"{a}r", b"{b}r"
COMMANDS = [(b"EVALSHA", b"sha", 1, key) for key in (A, B, A)]


class Servers:
    """Answers each part with its slot and the number of the command; the oracle with the time."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.acknowledged = {slot_of(A): (1, 2), slot_of(B): (0, 3)}
        self.silent: set[int] = set()

    def send(self, parts: Sequence[Exchange]) -> None:
        for part in parts:
            self.sent.append(part.slot)
            if part.slot in self.silent:
                part.executed_maybe = True
                part.failure = StoreUnavailable("silent")
                continue
            part.replies = [(part.slot, number) for number, _ in enumerate(part.packed)]
            if part.stamp != NONE:
                part.timestamp = len(self.sent)
            if part.durable:
                part.acknowledged = self.acknowledged[part.slot]

    def assemble(self, stamp: int, *, durable: bool = False) -> Exchange:
        return assemble(COMMANDS, stamp, durable=durable, oracle_slot=ORACLE, send=self.send)


def test_each_part_goes_to_its_slot_and_the_replies_keep_the_order_of_the_commands() -> None:
    servers = Servers()
    assert servers.assemble(NONE).replies == [(slot_of(A), 0), (slot_of(B), 0), (slot_of(A), 1)]
    assert servers.sent == [slot_of(A), slot_of(B)]


@pytest.mark.parametrize(("stamp", "place"), [(BEFORE, 1), (AFTER, 3)])
def test_the_timestamp_keeps_its_place(stamp: int, place: int) -> None:
    """The commit timestamp is given out when every part has been answered, wherever it went."""
    servers = Servers()
    assert servers.assemble(stamp).timestamp == place
    assert servers.sent[place - 1] == ORACLE
    assert len(servers.sent) == 3


def test_the_least_safe_server_speaks_for_all() -> None:
    assert Servers().assemble(NONE, durable=True).acknowledged == (0, 2)


def test_one_part_that_fails_fails_the_whole_and_asks_for_no_timestamp() -> None:
    servers = Servers()
    servers.silent = {slot_of(B)}
    whole = servers.assemble(AFTER)
    assert whole.executed_maybe
    assert not whole.timestamp
    assert ORACLE not in servers.sent
    with pytest.raises(StoreUnavailable, match="silent") as error:
        whole.result()
    assert error.value.executed_maybe


def test_without_a_timestamp_nothing_is_read() -> None:
    servers = Servers()
    servers.silent = {ORACLE}
    whole = servers.assemble(BEFORE)
    assert servers.sent == [ORACLE]
    assert isinstance(whole.failure, StoreUnavailable)
