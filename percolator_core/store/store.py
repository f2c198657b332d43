"""The client of one Redis (or Valkey) server."""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, ConnectionPool, UnixDomainSocketConnection
from redis.exceptions import BusyLoadingError, ResponseError
from redis.retry import Retry

from percolator_core import scripts
from percolator_core.errors import ConfigurationError, PercolatorError
from percolator_core.keys import Keyspace
from percolator_core.scripts import Script
from percolator_core.store.binary import OLDEST_SERVER
from percolator_core.store.embedded import CONF_AFTER_ORDER, EmbeddedServer
from percolator_core.store.hub import Hub, current_hub
from percolator_core.store.subscription import Subscription
from percolator_core.store.url import parse, redacted
from percolator_core.store.wire import AFTER, BEFORE, LOST, NONE, Command, Exchange, Wire, is_read_only

FORMAT: Final = "1"
"""The layout of the data. A store that holds another one is refused, not guessed at."""

_WITH_SHEBANG: Final = (7, 0)

CONNECT_PATIENCE: Final = 3.0
"""Seconds, at most, to reach a server at first: a wrong address should be told soon."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What `INFO` says about the server."""

    version: str
    role: str
    eviction: str
    maxmemory: int
    used_memory: int
    raw: dict[str, str]

    @property
    def version_pair(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor, *_ = (int(part) for part in [*re.findall(r"\d+", self.version), "0"])
        return major, minor


class OutcomeOpenError(Exception):
    """A request failed that may have been executed all the same. The cause says how it failed."""


class Store:
    """Sends commands to the server; repeats what got lost; loads scripts that the server forgot.

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
        load_scripts: Callable[[bool], Mapping[str, Script]] = scripts.load,
    ) -> None:
        """``load_scripts`` is `scripts.load`; a test of time gives other ones."""
        self.url = redacted(url)
        self.keyspace = keyspace
        self.patience = self._patience = patience
        self._address = parse(url)
        self._timeout = timeout
        self._local = threading.local()
        self._wires: weakref.WeakSet[Wire] = weakref.WeakSet()  # one goes with the thread that used it
        self._wires_lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._load_scripts = load_scripts
        self.embedded: EmbeddedServer | None = None
        if self._address.kind == "embedded":
            assert self._address.folder is not None
            self.embedded = EmbeddedServer.join(self._address.folder)
        try:
            self._connections = self._pool(url)
            self._scripts = load_scripts(False)
            self.patience = min(patience, CONNECT_PATIENCE)
            facts = self.facts()
            self.patience = patience
            _refuse_unsuitable(facts, self.url)
            self._scripts = load_scripts(facts.version_pair >= _WITH_SHEBANG)
            self.check_format(self.one((b"GET", keyspace.format)))
        except BaseException:
            self.close()
            raise

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
        """The replies to the commands, and a timestamp given out after the server ran the last of them."""
        exchange = self.exchange(commands, AFTER)
        return exchange.result(), exchange.timestamp

    def decide(self, command: Command, *, then_timestamp: bool = False) -> tuple[Any, bool, int]:
        """Send a command on which an outcome hangs.

        Returns its reply, whether it may have been executed before, and a timestamp given out after it if one
        is asked for, else 0.

        Raises:
            OutcomeOpenError: it failed, and whether it was executed before that is not known.
        """
        exchange = self.exchange((command,), AFTER if then_timestamp else NONE)
        try:
            if not exchange.replies:
                exchange.result()
            # With the reply the outcome is known, whatever became of the timestamp behind it.
            return exchange.replies[0], exchange.executed_maybe, exchange.timestamp
        except PercolatorError as error:
            if exchange.executed_maybe:
                raise OutcomeOpenError from error
            raise

    def call_apart(self, *commands: Command) -> list[Any]:
        """As `call`, but on the thread's own connection also under a hub, where it holds up all tasks.

        For what must not be interleaved with other tasks of the thread.
        """
        return self._converse(Exchange(commands)).result()

    def exchange(self, commands: Sequence[Command], stamp: int = NONE) -> Exchange:
        """The one way to issue an operation: send the commands and wait until they are answered, or given up.

        Failures are noted in the exchange, and raised by its `result`.
        """
        hub = current_hub()
        if hub is not None and hub.owner is self:
            return hub.exchange(commands, stamp)
        return self._converse(Exchange(commands, stamp))

    def _converse(self, exchange: Exchange) -> Exchange:
        wire = self._wire()
        while True:
            wire.run(exchange)
            if exchange.done or exchange.must_give_up(self._patience_with(exchange)):
                return exchange
            if not exchange.missing_script:
                time.sleep(0.02)
            self._repair(wire, exchange)

    def one(self, command: Command) -> Any:
        """Send one command and return its reply."""
        return self.call(command)[0]

    def defer(self, *commands: Command) -> None:
        """Send the commands without waiting. If they get lost, whoever meets the locks makes up for it."""
        hub = current_hub()
        if hub is not None and hub.owner is self:
            hub.defer(commands)
        else:
            self._wire().send_unawaited(Exchange(commands))

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
        """The name by which the server knows a script, for callers that build many commands."""
        return self._scripts[name].sha

    def hub(self, width: int) -> Hub:
        """A new hub with a connection of its own, for the calling thread."""
        wire = self._open_wire()
        return Hub(self, wire, self.patience, lambda exchange: self._repair(wire, exchange), width)

    def facts(self) -> ServerFacts:
        """What the server says about itself now."""
        lines = self.one((b"INFO",)).decode(errors="replace").splitlines()
        info = dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))
        return ServerFacts(
            version=info.get("valkey_version") or info["redis_version"],
            role=info["role"],
            eviction=info.get("maxmemory_policy", "noeviction"),
            maxmemory=int(info.get("maxmemory", 0)),
            used_memory=int(info["used_memory"]),
            raw=info,
        )

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
        return Subscription(redis.Redis(connection_pool=self._connections), pattern)

    def close(self) -> None:
        """Close all connections; an embedded server stops with its last user. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() == self._pid:
            with self._wires_lock:
                wires = list(self._wires)
            for wire in wires:
                wire.drain()
                wire.close()
        if self.embedded is not None:
            self.embedded.leave()

    # Connections.

    def _pool(self, url: str) -> ConnectionPool:
        common: dict[str, Any] = {
            "socket_timeout": self._timeout,
            "socket_connect_timeout": min(self._timeout, CONNECT_PATIENCE),
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "redis_connect_func": self._greet,
        }
        kind = self._address.kind
        if kind == "embedded":
            assert self.embedded is not None
            path = str(self.embedded.socket_path)
            return ConnectionPool(connection_class=UnixDomainSocketConnection, path=path, **common)
        if kind in ("sentinel", "cluster"):
            raise ConfigurationError(
                f"{self.url}: this version connects to a single server only: use a redis:// URL"
            )
        return ConnectionPool.from_url(url, **common)

    def _greet(self, connection: AbstractConnection) -> None:
        """Runs on every new connection, before any other command.

        A server that restarted, or was promoted, may have lost the newest timestamps. No connection can
        outlive its server, so asking here makes sure that none is handed out before the oracle has recovered.
        """
        connection.on_connect()
        connection.send_command("INFO", "server")
        facts = connection.read_response(disable_decoding=True)
        run_id = re.search(rb"run_id:(\w+)", facts)
        version = re.search(rb"(?:redis|valkey)_version:(\d+)", facts)
        assert run_id is not None
        assert version is not None
        # With the line that newer servers know, this is allowed when memory is full.
        recover = self._load_scripts(int(version.group(1)) >= _WITH_SHEBANG[0])["recover_oracle"]
        in_order = self.embedded is not None and f"/{CONF_AFTER_ORDER}\r".encode() in facts
        state = b"in order" if in_order else b"unknown"
        connection.send_command("EVAL", recover.source, 1, self.keyspace.oracle, run_id.group(1), state)
        try:
            connection.read_response(disable_decoding=True)
        except ResponseError as error:
            # A replica hands out no timestamps anyway, and is refused where its role is known.
            if not is_read_only(error):
                raise

    def _dial(self) -> AbstractConnection:
        connection: AbstractConnection = self._connections.connection_class(
            **self._connections.connection_kwargs
        )
        connection.connect()
        return connection

    def _timestamps(self, count: int) -> Command:
        return (b"EVALSHA", self._scripts["timestamp"].sha, 1, self.keyspace.oracle, count)

    def _open_wire(self) -> Wire:
        self._notice_fork()
        wire = Wire(self._dial, self._timestamps)
        with self._wires_lock:
            self._wires.add(wire)
        return wire

    def _wire(self) -> Wire:
        if self._closed:
            raise PercolatorError("the database is closed: connect again")
        self._notice_fork()
        wire: Wire | None = getattr(self._local, "wire", None)
        if wire is None:
            wire = self._local.wire = self._open_wire()
        return wire

    def _notice_fork(self) -> None:
        """In a forked child: leave the connections to the parent, and join an embedded server anew."""
        if self._pid == os.getpid():
            return
        self._wires_lock = threading.Lock()
        self._local = threading.local()
        self._wires = weakref.WeakSet()
        self._pid = os.getpid()
        self._revive()

    def _revive(self) -> None:
        """Make sure that an embedded server runs. It may have another socket afterwards."""
        if self.embedded is not None:
            self.embedded.ensure_running()
            self._connections.connection_kwargs["path"] = str(self.embedded.socket_path)

    def _patience_with(self, exchange: Exchange) -> float:
        """A server that loads its data is there, and may take its time also when we connect."""
        return self._patience if isinstance(exchange.trouble, BusyLoadingError) else self.patience

    def _repair(self, wire: Wire, exchange: Exchange) -> None:
        """Mend what an exchange failed for, as far as a client can."""
        if exchange.missing_script:
            wire.run(Exchange([(b"SCRIPT", b"LOAD", script.source) for script in self._scripts.values()]))
        elif isinstance(exchange.trouble, LOST):
            self._revive()


def _refuse_unsuitable(facts: ServerFacts, url: str) -> None:
    oldest = ".".join(map(str, OLDEST_SERVER))
    if facts.version_pair < OLDEST_SERVER:
        raise ConfigurationError(
            f"{url} is Redis {facts.version} and {oldest} is the oldest that works: upgrade the server"
        )
    if facts.role != "master":
        raise ConfigurationError(f"{url} is a replica, which takes no writes: connect to its master")
    if facts.eviction != "noeviction":
        raise ConfigurationError(
            f"{url} evicts keys when memory is full (maxmemory-policy {facts.eviction}), "
            "which would lose data silently: set maxmemory-policy noeviction"
        )
