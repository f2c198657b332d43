"""Servers that belong to a benchmark or a test of durability, and may be killed."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import redis

from percolator_core.errors import StoreUnavailable
from percolator_core.store.embedded.binary import find_binary

_START_LIMIT: Final = 30.0
"""Seconds to start, which includes reading the log."""

_STOP_LIMIT: Final = 10.0
_PORTS: Final = 10
"""Ports that are tried: another process may take one between our look and the server's."""
LOOPBACK: Final = "127.0.0.1"


class _AddressInUse(StoreUnavailable):
    """Another process listens at the port."""


def free_port() -> int:
    """A port of the loopback where nobody listens at the moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


class PrivateServer:
    """A redis-server on a Unix socket, with a folder of its own, which outlives its processes.

    ``settings`` are pairs of the server's configuration, as on its command line without the dashes. With
    ``listens`` other servers can follow it, at ``port`` on the loopback. A context manager that ends the
    process and removes the folder.
    """

    def __init__(self, *, listens: bool = False, **settings: str) -> None:
        # Not where the caller's files are: the path of a Unix socket must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="percolator-server-"))
        self.port = 0
        """Where it listens since it was started, 0 for nowhere."""
        self._listens = listens
        self._settings = {name.replace("_", "-"): value for name, value in settings.items()}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        """The path of its socket."""
        return self.folder / "s"

    @property
    def url(self) -> str:
        """The URL of its first database."""
        return f"unix://{self.socket}"

    def client(self) -> redis.Redis:
        """A plain client, for what is done to the server."""
        return redis.Redis(unix_socket_path=str(self.socket))

    def start(self) -> None:
        """Start it on what its folder holds; at the port that it had, if nobody else has taken that.

        Raises:
            StoreUnavailable: it does not answer; the message has the end of its log.
        """
        for left in reversed(range(_PORTS)):
            if self._listens:
                self.port = self.port or free_port()
            try:
                self._start()
            except _AddressInUse:
                if not left:
                    raise
                self.port = 0
            else:
                return

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order."""
        self._end(signal.SIGTERM)

    def log_size(self) -> int:
        """Bytes of its append-only log that can be cut: of the file that is appended to."""
        newest = self.newest_log()
        return newest.stat().st_size if newest is not None else 0

    def newest_log(self) -> Path | None:
        """The file of its append-only log that is appended to; None while there is none."""
        # Redis 7 keeps several, of which the newest increment grows; Redis 6.2 has one.
        files = [*self.folder.glob("appendonlydir/*.incr.aof"), *self.folder.glob("appendonly.aof")]
        return max(files, key=lambda path: path.stat().st_mtime_ns, default=None)

    def close(self) -> None:
        """End it, and remove its folder."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        settings = {"port": str(self.port), "save": "", "maxmemory-policy": "noeviction", **self._settings}
        if self._listens:
            settings |= {"bind": LOOPBACK, "repl-diskless-sync-delay": "0"}
        settings |= {"unixsocket": str(self.socket), "dir": str(self.folder)}
        arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
        log = self.folder / "log"
        with log.open("ab") as out:
            so_far = out.tell()
            self._process = subprocess.Popen(
                [find_binary().path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # Ctrl-C is for the command, which ends its servers itself
            )
        until = time.monotonic() + _START_LIMIT
        while time.monotonic() < until and self._process.poll() is None:
            try:
                with self.client() as client:
                    client.ping()
            except (redis.exceptions.ConnectionError, redis.exceptions.BusyLoadingError):
                time.sleep(0.005)
            else:
                return
        said = log.read_bytes()[so_far:].decode(errors="replace")
        self._end(signal.SIGKILL)
        error = _AddressInUse if "Address already in use" in said else StoreUnavailable
        raise error(f"the server did not start: {said[-500:]}")

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(_STOP_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
