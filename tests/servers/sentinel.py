"""A master, its replicas and the sentinels that watch them."""

from __future__ import annotations

import signal
import subprocess
from typing import Any, Final, Self

import redis
from redis.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from tests.core.servers import Server, until

_PATIENCE: Final = 40.0


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
        until(self._answers)


class Sentinels:
    """One master, its replicas and the sentinels. A context manager that ends them all.

    ``settings`` go to every data server. A killed master is failed over within about three seconds.
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

        def over() -> bool:
            ports = {self._named_by(sentinel) for sentinel in self.sentinels if sentinel.alive}
            if len(ports) != 1 or old.port in ports:
                return False
            found = self._at(ports.pop())
            return found.alive and _role(found) == b"master"

        until(over, _PATIENCE)
        return self.master

    def switch(self) -> DataServer:
        """Have the sentinels make another server the master while the old one runs; returns the new one."""
        old = self.master
        # It is refused for a moment after another failover, or until a replica is known to be fit.
        until(self._failover_begins, _PATIENCE)
        return self.await_failover(old)

    def restart(self, server: DataServer) -> None:
        """Start a killed server again and wait until it follows the master, ten seconds or so."""
        server.start()
        if self.master is not server:
            until(lambda: self._follows(server), _PATIENCE)

    def await_ready(self) -> None:
        """Wait until the sentinels know everybody, and the replicas are in step."""
        until(self._ready, _PATIENCE)

    def close(self) -> None:
        for server in [*self.sentinels, *self.servers]:
            server.close()
        self.sentinels.clear()
        self.servers.clear()

    def _watch(self, sentinel: SentinelServer, quorum: int) -> None:
        sentinel.ask("SENTINEL", "MONITOR", self.service, "127.0.0.1", self.servers[0].port, quorum)
        settings: dict[str, str | int] = {
            "down-after-milliseconds": 1000,
            "failover-timeout": 3000,
            "parallel-syncs": 2,
        }
        if self.password:
            settings["auth-pass"] = self.password
        for name, value in settings.items():
            sentinel.ask("SENTINEL", "SET", self.service, name, value)

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

    def _failover_begins(self) -> bool:
        try:
            return bool(self.sentinels[0].ask("SENTINEL", "FAILOVER", self.service) == b"OK")
        except ResponseError:
            return False


def _role(server: DataServer) -> bytes:
    try:
        found: bytes = server.ask("ROLE")[0]
    except (RedisConnectionError, OSError):
        return b""
    return found


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
