"""The client of the servers that hold the data: commands, durability, timestamps, hubs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from greenlet import getcurrent

from percolator_core import scripts
from percolator_core.errors import ConfigurationError, PercolatorError, StoreUnavailable
from percolator_core.layout.keys import Keyspace
from percolator_core.runtime.batches import batched
from percolator_core.scripts import Script, calls
from percolator_core.scripts.calls import Call
from percolator_core.store.checks import assure_disk, demand_log, examine
from percolator_core.store.cluster import Send, assemble, place_of
from percolator_core.store.connections import Connections, Pool
from percolator_core.store.connector import CONNECT_PATIENCE, WITH_SHEBANG, Connector
from percolator_core.store.durability import Durability
from percolator_core.store.embedded.server import EmbeddedServer, own_error_first
from percolator_core.store.eviction import EvictingStore, EvictionCheck
from percolator_core.store.hub import Hub, current_hub
from percolator_core.store.known_faults import warn_once
from percolator_core.store.packing import Command
from percolator_core.store.pipeline import Pipeline
from percolator_core.store.redaction import redacted
from percolator_core.store.refusals import LOST
from percolator_core.store.request import AFTER, BEFORE, NONE, SPARE, Decision, Exchange, OutcomeOpenError
from percolator_core.store.retries import RetryPolicy
from percolator_core.store.server_info import ServerInfo, read_info
from percolator_core.store.servers import discover
from percolator_core.store.subscription import Subscription
from percolator_core.store.task import Task
from percolator_core.store.topology import Endpoint, slot_of
from percolator_core.store.url import Address, parse

T = TypeVar("T")

FORMAT: Final = "2"
"""The version of the data layout. A store with another version is refused."""

_COUNTS_DISK: Final = (7, 2)
"""The first version of Redis that has WAITAOF."""


class Store:
    """Sends commands to the servers, and sends them again after a failure.

    Every command of this library may be executed twice without harm. So a request whose reply is lost is
    sent again for at most ``patience`` seconds; then it fails with `StoreUnavailable`.
    """

    def __init__(
        self,
        url: str,
        keyspace: Keyspace,
        *,
        patience: float = 10.0,
        timeout: float = 10.0,
        durability: Durability | str | None = None,
        load_scripts: Callable[[bool], Mapping[str, Script]] = scripts.load,
    ) -> None:
        """``durability`` replaces that of the URL. Tests that set the clock pass other ``load_scripts``."""
        self.url = redacted(url)
        self.keyspace = keyspace
        self.patience = patience
        address = parse(url)
        self.durability = Durability.of(durability, address.durability)
        self._timestamp_requests: dict[int, bytes] = {}
        """Packed requests to the oracle, by the number of timestamps."""
        self._checks: dict[Endpoint, EvictionCheck] = {}
        self.embedded: EmbeddedServer | None = None
        if address.kind == "embedded":
            assert address.folder is not None
            self.embedded = EmbeddedServer.join(address.folder)
        self._pool = Pool(self._make_connections, lambda: self._topology.after_fork(), self.embedded)  # noqa: PLW0108 - it is discovered later
        self._must_be_durable = self.durability.required
        try:
            self._connect(address, load_scripts, timeout)
        except BaseException as error:
            with own_error_first(error):
                self.close()
            if isinstance(error, EvictingStore):
                raise ConfigurationError(str(error)) from error
            raise

    def _connect(
        self, address: Address, load_scripts: Callable[[bool], Mapping[str, Script]], timeout: float
    ) -> None:
        """Find the servers, and refuse those that cannot be trusted with data or hold another format."""
        connecting_since = time.monotonic()
        self._connector = Connector(address, self.keyspace, load_scripts, timeout)
        if self.embedded is not None:
            self._connector.recognise = self.embedded.check_folder
        self.durability.check_against(self._connector.timeout)
        self._topology = discover(address, self._connector.ask, self.url, self.embedded)
        self.clustered = self._topology.clustered
        """True if the tablets are on several servers; then a script reaches one tablet only."""
        self._oracle_slot = slot_of(self.keyspace.oracle)
        self._counts_disk = False
        self.scripts = load_scripts(False)
        self._retry_policy = RetryPolicy(self.patience, self._topology.heal, connecting_since)
        self._retry_policy.scripts = self.scripts
        self._converse = partial(self._pool.converse, self._retry_policy)
        until = connecting_since + min(self.patience, CONNECT_PATIENCE)
        info = examine(self.all_server_info, self._topology, self.url, until)
        self._retry_policy.connecting_since = 0.0
        if self.embedded is None:  # only the user who runs an embedded server can reach it
            for one in info:
                warn_once(one.raw)
        oldest = min(one.version_pair for one in info)
        self._retry_policy.scripts = self.scripts = load_scripts(oldest[0] >= WITH_SHEBANG)
        self._timestamp_requests.clear()
        self._counts_disk = oldest >= _COUNTS_DISK
        self._demand_durability(info)
        self.check_format(self.one((b"GET", self.keyspace.format)))

    def call(self, *commands: Command) -> list[Any]:
        """Send the commands together and return their replies in order.

        Raises:
            StoreUnavailable: the server did not answer, or refuses writes.
        """
        return self.exchange(commands).result()

    def call_many(self, commands: Sequence[Command], together: int) -> list[Any]:
        """Like `call`, for any number of commands. It sends at most ``together`` of them at a time."""
        replies: list[Any] = []
        for some in batched(commands, together):
            replies += self.call(*some)
        return replies

    def now(self) -> int:
        """Return the clock of the oracle's server, in microseconds since 1970. It is no timestamp."""
        return self.run(calls.now(self.keyspace.oracle))

    def timestamp_then(self, *commands: Command) -> tuple[int, bytes | None, list[Any]]:
        """Return a timestamp, the catalog's epoch at that timestamp, and the replies to the commands.

        First the timestamp is given out, then the commands run. The epoch counts the changes of the catalog;
        it is None before the first change.
        """
        exchange = self.exchange(commands, BEFORE)
        replies = exchange.result()
        return exchange.timestamp, exchange.epoch, replies

    def then_timestamp(self, several: Sequence[Call[T]]) -> tuple[list[T], int]:
        """Call scripts durably; return their replies, and a timestamp given out after the last one ran."""
        exchange = self._durable_exchange([self.command(call) for call in several], AFTER)
        return _decoded(several, exchange.replies), exchange.timestamp

    def decide(self, command: Command, *, then_timestamp: bool = False, owner: int | None = None) -> Decision:
        """Send a command that decides an outcome, such as a primary's commit; ``owner`` as for `exchange`.

        Raises:
            OutcomeOpenError: the command failed, but may have been executed.
        """
        stamp = SPARE if then_timestamp else NONE
        exchange = self.exchange((command,), stamp, durable=self._must_be_durable, owner=owner)
        try:
            if not exchange.replies:
                exchange.result()
        except PercolatorError as error:
            if exchange.executed_maybe:
                raise OutcomeOpenError from error
            raise
        # With the reply the outcome is known, even if the timestamp after it is missing.
        durable = not exchange.durable or self._is_durable(exchange)
        return exchange.replies[0], exchange.executed_maybe, exchange.timestamp, durable

    def call_durably(self, *commands: Command) -> list[Any]:
        """Like `call`, for writes that must be as safe as the durability asks before the next step.

        Raise StoreUnavailable also if the writes are not that safe in time; sending them again does no harm.
        """
        return self._durable_exchange(commands).replies

    def call_apart(self, *commands: Command) -> list[Any]:
        """Like `call`, but apart from other tasks: over the thread's own connection, which blocks a hub."""
        return self._issue(commands, self._converse).result()

    def exchange(
        self,
        commands: Sequence[Command],
        stamp: int = NONE,
        *,
        durable: bool = False,
        owner: int | None = None,
    ) -> Exchange:
        """Send the commands and wait until they are answered or given up. Every operation is sent this way.

        If the exchange fails, it stores the error, and its `result` raises it. On a cluster, commands to
        several tablets have no order among each other; the timestamp is still given out before or after all,
        as ``stamp`` says. Only the process ``owner`` sends the commands, even if it forks in this call.
        """
        # This repeats `current_hub` in line, because every operation takes this path.
        task = getcurrent()
        hub = task.hub_to_wait_in() if isinstance(task, Task) else None
        if hub is not None and hub.owner is self:
            send: Send = hub.exchange
        else:
            send = self._converse if owner is None else partial(self._converse, owner=owner)
        return self._issue(commands, send, stamp, durable)

    def _issue(
        self, commands: Sequence[Command], send: Send, stamp: int = NONE, durable: bool = False
    ) -> Exchange:
        if self.clustered:
            return assemble(commands, stamp, durable=durable, oracle_slot=self._oracle_slot, send=send)
        exchange = Exchange(commands, stamp, 0, durable)
        send((exchange,))
        return exchange

    def _durable_exchange(self, commands: Sequence[Command], stamp: int = NONE) -> Exchange:
        """Like `exchange`, but raise its failure, or StoreUnavailable if disk or replicas lack the writes."""
        exchange = self.exchange(commands, stamp, durable=self._must_be_durable)
        exchange.result()
        if exchange.durable and not self._is_durable(exchange):
            shortfall = self.durability.shortfall(exchange.acknowledged, counts_disk=self._counts_disk)
            shortfall.executed_maybe = True
            raise shortfall
        return exchange

    def one(self, command: Command) -> Any:
        """Send one command and return its reply."""
        return self.exchange((command,)).result()[0]

    def defer(self, *commands: Command) -> None:
        """Send the commands without waiting. They may get lost: then the next reader resolves the locks."""
        hub = current_hub()
        if self.clustered:
            exchanges = [
                Exchange((command,), slot=place_of(command, self._oracle_slot)) for command in commands
            ]
        else:
            exchanges = [Exchange(commands)]
        if hub is not None and hub.owner is self:
            hub.defer(exchanges)
            return
        connections = self._pool.take()
        try:
            for exchange in exchanges:
                connections.send_unawaited(exchange)
        except BaseException:
            self._pool.drop(connections)
            raise
        self._pool.give_back(connections)

    def sleep(self, seconds: float) -> None:
        """Sleep; under a hub other tasks run in that time."""
        hub = current_hub()
        if hub is not None:
            hub.sleep(seconds)
        else:
            time.sleep(seconds)

    def command(self, call: Call[Any]) -> Command:
        """Return the command that calls a script."""
        script, keys, arguments, _ = call
        return (b"EVALSHA", self.scripts[script].sha, len(keys), *keys, *arguments)

    def run(self, call: Call[T]) -> T:
        """Call a script and return its decoded reply."""
        _, _, _, decode = call
        return decode(self.one(self.command(call)))

    def run_all(
        self, several: Sequence[Call[T]], *, durably: bool = False, together: int | None = None
    ) -> list[T]:
        """Call scripts as `call`, `call_durably` or `call_many` does, and return their decoded replies."""
        commands = [self.command(call) for call in several]
        if durably:
            replies = self.call_durably(*commands)
        elif together is None:
            replies = self.exchange(commands).result()
        else:
            replies = self.call_many(commands, together)
        return _decoded(several, replies)

    def set_newest(self, newest: Callable[[], int]) -> None:
        """Set a function for the newest timestamp seen, beyond which an oracle that lost data moves."""
        self._connector.newest = newest

    def hub(self, width: int) -> Hub:
        """Return a new hub with connections of its own, for the calling thread."""
        return Hub(self, self._pool.open(), self._retry_policy, width)

    def server_info(self) -> ServerInfo:
        """Ask the server for its INFO. In a cluster, ask the server that has the oracle."""
        return read_info(self.one((b"INFO",)))

    def all_server_info(self) -> list[ServerInfo]:
        """Ask each server that holds data for its INFO; StoreUnavailable if one does not answer."""
        if not self.clustered:
            return [self.server_info()]
        return [read_info(self.ask(endpoint, (b"INFO",))) for endpoint in self.endpoints()]

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the servers that hold data, as of the newest known topology."""
        return self._topology.endpoints()

    def ask(self, endpoint: Endpoint, command: Command) -> Any:
        """Send a command without a key to one server; raise StoreUnavailable if it does not answer."""
        try:
            return self._connector.ask(endpoint, command)
        except LOST as lost:
            raise StoreUnavailable(f"{endpoint} does not answer ({lost}): check that it runs") from lost

    def check_format(self, found: bytes | None) -> None:
        """Raise ConfigurationError if the data has another format; None means that no table exists."""
        if found is not None and found.decode(errors="replace") != FORMAT:
            raise ConfigurationError(
                f"{self.url} holds data of format {found.decode(errors='replace')!r} in the namespace "
                f"{self.keyspace.namespace!r} and this version reads format {FORMAT}: "
                "use the matching version, or another namespace"
            )

    def subscription(self) -> Subscription:
        """Return a `Subscription` to the wake-up messages of this namespace's tablets."""
        pattern = self.keyspace.wake_pattern
        return Subscription(
            lambda: self._connector.client(self._topology.endpoint(self._oracle_slot)), pattern
        )

    def close(self) -> None:
        """Close all connections; an embedded server stops with its last user. Idempotent.

        If a signal handler closes the store, the call that the handler has interrupted still gets its reply.

        Raises:
            StoreUnavailable: an embedded server could not write acknowledged commits to its disk.
        """
        self._pool.close()

    def _demand_durability(self, info: Sequence[ServerInfo]) -> None:
        """Raise ConfigurationError unless the servers can give the durability that was asked for."""
        if self._must_be_durable:
            # Try the command once: otherwise a user without the right to it would find out at a commit.
            self.one(
                (b"WAITAOF", 0, 0, 1) if self.durability.fsync and self._counts_disk else (b"WAIT", 0, 1)
            )
        if not self.durability.fsync:
            return
        demand_log(info, self.url)
        if not self._counts_disk:
            # Checked at every connection: a server may restart, or another one may replace it.
            self._connector.assure = partial(assure_disk, self.embedded, self.url)
            for endpoint in self.endpoints():
                self._connector.connect(endpoint).close()

    def _acknowledge(self, key: bytes) -> Sequence[Command]:
        return self.durability.requests(self.command(calls.sync(key)), counts_disk=self._counts_disk)

    def _is_durable(self, exchange: Exchange) -> bool:
        return self.durability.met_by(exchange.acknowledged, counts_disk=self._counts_disk)

    def _timestamps(self, count: int) -> bytes:
        """Return the packed request for timestamps, which is the same each time."""
        request = self._timestamp_requests.get(count)
        if request is None:
            call = calls.timestamp(self.keyspace.oracle, self.keyspace.catalog, count)
            request = self._timestamp_requests[count] = Exchange((self.command(call),)).packed[0]
        return request

    def _make_connections(self, home: list[Connections]) -> Connections:
        return Connections(self._topology, self._open_pipeline, self._connector.timeout, home)

    def _open_pipeline(self, endpoint: Endpoint) -> Pipeline:
        return Pipeline(
            partial(self._connector.connect, endpoint),
            self._timestamps,
            # An embedded server has no replicas.
            self._connector.greet if self.embedded is None else None,
            self._acknowledge,
            partial(self._topology.confirms, endpoint) if self._topology.replaceable else None,
            eviction=self._checks.setdefault(endpoint, EvictionCheck(self._name_of(endpoint))),
        )

    def _name_of(self, endpoint: Endpoint) -> str:
        return f"{endpoint} of {self.url}" if self._topology.replaceable else self.url


def _decoded(several: Sequence[Call[T]], replies: Sequence[Any]) -> list[T]:
    return [decode(reply) for (_, _, _, decode), reply in zip(several, replies, strict=True)]
