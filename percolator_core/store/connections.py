"""The connections of a store. A conversation is all exchanges of a hub, or one blocking call.

Each conversation has one connection to each server, which is opened when needed.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from percolator_core.errors import PercolatorError, of_another_process
from percolator_core.runtime import process
from percolator_core.store.embedded.server import EmbeddedServer
from percolator_core.store.pipeline import IDLE, Pipeline
from percolator_core.store.request import Exchange
from percolator_core.store.topology import Endpoint, Topology

if TYPE_CHECKING:
    from percolator_core.store.retries import RetryPolicy


class Connections:
    """Sends each exchange to the server that has its slot, and reads whichever reply comes first."""

    def __init__(
        self,
        topology: Topology,
        open_pipeline: Callable[[Endpoint], Pipeline],
        reply_timeout: float,
        home: list[Connections],
    ) -> None:
        """``reply_timeout`` is how many seconds a server may take for a reply.

        ``home`` is the list of idle connections; after a conversation, this object returns to it.
        """
        self.home = home
        self._topology = topology
        self._open_pipeline = open_pipeline
        self._reply_timeout = reply_timeout
        self._pipelines: dict[Endpoint, Pipeline] = {}
        self._only: Pipeline | None = None
        """The only pipeline if the store is one server that is never replaced: the fast path."""
        self._generation = topology.generation
        process.call_after_fork(self)

    @property
    def several(self) -> bool:
        """True if the store has more than one server."""
        return self._topology.clustered

    def in_flight(self) -> int:
        """Return the number of exchanges and trailers whose replies are still to come."""
        if self._only is not None:
            return self._only.in_flight()
        return sum([pipeline.in_flight() for pipeline in self._pipelines.values()])

    def run(self, exchanges: Sequence[Exchange]) -> None:
        """Send exchanges and wait until this attempt is over. A failed exchange stores its error."""
        self.send(exchanges)
        if self._only is not None:
            self._only.drain()
            return
        # Do not wait for unawaited exchanges: they may be on another server, which does not answer.
        while any(exchange.under_way for exchange in exchanges):
            self.receive()

    def send(self, batch: Sequence[Exchange]) -> Sequence[Exchange]:
        """Send a batch, whose replies `receive` reads. Return the exchanges that are left to send: none."""
        if self._generation != self._topology.generation:
            self._follow()
        if self._only is not None:
            self._only.send(batch)
        elif not self._topology.clustered:
            pipeline = self._to(self._topology.endpoint(0))
            if not self._topology.replaceable:
                self._only = pipeline
            pipeline.send(batch)
        else:
            for endpoint, group in self._by_place(batch).items():
                self._to(endpoint).send(group)
        return ()

    def holds(self, exchange: Exchange) -> bool:
        """Return True if the exchange has been sent and its replies are still to come."""
        return any(pipeline.holds(exchange) for pipeline in self._pipelines.values())

    def send_to_the_idle(self, batch: Sequence[Exchange]) -> list[Exchange]:
        """Send those exchanges of a batch whose server has nothing in flight; return the others."""
        left: list[Exchange] = []
        for endpoint, group in self._by_place(batch).items():
            pipeline = self._to(endpoint)
            if pipeline.in_flight():
                left += group
            else:
                pipeline.send(group)
        return left

    def _by_place(self, batch: Sequence[Exchange]) -> dict[Endpoint, list[Exchange]]:
        groups: dict[Endpoint, list[Exchange]] = {}
        for exchange in batch:
            try:
                endpoint = self._topology.endpoint(exchange.slot)
            except RedisError as nowhere:
                exchange.break_off(nowhere, sent=False)
                continue
            groups.setdefault(endpoint, []).append(exchange)
        return groups

    def send_unawaited(self, exchange: Exchange) -> None:
        """Send an exchange that may get lost. Its replies are read before those of the next exchange."""
        if self._generation != self._topology.generation:
            self._follow()
        try:
            pipeline = self._pipelines.get(self._topology.endpoint(exchange.slot))
        except RedisError:
            return
        if pipeline is not None:
            pipeline.send_unawaited(exchange)

    def receive(self, longest: float = IDLE) -> bool:
        """Read the replies to an exchange in flight, and notify its caller.

        With several servers, or one that can be replaced, wait at most ``longest`` seconds. Return False if
        no reply came.
        """
        if self._only is not None:
            self._only.receive()
            return True
        pipeline = self._first_of(
            [pipeline for pipeline in self._pipelines.values() if pipeline.in_flight()], longest
        )
        if pipeline is not None:
            pipeline.receive()
        return pipeline is not None

    def receive_buffered(self, has_time: Callable[[], bool]) -> None:
        """If there is one server, read further replies that have arrived, while ``has_time`` returns True."""
        if self._only is not None:
            self._only.receive_buffered(has_time)

    def abandon(self) -> list[Exchange]:
        """Close all connections without notifying callers; return the exchanges that were not over."""
        return [exchange for pipeline in self._pipelines.values() for exchange in pipeline.abandon()]

    def drain(self) -> None:
        """Read all replies in flight."""
        while self.in_flight():
            self.receive()

    def __del__(self) -> None:
        # When a thread ends, its connections are freed. After an unawaited exchange or an interrupt they are
        # in a cycle, and would stay open until the garbage collector finds it.
        for pipeline in self._pipelines.values():
            pipeline.close()

    def after_fork(self) -> None:
        """Leave the connections to the parent: the child must not read the parent's replies."""
        for pipeline in self._pipelines.values():
            pipeline.leave()

    def close(self) -> None:
        """Close all connections; the next batch opens new ones."""
        for pipeline in self._pipelines.values():
            pipeline.close()
        self._only = None

    def _to(self, endpoint: Endpoint) -> Pipeline:
        pipeline = self._pipelines.get(endpoint)
        if pipeline is None:
            pipeline = self._pipelines[endpoint] = self._open_pipeline(endpoint)
        return pipeline

    def _follow(self) -> None:
        """Close the connections to servers without slots: their replies may be out of date."""
        self._generation = self._topology.generation
        self._only = None
        current = set(self._topology.endpoints())
        for endpoint in [one for one in self._pipelines if one not in current]:
            pipeline = self._pipelines.pop(endpoint)
            pipeline.break_off(f"{endpoint} has no slots any more")

    def _first_of(self, busy: Sequence[Pipeline], longest: float) -> Pipeline | None:
        """Return a pipeline with a reply to read, or None; break off one that is silent for too long."""
        for pipeline in busy:
            if pipeline.has_reply():
                return pipeline
        poll = select.poll()
        by_descriptor: dict[int, Pipeline] = {}
        for pipeline in busy:
            descriptor = pipeline.socket.fileno()
            by_descriptor[descriptor] = pipeline
            poll.register(descriptor, select.POLLIN)
        patience = self._reply_timeout - max((pipeline.silent_for for pipeline in busy), default=0.0)
        ready = poll.poll(max(0.0, min(longest, patience)) * 1000)
        if ready:
            return by_descriptor[ready[0][0]]
        self._hang_up_on_the_silent()
        return None

    def _hang_up_on_the_silent(self) -> None:
        now = time.monotonic()
        for endpoint, pipeline in list(self._pipelines.items()):
            if not pipeline.in_flight() or pipeline.silent_for < min(IDLE, self._reply_timeout):
                continue
            if pipeline.silent_for >= self._reply_timeout:
                pipeline.break_off("the server is silent")
            elif not self._topology.confirms(endpoint, now - IDLE):
                pipeline.break_off("another server has taken its place")


