"""A master, its replicas and the sentinels that watch them."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Self

import redis
from redis.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from tests.servers.plain import Server, until

_INFO_PERIOD: Final = 10.0
"""Seconds between a sentinel's questions about a server's role; it acts on the answers only."""

_TILT_PERIOD: Final = 30.0
"""Seconds for which a sentinel does nothing after its timer was more than two seconds late, or the clock was
set back. From Redis 7.0 on `Sentinels` makes this short."""

_PATIENCE: Final = _TILT_PERIOD + 4 * _INFO_PERIOD
"""A sentinel demotes a server that calls itself a master at the second answer, since it first waits eight
seconds for news, and otherwise at a later one. This is room for two answers, for one TILT, for the answer
after it, and for one more at which a server seemed to be down."""

_LINES_TOLD: Final = 25
_WIDTH_TOLD: Final = 160
_FIELDS_TOLD: Final = (
    b"port",
    b"flags",
    b"config-epoch",
    b"role-reported",
    b"role-reported-time",
    b"info-refresh",
    b"master-port",
    b"master-link-status",
)


class DataServer(Server):
    """A server that may ask for a password."""

    def __init__(self, binary: str, password: str | None, *settings: str) -> None:
        self.password = password
        self.stopped = False
        secret = ("--requirepass", password, "--masterauth", password) if password else ()
        try:
            super().__init__(binary, *secret, *settings)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.port}>"

    @property
    def alive(self) -> bool:
        """Whether it runs and is not stopped."""
        return self.process is not None and self.process.poll() is None and not self.stopped

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket), password=self.password)

    def start_as_replica(self, master: DataServer) -> None:
        """Start it again; it is at no moment a master."""
        own = self.settings
        self.settings = (*own, "--replicaof", "127.0.0.1", str(master.port))
        try:
            self.start()
        finally:
            self.settings = own

    def ask(self, *command: str | bytes | int) -> Any:
        """The plain reply to one command; raises `redis.exceptions.ResponseError` for an error reply."""
        connection = Connection(
            host="127.0.0.1", port=self.port, password=self.password, protocol=2, socket_timeout=10
        )
        try:
            connection.send_command(*command)
            return connection.read_response(disable_decoding=True)
        finally:
            connection.disconnect()


class SentinelServer(DataServer):
    """One sentinel. It watches nothing until `Sentinels` tells it what."""

    def start(self) -> None:
        # A sentinel keeps what it learns in its file, so that a restarted one knows it.
        path = self.folder / "sentinel.conf"
        if not path.exists():
            secret = [f"requirepass {self.password}", f"sentinel sentinel-pass {self.password}"]
            lines = [
                f"port {self.port}",
                "bind 127.0.0.1",
                f"unixsocket {self.socket}",
                f"dir {self.folder}",
                f"logfile {self.folder / 'log'}",
                *(secret if self.password else []),
            ]
            path.write_text("\n".join(lines) + "\n")
        self.process = subprocess.Popen([self.binary, str(path), "--sentinel"])
        until(self.answers)


class Sentinels:
    """One master, its replicas and the sentinels. A context manager that ends them all.

    ``settings`` go to every data server. A killed master is failed over within about four seconds.
    """

    service = "the-service"

    def __init__(
        self,
        binary: str,
        replicas: int = 1,
        sentinels: int = 3,
        *settings: str,
        password: str | None = None,
        sentinel_password: str | None = None,
    ) -> None:
        self.password = password
        self.sentinel_password = sentinel_password
        self.servers: list[DataServer] = []
        self.sentinels: list[SentinelServer] = []
        common = ("--repl-diskless-sync-delay", "0", "--appendonly", "no", *settings)
        try:
            for _ in range(1 + replicas):
                self.servers.append(DataServer(binary, password, *common))
            for server in self.servers[1:]:
                server.ask("REPLICAOF", "127.0.0.1", self.servers[0].port)
            for _ in range(sentinels):
                self.sentinels.append(SentinelServer(binary, sentinel_password))
            for sentinel in self.sentinels:
                self._watch(sentinel, sentinels // 2 + 1)
            self.await_ready()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The URL of the store, naming every sentinel, with the data servers' password if there is one."""
        user = f":{self.password}@" if self.password else ""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{user}{hosts}/{self.service}"

    @property
    def master(self) -> DataServer:
        """The server that most sentinels name as the master now."""
        ports = [self._named_by(sentinel) for sentinel in self.sentinels if sentinel.alive]
        return self._at(max(set(ports), key=ports.count))

    @property
    def replicas(self) -> list[DataServer]:
        """The living servers that are no master by their own account."""
        return [server for server in self.servers if server.alive and _role(server) != b"master"]

    def kill_master(self) -> DataServer:
        """SIGKILL; returns it. Without ``--appendonly yes`` its data is gone."""
        master = self.master
        master.kill()
        return master

    def stop_master(self) -> DataServer:
        """SIGSTOP; returns it. It holds its connections and answers nothing, until `resume`."""
        master = self.master
        assert master.process is not None
        master.process.send_signal(signal.SIGSTOP)
        master.stopped = True
        return master

    def resume(self, server: DataServer) -> None:
        """SIGCONT: an old master believes for some seconds more that it is the master."""
        assert server.process is not None
        server.process.send_signal(signal.SIGCONT)
        server.stopped = False

    def await_failover(self, old: DataServer) -> DataServer:
        """Wait until all living sentinels name another, writable master than ``old``; returns it."""
        self._await(lambda: self._failed_over(old))
        return self.master

    def switch(self) -> DataServer:
        """Have the sentinels make another server the master while the old one runs; returns the new one."""
        old, asked = self.master, self.sentinels[0]

        def over() -> bool:
            # It is refused for a moment after another failover, until a replica is known to be fit, and while
            # it is under way. If the sentinel pauses for longer than ``failover-timeout``, it gives up.
            if self._named_by(asked) == old.port:
                with suppress(ResponseError):
                    asked.ask("SENTINEL", "FAILOVER", self.service)
            return self._failed_over(old)

        self._await(over)
        return self.master

    def restart(self, server: DataServer) -> None:
        """Start a killed server again, as a replica if there is another master, and wait until it follows."""
        master = self.master
        if master is server:
            server.start()
            return
        # Started plainly it would be a master without data until the sentinels demote it, ten seconds later
        # or, after a pause of the machine, forty. If they hold the new master to be down meanwhile, they
        # promote this empty one and have the other copy it: then what was acknowledged is lost indeed.
        server.start_as_replica(master)
        self.await_replica(server)

    def await_replica(self, server: DataServer) -> None:
        """Wait until a living server follows the master: some ten seconds if the sentinels must demote it."""
        self._await(lambda: self._follows(server))

    def await_ready(self) -> None:
        """Wait until the sentinels know everybody, and the replicas are in step."""
        self._await(self._ready)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """A failure inside tells what the servers and the sentinels thought at that moment."""
        try:
            yield
        except Exception as error:
            if not hasattr(error, "__notes__"):
                error.add_note(self.account())
            raise

    def account(self) -> str:
        """The role of each server, what each sentinel makes of them, and the ends of all logs."""
        told: list[str] = []
        for server in self.servers:
            told += [_name(server), _answer(server, "ROLE"), *_end_of_log(server)]
        for sentinel in self.sentinels:
            told.append(_name(sentinel))
            told += [_answer(sentinel, "SENTINEL", what, self.service) for what in ("MASTER", "REPLICAS")]
            told += _end_of_log(sentinel)
        return "\n".join(told)

    def close(self) -> None:
        for server in [*self.sentinels, *self.servers]:
            server.close()
        self.sentinels.clear()
        self.servers.clear()

    def _watch(self, sentinel: SentinelServer, quorum: int) -> None:
        sentinel.ask("SENTINEL", "MONITOR", self.service, "127.0.0.1", self.servers[0].port, quorum)
        settings: dict[str, str | int] = {
            # A sentinel counts from when it names a new master, but connects once a second only, and may have
            # tried to reach the old one just before. With 1000 it then takes the new one to be down too and,
            # as what the others said of the old one still counts, fails it over at once.
            "down-after-milliseconds": 2000,
            "failover-timeout": 3000,
            "parallel-syncs": 2,
        }
        if self.password:
            settings["auth-pass"] = self.password
        for name, value in settings.items():
            sentinel.ask("SENTINEL", "SET", self.service, name, value)
        # A master that dies while they are in TILT would never be failed over: the replica has then been
        # without it for longer than ten times ``down-after-milliseconds``, and is not promoted any more.
        with suppress(ResponseError):  # Redis 6.2 knows no such setting
            sentinel.ask("SENTINEL", "DEBUG", "tilt-period", 2000)

    def _ready(self) -> bool:
        living = [sentinel for sentinel in self.sentinels if sentinel.alive]
        master = self.master
        followers = [server for server in self.servers if server.alive and server is not master]
        for sentinel in living:
            seen = self._seen_by(sentinel)
            if seen[b"flags"] != b"master" or int(seen[b"num-other-sentinels"]) < len(living) - 1:
                return False
            if int(seen[b"num-slaves"]) < len(followers):
                return False
            known = sentinel.ask("SENTINEL", "REPLICAS", self.service)
            if sum(_pairs(one)[b"flags"] == b"slave" for one in known) < len(followers):
                return False
        return all(self._follows(server) for server in followers)

    def _await(self, condition: Callable[[], object]) -> None:
        with self.explained():
            until(condition, _PATIENCE)

    def _seen_by(self, sentinel: SentinelServer) -> dict[bytes, bytes]:
        return _pairs(sentinel.ask("SENTINEL", "MASTER", self.service))

    def _named_by(self, sentinel: SentinelServer) -> int:
        return int(sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)[1])

    def _follows(self, server: DataServer) -> bool:
        try:
            role = server.ask("ROLE")
        except (RedisConnectionError, OSError):
            return False  # a sentinel that gives it another role ends its connections
        return bool(role[0] == b"slave" and int(role[2]) == self.master.port and role[3] == b"connected")

    def _at(self, port: int) -> DataServer:
        return next(server for server in self.servers if server.port == port)

    def _failed_over(self, old: DataServer) -> bool:
        ports = {self._named_by(sentinel) for sentinel in self.sentinels if sentinel.alive}
        if len(ports) != 1 or old.port in ports:
            return False
        found = self._at(ports.pop())
        return found.alive and _role(found) == b"master"


def _role(server: DataServer) -> bytes:
    try:
        found: bytes = server.ask("ROLE")[0]
    except (RedisConnectionError, OSError):
        return b""
    return found


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _name(server: DataServer) -> str:
    return f"{server} {'runs' if server.alive else 'has ended or is stopped'}"


def _answer(server: DataServer, *command: str) -> str:
    try:
        found = server.ask(*command) if server.alive else None
    except (RedisError, OSError) as error:
        found = repr(error)
    if command[0] == "SENTINEL" and isinstance(found, list):
        known = [found] if command[1] == "MASTER" else found
        found = [{name: _pairs(one).get(name) for name in _FIELDS_TOLD} for one in known]
    return f"  {' '.join(command)}: {found}"


def _end_of_log(server: DataServer) -> list[str]:
    log = server.folder / "log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [f"    {line[:_WIDTH_TOLD]}" for line in lines if "saved on disk" not in line][-_LINES_TOLD:]
