"""The client of the servers that hold the data."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from redis.exceptions import BusyLoadingError

from percolator_core import scripts
from percolator_core.errors import ConfigurationError, PercolatorError, StoreUnavailable
from percolator_core.keys import Keyspace
from percolator_core.scripts import Script
from percolator_core.store.dial import CONNECT_PATIENCE, WITH_SHEBANG, Dialer
from percolator_core.store.durability import Durability
from percolator_core.store.embedded import EmbeddedServer
from percolator_core.store.exchange import AFTER, BEFORE, NONE, Command, Exchange
from percolator_core.store.facts import ServerFacts, read_facts, refuse_unsuitable
from percolator_core.store.hub import Hub, current_hub
from percolator_core.store.lines import Lines
from percolator_core.store.subscription import Subscription
from percolator_core.store.topology import (
    Endpoint,
    discover,
    slot_of,
)
from percolator_core.store.url import parse, redacted
from percolator_core.store.wire import LOST, Wire

FORMAT: Final = "1"
"""The layout of the data. A store that holds another one is refused, not guessed at."""

_COUNTS_DISK: Final = (7, 2)
"""The first version that knows WAITAOF."""


class OutcomeOpenError(Exception):
    """A request failed that may have been executed all the same. The cause says how it failed."""


class Decision(NamedTuple):
    """The reply to a command on which an outcome hangs.

    ``repeated`` says whether it may have been executed before, ``timestamp`` is one given out after it if one
    was asked for, else 0, and ``durable`` whether it is as safe as the store's durability asks.
    """

    reply: Any
    repeated: bool
    timestamp: int
    durable: bool


class Store:
    """Sends commands to the servers; repeats what got lost; loads scripts that a server forgot.

    Every command of this library may be executed twice without harm, so a request whose reply is lost is
    sent again, for at most ``patience`` seconds; then it fails with `StoreUnavailable`.
    """

    def __init__(
        self,
        url: str,
        keyspace: Keyspace,
        *,
        patience: float = 10.0,
        timeout: float = 10.0,
        durability: Durability | None = None,
        load_scripts: Callable[[bool], Mapping[str, Script]] = scripts.load,
    ) -> None:
        """``durability`` overrides the URL's. ``load_scripts`` is another one where time is tested."""
        self.url = redacted(url)
        self.keyspace = keyspace
        self.patience = self._patience = patience
        address = parse(url)
        self.durability = durability if durability is not None else Durability.parse(address.durability)
        self._local = threading.local()
        self._open: weakref.WeakSet[Lines] = weakref.WeakSet()  # one goes with the thread that used it
        self._open_lock = threading.Lock()
        self._pid = os.getpid()
        self._connecting_since = time.monotonic()
        self._closed = False
        self.embedded: EmbeddedServer | None = None
        if address.kind == "embedded":
            assert address.folder is not None
            self.embedded = EmbeddedServer.join(address.folder)
        try:
            self._dialer = Dialer(address, keyspace, load_scripts, timeout)
            self._topology = discover(address, self._dialer, self.url, self.embedded)
            self._oracle_slot = slot_of(keyspace.oracle)
            self._counts_disk = False
            self._scripts = load_scripts(False)
            self.patience = min(patience, CONNECT_PATIENCE)
            facts = self._examine()
            self.patience, self._connecting_since = patience, 0.0
            self._scripts = load_scripts(facts.version_pair[0] >= WITH_SHEBANG)
            self._counts_disk = facts.version_pair >= _COUNTS_DISK
            self._demand_durability(facts)
            self.check_format(self.one((b"GET", keyspace.format)))
        except BaseException:
            self.close()
            raise

    @property
    def clustered(self) -> bool:
        """Whether the tablets are on several servers, so that a script reaches one tablet only."""
        return self._topology.clustered

    def call(self, *commands: Command) -> list[Any]:
        """Send the commands together and return their replies in order.

        Raises:
            StoreUnavailable: the server did not answer, or refuses writes.
        """
        return self.exchange(commands).result()

    def timestamp_then(self, *commands: Command) -> tuple[int, list[Any]]:
        """A timestamp, and the replies to commands that the server runs after it has given it out."""
        exchange = self.exchange(commands, BEFORE)
        replies = exchange.result()
        return exchange.timestamp, replies

    def then_timestamp(self, *commands: Command) -> tuple[list[Any], int]:
        """The replies to the commands, and a timestamp given out after the last of them was executed.

        Raises:
            StoreUnavailable: no answer, or the commands are not as safe as the durability asks.
        """
        exchange = self.exchange(commands, AFTER, durable=self.durability.required)
        replies = exchange.result()
        self._demand_acknowledged(exchange)
        return replies, exchange.timestamp

    def decide(self, command: Command, *, then_timestamp: bool = False) -> Decision:
        """Send a command on which an outcome hangs.

        Raises:
            OutcomeOpenError: it failed, and whether it was executed before that is not known.
        """
        stamp = AFTER if then_timestamp else NONE
        exchange = self.exchange((command,), stamp, durable=self.durability.required)
        try:
            if not exchange.replies:
                exchange.result()
        except PercolatorError as error:
            if exchange.executed_maybe:
                raise OutcomeOpenError from error
            raise
        # With the reply the outcome is known, whatever became of the timestamp behind it.
        durable = self._is_durable(exchange)
        return Decision(exchange.replies[0], exchange.executed_maybe, exchange.timestamp, durable)

    def call_durably(self, *commands: Command) -> list[Any]:
        """As `call`, for writes that others will build upon: they must be as safe as the durability asks.

        Raises:
            StoreUnavailable: they are not, or not in time. They were executed, and may be sent again.
        """
        exchange = self.exchange(commands, durable=self.durability.required)
        replies = exchange.result()
        self._demand_acknowledged(exchange)
        return replies

    def call_apart(self, *commands: Command) -> list[Any]:
        """As `call`, but on the thread's own connection also under a hub, where it holds up all tasks.

        For what must not be interleaved with other tasks of the thread.
        """
        return self._assembled(commands, NONE, durable=False, send=self._converse).result()

    def exchange(self, commands: Sequence[Command], stamp: int = NONE, *, durable: bool = False) -> Exchange:
        """The one way to issue an operation: send the commands and wait until they are answered, or given up.

        Failures are noted in the exchange, and raised by its `result`. On a cluster commands to several
        tablets have no order among each other, but the timestamp keeps its place.
        """
        hub = current_hub()
        send = hub.exchange if hub is not None and hub.owner is self else self._converse
        if self._topology.clustered:
            return self._assembled(commands, stamp, durable=durable, send=send)
        exchange = Exchange(commands, stamp, durable=durable)
        send((exchange,))
        return exchange

    def _assembled(
        self,
        commands: Sequence[Command],
        stamp: int,
        *,
        durable: bool,
        send: Callable[[Sequence[Exchange]], None],
    ) -> Exchange:
        """An exchange put together from one for each slot, and one with the oracle."""
        whole = Exchange((), stamp, durable=durable)
        if stamp == BEFORE and not self._stamp(whole, send):
            return whole
        places: dict[int, list[int]] = {}
        for position, command in enumerate(commands):
            places.setdefault(self._slot(command), []).append(position)
        parts = [
            Exchange([commands[position] for position in positions], slot=slot, durable=durable)
            for slot, positions in places.items()
        ]
        if parts:
            send(parts)
        replies: list[Any] = [None] * len(commands)
        for part, positions in zip(parts, places.values(), strict=True):
            whole.executed_maybe = whole.executed_maybe or part.executed_maybe
            whole.failure = whole.failure or part.failure
            whole.acknowledged = _lesser(whole.acknowledged, part.acknowledged)
            for position, reply in zip(positions, part.replies, strict=False):
                replies[position] = reply
        if whole.failure is None:
            whole.replies = replies
            if stamp == AFTER:
                self._stamp(whole, send)
        return whole

    def _stamp(self, whole: Exchange, send: Callable[[Sequence[Exchange]], None]) -> bool:
        """Have the oracle stamp an exchange; whether it did."""
        stamp = Exchange((), BEFORE, slot=self._oracle_slot)
        send((stamp,))
        whole.timestamp, whole.failure = stamp.timestamp, stamp.failure
        return stamp.failure is None

    def _slot(self, command: Command) -> int:
        """The slot of a command's first key; one without a key goes where the oracle is."""
        position = 3 if command[0] == b"EVALSHA" else 1
        if len(command) <= position or not self._topology.clustered:
            return self._oracle_slot
        key = command[position]
        return slot_of(key) if isinstance(key, bytes) and key.startswith(b"{") else self._oracle_slot

    def _converse(self, exchanges: Sequence[Exchange]) -> None:
        lines = self._lines()
        while True:
            lines.run(exchanges)
            exchanges = [
                one
                for one in exchanges
                if not one.done and not one.must_give_up(self._patience_with(one), self._connecting_since)
            ]
            if not exchanges:
                return
            if any(not one.may_go_on_at_once() for one in exchanges):
                time.sleep(0.02)
            for one in exchanges:
                try:
                    self._repair(one)
                except PercolatorError as error:
                    one.fail(error)  # not raised: the exchange knows whether it was executed
            exchanges = [one for one in exchanges if one.failure is None]

    def one(self, command: Command) -> Any:
        """Send one command and return its reply."""
        return self.call(command)[0]

    def defer(self, *commands: Command) -> None:
        """Send the commands without waiting. If they get lost, whoever meets the locks makes up for it."""
        hub = current_hub()
        if self._topology.clustered:
            exchanges = [Exchange((command,), slot=self._slot(command)) for command in commands]
        else:
            exchanges = [Exchange(commands)]
        if hub is not None and hub.owner is self:
            hub.defer(exchanges)
        else:
            for exchange in exchanges:
                self._lines().send_unawaited(exchange)

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` pass; under a hub other tasks go on."""
        hub = current_hub()
        if hub is not None:
            hub.sleep(seconds)
        else:
            time.sleep(seconds)

    def script(self, name: str, keys: Sequence[bytes], *args: bytes | str | int) -> Command:
        """The command that runs a script."""
        return (b"EVALSHA", self._scripts[name].sha, len(keys), *keys, *args)

    def sha(self, name: str) -> bytes:
        """The name by which a server knows a script."""
        return self._scripts[name].sha

    def hub(self, width: int) -> Hub:
        """A new hub with connections of its own, for the calling thread."""
        return Hub(self, self._open_lines(), self.patience, self._repair, width)

    def facts(self) -> ServerFacts:
        """What the server says about itself now; of a cluster, the one that has the oracle."""
        return read_facts(self.one((b"INFO",)))

    def all_facts(self) -> list[ServerFacts]:
        """What each server that holds data says about itself now.

        Raises:
            StoreUnavailable: one of them does not answer.
        """
        if not self._topology.clustered:
            return [self.facts()]
        found = []
        for endpoint in self._topology.endpoints():
            try:
                found.append(read_facts(self._dialer.ask(endpoint, (b"INFO",))))
            except LOST as lost:
                raise StoreUnavailable(f"{endpoint} does not answer ({lost}): check that it runs") from lost
        return found

    def check_format(self, found: bytes | None) -> None:
        """Refuse a namespace whose data has another format; None is one that has no tables yet.

        Raises:
            ConfigurationError: it has.
        """
        if found is not None and found.decode(errors="replace") != FORMAT:
            raise ConfigurationError(
                f"{self.url} holds data of format {found.decode(errors='replace')!r} in the namespace "
                f"{self.keyspace.namespace!r} and this version reads format {FORMAT}: "
                "use the matching version, or another namespace"
            )

    def subscription(self) -> Subscription:
        """The wake-up calls of this namespace's tablets."""
        # Half of the tag: every tablet of every table in the namespace. The encoding leaves no glob
        # character in it.
        pattern = self.keyspace.prefix[:-1] + b":*wake"
        return Subscription(lambda: self._dialer.client(self._topology.endpoint(self._oracle_slot)), pattern)

    def close(self) -> None:
        """Close all connections; an embedded server stops with its last user. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() == self._pid:
            with self._open_lock:
                opened = list(self._open)
            for lines in opened:
                lines.drain()
                lines.close()
        if self.embedded is not None:
            self.embedded.leave()

    # Connections.

    def _examine(self) -> ServerFacts:
        """Refuse servers that cannot be trusted with data; returns what the first one says."""
        facts = [self.facts(), *(self._facts_of_all_in_time() if self.clustered else [])]
        for one in facts:
            refuse_unsuitable(one, self.url, clustered=self.clustered)
        return facts[0]

    def _facts_of_all_in_time(self) -> list[ServerFacts]:
        """As `all_facts`, with some patience: one that has died may be about to be replaced."""
        while True:
            try:
                return self.all_facts()
            except StoreUnavailable:
                if time.monotonic() - self._connecting_since > self.patience:
                    raise
            time.sleep(0.1)
            self._topology.look_around()

    def _demand_durability(self, facts: ServerFacts) -> None:
        """Make sure that the durability asked for can be had at all.

        Raises:
            ConfigurationError: it cannot.
        """
        if self.durability.required:
            # Once now, with nothing to wait for: a user who may not would else learn it at a commit point.
            self.one(
                (b"WAITAOF", 0, 0, 1) if self.durability.fsync and self._counts_disk else (b"WAIT", 0, 1)
            )
        if not self.durability.fsync:
            return
        if facts.raw.get("aof_enabled") != "1":
            raise ConfigurationError(
                f"durability fsync: {self.url} keeps no log on disk: set appendonly yes, or leave fsync out"
            )
        if self._counts_disk:
            return
        if self.embedded is not None:
            # The server is ours. Others who share it write no less safely for it.
            self.one((b"CONFIG", b"SET", b"appendfsync", b"always"))
        elif self.one((b"CONFIG", b"GET", b"appendfsync"))[1] != b"always":
            raise ConfigurationError(
                f"durability fsync: {self.url} is Redis {facts.version}, which cannot say what is on disk "
                "(7.2 can): set appendfsync always, or leave fsync out"
            )

    def _acknowledge(self, key: bytes) -> Sequence[Command]:
        return self.durability.requests(key, counts_disk=self._counts_disk)

    def _is_durable(self, exchange: Exchange) -> bool:
        return self.durability.met_by(exchange.acknowledged, counts_disk=self._counts_disk)

    def _demand_acknowledged(self, exchange: Exchange) -> None:
        """Raises StoreUnavailable unless disk and replicas have what a durable exchange wrote."""
        if exchange.durable and not self._is_durable(exchange):
            disk, replicas = exchange.acknowledged or (0, 0)
            shortfall = StoreUnavailable(
                f"only {replicas} of {self.durability.replicas} replicas"
                + (f" and {disk} of 1 disks" if self.durability.fsync and self._counts_disk else "")
                + f" had the write after {self.durability.timeout:g} s: "
                "mend the replicas or the disk, or ask for less durability"
            )
            shortfall.executed_maybe = True
            raise shortfall

    def _timestamps(self, count: int) -> Command:
        return self.script("timestamp", (self.keyspace.oracle,), count)

    def _open_lines(self) -> Lines:
        self._notice_fork()
        lines = Lines(self._topology, self._open_wire, self._dialer.timeout)
        with self._open_lock:
            self._open.add(lines)
        return lines

    def _open_wire(self, endpoint: Endpoint) -> Wire:
        return Wire(
            partial(self._dialer.dial, endpoint),
            self._timestamps,
            # Nobody makes a replica of an embedded server.
            self._dialer.greet if self.embedded is None else None,
            self._acknowledge,
            partial(self._topology.confirms, endpoint) if self._topology.watched else None,
        )

    def _lines(self) -> Lines:
        if self._closed:
            raise PercolatorError("the database is closed: connect again")
        self._notice_fork()
        lines: Lines | None = getattr(self._local, "lines", None)
        if lines is None:
            lines = self._local.lines = self._open_lines()
        return lines

    def _notice_fork(self) -> None:
        """In a forked child: leave the connections to the parent, and join an embedded server anew."""
        if self._pid == os.getpid():
            return
        self._open_lock = threading.Lock()
        self._local = threading.local()
        self._open = weakref.WeakSet()
        self._pid = os.getpid()
        self._topology.after_fork()

    def _patience_with(self, exchange: Exchange) -> float:
        """A server that loads its data is there, and may take its time also when we connect."""
        return self._patience if isinstance(exchange.trouble, BusyLoadingError) else self.patience

    def _repair(self, exchange: Exchange) -> None:
        """Mend what an exchange failed for, as far as a client can."""
        if exchange.missing_script and exchange.wire is not None:
            exchange.missing_script = False
            sources = [(b"SCRIPT", b"LOAD", script.source) for script in self._scripts.values()]
            loading = Exchange(sources)
            exchange.wire.run(loading)
            exchange.failure = loading.failure
        else:
            self._topology.heal(exchange)


def _lesser(one: tuple[int, int] | None, other: tuple[int, int] | None) -> tuple[int, int] | None:
    """What two servers both have acknowledged."""
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), min(one[1], other[1])
