"""Opens connections to servers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection, ConnectionPool, UnixDomainSocketConnection
from redis.exceptions import AuthenticationError, MovedError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from percolator_core.errors import ConfigurationError, StoreUnavailable
from percolator_core.layout.keys import Keyspace
from percolator_core.scripts import Script, calls
from percolator_core.store import tls
from percolator_core.store.embedded.shutdown import history_of
from percolator_core.store.packing import Command
from percolator_core.store.pipeline import Stream
from percolator_core.store.refusals import LOST, is_read_only
from percolator_core.store.request import pack
from percolator_core.store.topology import Endpoint
from percolator_core.store.url import Address

CONNECT_PATIENCE: Final = 3.0
"""The first attempts to reach a server end after this many seconds, to report a wrong address soon."""

_ASK_TIMEOUT: Final = 1.0
"""Seconds to wait for a server that is asked for the topology: after that, another server can be asked."""

WITH_SHEBANG: Final = 7
"""The first major version of Redis that accepts the ``#!lua`` line."""


class Connector:
    """Opens connections with the settings of the URL."""

    def __init__(
        self,
        address: Address,
        keyspace: Keyspace,
        load_scripts: Callable[[bool], Mapping[str, Script]],
        timeout: float,
    ) -> None:
        """``timeout`` is how many seconds one reply may take; the URL may override it.

        Raises:
            ConfigurationError: a file that the URL names is missing or cannot be used.
        """
        self._address = address
        self._oracle, self._catalog = keyspace.oracle, keyspace.catalog
        self._load_scripts = load_scripts
        self._options: dict[str, Any] = dict(address.options)
        self._tls_options = {
            name: self._options.pop(name) for name in list(self._options) if name.startswith("ssl_")
        }
        self.timeout: Final[float] = self._options.pop("socket_timeout", timeout)
        """Seconds that a reply may take."""
        limit = self._options.pop("socket_connect_timeout", min(self.timeout, CONNECT_PATIENCE))
        self._limits: dict[str, Any] = {"socket_timeout": limit, "socket_connect_timeout": limit}
        if address.tls:
            tls.context(self._tls_options)
        self._began = time.monotonic()
        self._reached = False
        self.newest: Callable[[], int] = lambda: 0
        """The newest timestamp that this client has seen."""
        self.recognise: Callable[[], None] = lambda: None
        """Called before each new connection; raises if another store may have taken the server's place."""
        self.assure: Callable[[AbstractConnection], None] | None = None
        """Called with each new connection; raises if its server does not meet the store's requirements."""

    def connect(self, endpoint: Endpoint) -> Stream:
        """Open a connection and greet the server.

        Raises:
            ConfigurationError: one side does not trust the other's certificate.
            StoreUnavailable: the port does not seem to speak TLS, and no connection was ever opened.
        """
        connection = self._connection(endpoint, redis_connect_func=self._enter, **self._limits)
        try:
            connection.connect()
        except AuthenticationError:
            raise
        except LOST as lost:
            told = self._explained(lost)
            if told is None:
                raise
            raise told from lost
        except BaseException:
            connection.disconnect()  # after Ctrl-C redis-py would leave the connection open
            raise
        self._reached = True
        # Only the greeting has a short time limit, because a hub runs no task while it opens a connection.
        connection.socket_timeout = self.timeout
        connection.update_current_socket_timeout(self.timeout)
        return Stream(connection)

    def ask(self, endpoint: Endpoint, command: Command) -> Any:
        """Return the reply of a server, or a sentinel, to one command."""
        connection = self._connection(
            endpoint, socket_timeout=_ASK_TIMEOUT, socket_connect_timeout=_ASK_TIMEOUT, sentinel=True
        )
        try:
            connection.connect()
            connection.send_packed_command([pack(command)])
            return connection.read_response(disable_decoding=True)
        except LOST as lost:
            if (refusal := tls.refusal(lost)) is not None:
                # Not final: other servers can be asked.
                raise RedisConnectionError(str(refusal)) from lost
            raise
        finally:
            connection.disconnect()

    def client(self, endpoint: Endpoint) -> redis.Redis:
        """Return a client of redis-py for one server."""
        kind, settings = self._settings(endpoint)
        limits = {**self._limits, "socket_timeout": self.timeout}
        return redis.Redis(connection_pool=ConnectionPool(kind, **{**settings, **limits}))

    def greet(self, connection: AbstractConnection) -> None:
        """Recover the oracle, if needed, before a timestamp is given out over the connection.

        A server that was restarted or promoted may have lost the newest timestamps. No connection outlives
        its server, so it is enough to check a connection when it is opened, or after it was idle.

        The run id alone does not identify the server: a master that was a replica for a moment may have
        missed timestamps of that time. So the replication history, which each promotion begins anew, belongs
        to the identity. An embedded server has no replicas. Its folder's history takes this place; it begins
        anew only after a stop that may have lost writes. Each URL of a server yields the same identity.
        """
        connection.send_command("INFO", "server")
        connection.send_command("INFO", "replication")
        info = connection.read_response(disable_decoding=True)
        history = re.search(rb"master_replid:(\w+)", connection.read_response(disable_decoding=True))
        if re.search(rb"(?:redis|server)_mode:sentinel", info):
            raise ConfigurationError("the server is a sentinel: write redis+sentinel://HOST:PORT/SERVICE")
        run_id = re.search(rb"run_id:(\w+)", info)
        version = re.search(rb"(?:redis|valkey)_version:(\d+)", info)
        if run_id is None or version is None:  # the reply of a sentinel, or of another program
            raise RedisConnectionError("the server's INFO has no run id or no version")
        # With the ``#!lua`` line, a newer server runs this script even if its memory is full.
        recover = self._load_scripts(int(version.group(1)) >= WITH_SHEBANG)["recover_oracle"]
        reign = b"%b %b" % (run_id.group(1), history.group(1) if history is not None else b"")
        who = history_of(info).encode() or reign
        _, keys, arguments, _ = calls.recover_oracle(self._oracle, self._catalog, who, b"%d" % self.newest())
        connection.send_command("EVAL", recover.source, "2", *keys, *arguments)
        try:
            connection.read_response(disable_decoding=True)
        except MovedError:
            pass  # another server has the oracle
        except ResponseError as error:
            self._judge(error)

    def _explained(self, lost: BaseException) -> Exception | None:
        """Return the error to raise instead of a failure to connect; None if nothing can be added.

        The error suggests TLS only as long as no connection was ever opened.
        """
        if (refusal := tls.refusal(lost)) is not None:
            return refusal
        if self._reached or self._address.kind in ("embedded", "unix"):
            return None
        waited = time.monotonic() - self._began
        # Give up if another try would take too long.
        if tls.handshake_is_silent(lost) and waited + self._limits["socket_timeout"] > CONNECT_PATIENCE:
            return StoreUnavailable(
                f"the store did not answer for {waited:.0f} s ({lost}): "
                "check that it runs and can be reached, and that this port speaks TLS"
            )
        if not tls.is_broken_off(lost):
            return None
        hint = "does this port speak TLS?" if self._address.tls else "write rediss:// if it speaks TLS"
        return RedisConnectionError(f"{str(lost).rstrip('.')}; {hint}")

    def _judge(self, error: ResponseError) -> None:
        if is_read_only(error):
            # A replica gives out no timestamps. A server that a sentinel named was the master a moment ago;
            # a replica that the URL names is refused later, by its role.
            if self._address.kind == "sentinel":
                raise RedisConnectionError("the server is no longer the master") from error
            return
        raise error

    def _enter(self, connection: AbstractConnection) -> None:
        """Run on every new connection, before any other command."""
        self.recognise()
        connection.on_connect()
        self.greet(connection)
        if self.assure is not None:
            self.assure(connection)

    def _connection(self, endpoint: Endpoint, *, sentinel: bool = False, **more: Any) -> AbstractConnection:
        kind, settings = self._settings(endpoint)
        if sentinel and self._address.kind == "sentinel":
            # Sentinels have users of their own.
            settings |= {"username": None, "password": self._address.sentinel_password, "db": 0}
        connection: AbstractConnection = kind(**{**settings, **more})
        return connection

    def _settings(self, endpoint: Endpoint) -> tuple[type[AbstractConnection], dict[str, Any]]:
        address = self._address
        common: dict[str, Any] = {
            "protocol": 2,
            "driver_info": None,  # else redis-py sends CLIENT SETINFO, which access rules often forbid
            "retry": Retry(NoBackoff(), 0),
            "username": address.username,
            "password": address.password,
            # The number is text, for the reason that `pack` gives. For 0, redis-py sends no command.
            "db": str(address.database) if address.database else 0,
            **self._options,
        }
        if not endpoint.port:
            return UnixDomainSocketConnection, {**common, "path": endpoint.host}
        common |= {"host": endpoint.host, "port": endpoint.port}
        if not address.tls:
            return Connection, common
        return tls.TlsConnection, {**common, "tls_options": self._tls_options}
