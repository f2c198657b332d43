"""The connections of one conversation, a thread's or a hub's: one to each server, opened when needed."""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from percolator_core.store.exchange import Exchange
from percolator_core.store.topology import Endpoint, Topology
from percolator_core.store.wire import Wire


class Lines:
    """Sends each exchange to the server that has its slot, and takes in whatever comes first."""

    def __init__(
        self, topology: Topology, open_wire: Callable[[Endpoint], Wire], reply_timeout: float
    ) -> None:
        """``reply_timeout`` is how many seconds a server that owes a reply may be silent."""
        self._topology = topology
        self._open_wire = open_wire
        self._reply_timeout = reply_timeout
        self._wires: dict[Endpoint, Wire] = {}
        self._generation = topology.generation

    @property
    def in_flight(self) -> int:
        """Replies that are still to come, counted in exchanges."""
        total = 0
        for wire in self._wires.values():
            total += wire.in_flight
        return total

    def run(self, exchanges: Sequence[Exchange]) -> None:
        """Send exchanges and wait until this attempt is over. Failures are noted in them, not raised."""
        self.send(exchanges)
        self.drain()

    def send(self, batch: Sequence[Exchange]) -> None:
        """Send a batch. Replies are taken in by `receive`."""
        if self._generation != self._topology.generation:
            self._follow()
        if not self._topology.clustered:
            self._to(self._topology.endpoint(0)).send(batch)
            return
        groups: dict[Endpoint, list[Exchange]] = {}
        for exchange in batch:
            try:
                endpoint = self._topology.endpoint(exchange.slot)
            except RedisError as nowhere:
                exchange.break_off(nowhere, sent=False)
                continue
            groups.setdefault(endpoint, []).append(exchange)
        for endpoint, group in groups.items():
            self._to(endpoint).send(group)

    def send_unawaited(self, exchange: Exchange) -> None:
        """Send now; its replies are taken in before those of the next exchange. It may get lost."""
        if self._generation != self._topology.generation:
            self._follow()
        try:
            wire = self._wires.get(self._topology.endpoint(exchange.slot))
        except RedisError:
            return
        if wire is not None:
            wire.send_unawaited(exchange)

    def receive(self) -> None:
        """Take in the replies to an exchange in flight, and tell its caller."""
        busy = [wire for wire in self._wires.values() if wire.in_flight]
        wire = busy[0] if len(busy) == 1 else self._first_of(busy)
        if wire is not None:
            wire.receive()

    def drain(self) -> None:
        """Take in everything in flight."""
        while self.in_flight:
            self.receive()

    def close(self) -> None:
        """Drop all connections; others come with the next batch."""
        for wire in self._wires.values():
            wire.close()

    def _to(self, endpoint: Endpoint) -> Wire:
        wire = self._wires.get(endpoint)
        if wire is None:
            wire = self._wires[endpoint] = self._open_wire(endpoint)
        return wire

    def _follow(self) -> None:
        """Hang up on servers that have no slots any more: what they still say may be out of date."""
        self._generation = self._topology.generation
        current = set(self._topology.endpoints())
        for endpoint in [one for one in self._wires if one not in current]:
            wire = self._wires.pop(endpoint)
            wire.break_off(f"{endpoint} has no data of ours any more")

    def _first_of(self, busy: Sequence[Wire]) -> Wire | None:
        """A wire from which something can be read; hangs up on one that is silent for too long."""
        for wire in busy:
            if wire.buffered:
                return wire
        longest = max(busy, key=lambda wire: wire.silent_for)
        poll = select.poll()
        by_descriptor: dict[int, Wire] = {}
        for wire in busy:
            descriptor = wire.socket.fileno()
            by_descriptor[descriptor] = wire
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(max(0.0, self._reply_timeout - longest.silent_for) * 1000)
        if ready:
            return by_descriptor[ready[0][0]]
        longest.break_off("the server is silent")
        return None