class Pool:
    """All connections of one store. A conversation takes its thread's idle connections and gives them back.

    A signal handler or finalizer may call any method between any two steps of another call.
    """

    def __init__(
        self,
        make: Callable[[list[Connections]], Connections],
        after_fork: Callable[[], None],
        embedded: EmbeddedServer | None,
    ) -> None:
        """``make`` makes connections for a given `Connections.home`. `close` calls ``embedded.leave()``."""
        self._make = make
        self._after_fork = after_fork
        self._embedded = embedded
        self._local = threading.local()
        """The idle connections of each thread; they are closed when the thread ends."""
        self._all: process.Living[Connections] = process.Living()
        self._pid = process.pid
        self._closed = False

    def open(self) -> Connections:
        """Open connections that only the calling hub uses."""
        if self._pid != process.pid:
            self._leave_to_parent()
        return self._add([])

    def converse(
        self, retry_policy: RetryPolicy, exchanges: Sequence[Exchange], owner: int | None = None
    ) -> None:
        """Send the exchanges over idle connections, and wait until each has its replies or has failed.

        The requests of a signal handler or finalizer use other connections. If it forks, the child does not
        go on: exchanges fail if a process other than ``owner`` would send them.
        """
        owner = owner or process.pid
        connections = self.take()
        try:
            while True:
                if owner != process.pid:
                    for one in exchanges:
                        one.fail(of_another_process("call"))
                    break
                connections.run(exchanges)
                left = []
                for one in exchanges:
                    if not one.done and retry_policy.allows(one):
                        left.append(one)  # noqa: PERF401 - a comprehension takes longer
                if not left:
                    break
                exchanges = left if owner != process.pid else retry_policy.repair_all(left)
        except BaseException:
            self.drop(connections)
            raise
        self.give_back(connections)

    def take(self) -> Connections:
        """Take the idle connections of this thread, or open others, for one conversation.

        A handler that calls this method never gets connections in use: the list gives away its last element
        in one step, which no signal handler can interrupt.
        """
        if self._closed:
            raise PercolatorError("the database is closed: connect again")
        if self._pid != process.pid:
            self._leave_to_parent()
        try:
            return self._local.home.pop()  # type: ignore[no-any-return]
        except AttributeError:
            home = self._local.home = []
        except IndexError:
            home = self._local.home
        return self._add(home)

    def give_back(self, connections: Connections) -> None:
        """Make the connections idle again: their conversation is over."""
        connections.home.append(connections)
        if self._closed:
            self._close_idle()

    def drop(self, connections: Connections) -> None:
        """Close the connections of a conversation that was broken off: replies may still arrive."""
        self._all.discard(connections)
        connections.close()
        if self._closed:
            self._close_idle()

    def close(self) -> None:
        """Close all connections; one that is in use is closed when it is given back. Idempotent."""
        if not self._closed:
            self._closed = True
            self._close_idle()

    def _add(self, home: list[Connections]) -> Connections:
        connections = self._make(home)
        self._all.add(connections)
        return connections

    def _close_idle(self) -> None:
        """Close idle connections. Stop using the embedded server, unless this thread waits for a reply."""
        under_way = False
        if self._pid == process.pid:
            home = getattr(self._local, "home", None)
            for connections in self._all:
                try:
                    connections.home.remove(connections)
                except ValueError:
                    # In use: `give_back` or `drop` calls this again. A hub closes its own connections.
                    under_way = under_way or connections.home is home
                    continue
                self._all.discard(connections)
                connections.drain()
                connections.close()
        if self._embedded is not None and not under_way:
            self._embedded.leave()

    def _leave_to_parent(self) -> None:
        """In a forked child: leave the connections to the parent, and join an embedded server anew."""
        self._local = threading.local()
        self._all = process.Living()
        self._pid = process.pid
        self._after_fork()
