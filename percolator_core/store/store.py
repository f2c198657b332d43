"""The client of the servers that hold the data."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from redis.exceptions import BusyLoadingError

from percolator_core import scripts
from percolator_core.errors import ConfigurationError, PercolatorError, StoreUnavailable, of_another_process
from percolator_core.layout.keys import Keyspace
from percolator_core.runtime import process
from percolator_core.scripts import Script, calls
from percolator_core.scripts.calls import Call
from percolator_core.store.checks import assure_disk, demand_log, examine
from percolator_core.store.cluster_request import Send, assemble, place_of
from percolator_core.store.connections import Connections
from percolator_core.store.connector import CONNECT_PATIENCE, WITH_SHEBANG, Connector
from percolator_core.store.discovery import discover
from percolator_core.store.durability import Durability
from percolator_core.store.embedded.server import EmbeddedServer, own_error_first
from percolator_core.store.eviction import EvictingStore, EvictionCheck
from percolator_core.store.hub import Hub, current_hub
from percolator_core.store.known_faults import warn_once
from percolator_core.store.packing import Command
from percolator_core.store.pipeline import Pipeline
from percolator_core.store.redaction import redacted
from percolator_core.store.refusals import LOST
from percolator_core.store.request import AFTER, BEFORE, NONE, SPARE, Exchange
from percolator_core.store.server_info import ServerInfo, read_info
from percolator_core.store.subscription import Subscription
from percolator_core.store.topology import Endpoint, slot_of
from percolator_core.store.url import parse

T = TypeVar("T")

FORMAT: Final = "2"
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
        durability: Durability | str | None = None,
        load_scripts: Callable[[bool], Mapping[str, Script]] = scripts.load,
    ) -> None:
        """``durability`` overrides the URL's. ``load_scripts`` is another one where time is tested."""
        self.url = redacted(url)
        self.keyspace = keyspace
        self.patience = patience
        address = parse(url)
        self.durability = Durability.of(durability, address.durability)
        self._local = threading.local()
        """Of each thread, the connections that no conversation goes over: they go with their thread."""
        self._open: process.Living[Connections] = process.Living()
        self._pid = process.pid
        self._checks: dict[Endpoint, EvictionCheck] = {}
        self._connecting_since = time.monotonic()
        self._closed = False
        self.embedded: EmbeddedServer | None = None
        if address.kind == "embedded":
            assert address.folder is not None
            self.embedded = EmbeddedServer.join(address.folder)
        try:
            self._connector = Connector(address, keyspace, load_scripts, timeout)
            if self.embedded is not None:
                self._connector.recognise = self.embedded.check_folder
            self.durability.check_against(self._connector.timeout)
            self._topology = discover(address, self._connector, self.url, self.embedded)
            self._oracle_slot = slot_of(keyspace.oracle)
            self._counts_disk = False
            self._scripts = load_scripts(False)
            patience = min(self.patience, CONNECT_PATIENCE)
            info = examine(self.all_server_info, self._topology, self.url, self._connecting_since + patience)
            self._connecting_since = 0.0
            if self.embedded is None:  # only the user who runs an embedded server can reach it
                for one in info:
                    warn_once(one.raw)
            oldest = min(one.version_pair for one in info)
            self._scripts = load_scripts(oldest[0] >= WITH_SHEBANG)
            self._counts_disk = oldest >= _COUNTS_DISK
            self._demand_durability(info)
            self.check_format(self.one((b"GET", keyspace.format)))
        except BaseException as error:
            with own_error_first(error):
                self.close()
            if isinstance(error, EvictingStore):
                raise ConfigurationError(str(error)) from error
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

    def call_many(self, commands: Sequence[Command], together: int) -> list[Any]:
        """The replies to any number of commands, of which so many are sent together at a time; as `call`."""
        replies: list[Any] = []
        for start in range(0, len(commands), together):
            replies += self.call(*commands[start : start + together])
        return replies

    def now(self) -> int:
        """The clock of the server that has the oracle, in microseconds since 1970; no timestamp of ours."""
        return self.run(calls.now(self.keyspace.oracle))

    def timestamp_then(self, *commands: Command) -> tuple[int, bytes | None, list[Any]]:
        """A timestamp, the catalog's epoch at it, and the replies to commands that run after it.

        The epoch counts the changes of the catalog; None before the first one.
        """
        exchange = self.exchange(commands, BEFORE)
        replies = exchange.result()
        return exchange.timestamp, exchange.epoch, replies

    def then_timestamp(self, several: Sequence[Call[T]]) -> tuple[list[T], int]:
        """Call scripts; returns their replies, and a timestamp given out after the last of them ran.

        Raises:
            StoreUnavailable: no answer, or the writes are not as safe as the durability asks.
        """
        exchange = self._durable_exchange([self.command(call) for call in several], AFTER)
        replies = [call.decode(reply) for call, reply in zip(several, exchange.replies, strict=True)]
        return replies, exchange.timestamp

    def decide(self, command: Command, *, then_timestamp: bool = False) -> Decision:
        """Send a command on which an outcome hangs.

        Raises:
            OutcomeOpenError: it failed, and whether it was executed before that is not known.
        """
        stamp = SPARE if then_timestamp else NONE
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
        return self._durable_exchange(commands).replies

    def call_apart(self, *commands: Command) -> list[Any]:
        """As `call`, but on the thread's own connection also under a hub, where it holds up all tasks.

        For what must not be interleaved with other tasks of the thread.
        """
        return self._issue(commands, self._converse).result()

    def exchange(self, commands: Sequence[Command], stamp: int = NONE, *, durable: bool = False) -> Exchange:
        """The one way to issue an operation: send the commands and wait until they are answered, or given up.

        Failures are noted in the exchange, and raised by its `result`. On a cluster commands to several
        tablets have no order among each other, but the timestamp keeps its place.
        """
        hub = current_hub()
        send = hub.exchange if hub is not None and hub.owner is self else self._converse
        return self._issue(commands, send, stamp, durable=durable)

    def _issue(
        self, commands: Sequence[Command], send: Send, stamp: int = NONE, *, durable: bool = False
    ) -> Exchange:
        if self._topology.clustered:
            return assemble(commands, stamp, durable=durable, oracle_slot=self._oracle_slot, send=send)
        exchange = Exchange(commands, stamp, durable=durable)
        send((exchange,))
        return exchange

    def _durable_exchange(self, commands: Sequence[Command], stamp: int = NONE) -> Exchange:
        """An exchange that was answered without an error, and is as safe as the durability asks."""
        exchange = self.exchange(commands, stamp, durable=self.durability.required)
        exchange.result()
        self._demand_acknowledged(exchange)
        return exchange

    def _converse(self, exchanges: Sequence[Exchange]) -> None:
        """Send and wait, over connections that are this conversation's alone until it is over.

        Signal handlers and finalizers run between any two steps of it: their requests use other connections.
        """
        here = process.pid
        connections = self._take()
        try:
            while True:
                connections.run(exchanges)
                left = []
                for one in exchanges:
                    if not one.done and not self._gives_up(one):
                        left.append(one)  # noqa: PERF401 - a comprehension takes longer, most often in vain
                if not left:
                    break
                if here != process.pid:
                    # A signal handler forked: to send it again is for the parent.
                    for one in left:
                        one.fail(of_another_process("call"))
                    break
                exchanges = self._mend(left)
        except BaseException:
            self._drop(connections)
            raise
        connections.home.append(connections)
        if self._closed:
            self._end()

    def _mend(self, exchanges: Sequence[Exchange]) -> list[Exchange]:
        """Mend what exchanges failed for; returns those that are worth another attempt."""
        if any(one.needs_pause for one in exchanges):
            time.sleep(0.02)
        for one in exchanges:
            try:
                self._repair(one)
            except PercolatorError as error:
                one.fail(error)  # not raised: the exchange knows whether it was executed
        return [one for one in exchanges if one.failure is None]

    def one(self, command: Command) -> Any:
        """Send one command and return its reply."""
        return self.exchange((command,)).result()[0]

    def defer(self, *commands: Command) -> None:
        """Send the commands without waiting. If they get lost, whoever meets the locks makes up for it."""
        hub = current_hub()
        if self._topology.clustered:
            exchanges = [
                Exchange((command,), slot=place_of(command, self._oracle_slot)) for command in commands
            ]
        else:
            exchanges = [Exchange(commands)]
        if hub is not None and hub.owner is self:
            hub.defer(exchanges)
            return
        connections = self._take()
        try:
            for exchange in exchanges:
                connections.send_unawaited(exchange)
        except BaseException:
            self._drop(connections)
            raise
        connections.home.append(connections)
        if self._closed:
            self._end()

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` pass; under a hub other tasks go on."""
        hub = current_hub()
        if hub is not None:
            hub.sleep(seconds)
        else:
            time.sleep(seconds)

    def command(self, call: Call[Any]) -> Command:
        """The command that calls a script."""
        script, keys, arguments, _ = call
        return (b"EVALSHA", self._scripts[script].sha, len(keys), *keys, *arguments)

    def run(self, call: Call[T]) -> T:
        """Call a script and return its decoded reply."""
        return call.decode(self.one(self.command(call)))

    def run_all(
        self, several: Sequence[Call[T]], *, durably: bool = False, together: int | None = None
    ) -> list[T]:
        """Call scripts and return their decoded replies, as `call`, `call_durably` or `call_many`."""
        commands = [self.command(call) for call in several]
        if durably:
            replies = self.call_durably(*commands)
        elif together is None:
            replies = self.exchange(commands).result()
        else:
            replies = self.call_many(commands, together)
        return [call.decode(reply) for call, reply in zip(several, replies, strict=True)]

    def tell_newest(self, newest: Callable[[], int]) -> None:
        """``newest`` gives the newest timestamp that was seen: a server that has lost it jumps beyond."""
        self._connector.newest = newest

    def hub(self, width: int) -> Hub:
        """A new hub with connections of its own, for the calling thread."""
        self._notice_fork()
        return Hub(self, self._open_connections([]), self.patience, self._repair, width)

    def server_info(self) -> ServerInfo:
        """What the server says about itself now; of a cluster, the one that has the oracle."""
        return read_info(self.one((b"INFO",)))

    def all_server_info(self) -> list[ServerInfo]:
        """What each server that holds data says about itself now.

        Raises:
            StoreUnavailable: one of them does not answer.
        """
        if not self._topology.clustered:
            return [self.server_info()]
        return [read_info(self.ask(endpoint, (b"INFO",))) for endpoint in self.endpoints()]

    def endpoints(self) -> Sequence[Endpoint]:
        """The servers that hold data, as far as is known."""
        return self._topology.endpoints()

    def ask(self, endpoint: Endpoint, command: Command) -> Any:
        """The reply of one server, over a connection of its own; for what is not about a key.

        Raises:
            StoreUnavailable: it does not answer.
        """
        try:
            return self._connector.ask(endpoint, command)
        except LOST as lost:
            raise StoreUnavailable(f"{endpoint} does not answer ({lost}): check that it runs") from lost

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
        pattern = self.keyspace.wake_pattern
        return Subscription(
            lambda: self._connector.client(self._topology.endpoint(self._oracle_slot)), pattern
        )

    def close(self) -> None:
        """Close all connections; an embedded server stops with its last user. Idempotent.

        A call that is under way, as when a signal handler closes the store, has its reply before.

        Raises:
            StoreUnavailable: an embedded server could not write acknowledged commits to its disk.
        """
        if self._closed:
            return
        self._closed = True
        self._end()

    # Connections.

    def _demand_durability(self, info: Sequence[ServerInfo]) -> None:
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
        demand_log(info, self.url)
        if not self._counts_disk:
            # Of every server, also of one that takes the place of another, or starts again.
            self._connector.assure = partial(assure_disk, self.embedded, self.url)
            for endpoint in self.endpoints():
                self._connector.connect(endpoint).close()

    def _acknowledge(self, key: bytes) -> Sequence[Command]:
        return self.durability.requests(self.command(calls.sync(key)), counts_disk=self._counts_disk)

    def _is_durable(self, exchange: Exchange) -> bool:
        return self.durability.met_by(exchange.acknowledged, counts_disk=self._counts_disk)

    def _demand_acknowledged(self, exchange: Exchange) -> None:
        """Raises StoreUnavailable unless disk and replicas have what a durable exchange wrote."""
        if exchange.durable and not self._is_durable(exchange):
            shortfall = self.durability.shortfall(exchange.acknowledged, counts_disk=self._counts_disk)
            shortfall.executed_maybe = True
            raise shortfall

    def _timestamps(self, count: int) -> Command:
        return self.command(calls.timestamp(self.keyspace.oracle, self.keyspace.catalog, count))

    def _open_connections(self, home: list[Connections]) -> Connections:
        connections = Connections(self._topology, self._open_pipeline, self._connector.timeout, home)
        self._open.add(connections)
        return connections

    def _open_pipeline(self, endpoint: Endpoint) -> Pipeline:
        return Pipeline(
            partial(self._connector.connect, endpoint),
            self._timestamps,
            # Nobody makes a replica of an embedded server.
            self._connector.greet if self.embedded is None else None,
            self._acknowledge,
            partial(self._topology.confirms, endpoint) if self._topology.watched else None,
            eviction=self._checks.setdefault(endpoint, EvictionCheck(self._name_of(endpoint))),
        )

    def _name_of(self, endpoint: Endpoint) -> str:
        """What messages call a server."""
        return f"{endpoint} of {self.url}" if self._topology.watched else self.url

    def _take(self) -> Connections:
        """Take the idle connections of this thread, or open others, for one conversation.

        Taken in one step of the interpreter, so that a signal handler finds only connections that are idle.
        """
        if self._closed:
            raise PercolatorError("the database is closed: connect again")
        if self._pid != process.pid:
            self._notice_fork()
        try:
            return self._local.home.pop()  # type: ignore[no-any-return]
        except AttributeError:
            home = self._local.home = []
        except IndexError:
            home = self._local.home
        return self._open_connections(home)

    def _drop(self, connections: Connections) -> None:
        """Hang up: the conversation was broken off, and replies may be owed."""
        self._open.discard(connections)
        connections.close()
        if self._closed:
            self._end()

    def _end(self) -> None:
        """Close idle connections. Leave the embedded server unless this thread waits for a reply."""
        under_way = False
        if self._pid == process.pid:
            home = getattr(self._local, "home", None)
            for connections in self._open:
                try:
                    connections.home.remove(connections)
                except ValueError:
                    # Taken: whoever gives them back comes here. A hub never does, and closes its own.
                    under_way = under_way or connections.home is home
                    continue
                self._open.discard(connections)
                connections.drain()
                connections.close()
        if self.embedded is not None and not under_way:
            self.embedded.leave()

    def _notice_fork(self) -> None:
        """In a forked child: leave the connections to the parent, and join an embedded server anew."""
        if self._pid == process.pid:
            return
        self._local = threading.local()
        self._open = process.Living()
        self._pid = process.pid
        self._topology.after_fork()

    def _gives_up(self, exchange: Exchange) -> bool:
        """Whether there has been trouble for too long."""
        patience = self.patience
        # A wrong address should be told soon; but a server that loads its data is there, and takes its time.
        if self._connecting_since and not isinstance(exchange.trouble, BusyLoadingError):
            patience = min(patience, CONNECT_PATIENCE)
        if not exchange.expired(patience, self._connecting_since):
            return False
        exchange.give_up(patience)
        return True

    def _repair(self, exchange: Exchange) -> None:
        """Mend what an exchange failed for, as far as a client can.

        Raises:
            PercolatorError: another attempt would not do better.
        """
        if exchange.missing_script and exchange.pipeline is not None:
            exchange.missing_script = False
            loading = Exchange([(b"SCRIPT", b"LOAD", script.source) for script in self._scripts.values()])
            exchange.pipeline.run(loading)
            loading.result()
        else:
            self._topology.heal(exchange)
