"""Servers for a benchmark or a test of durability, which may kill them."""

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
"""Seconds for a start, including the time to read the log."""

_STOP_LIMIT: Final = 10.0
_PORTS: Final = 10
"""How many ports to try: another process may take a port before the server does."""
LOOPBACK: Final = "127.0.0.1"


class _AddressInUse(StoreUnavailable):
    """Another process listens on the port."""


def free_port() -> int:
    """Return a port of the loopback interface that is free at the moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


class PrivateServer:
    """A redis-server on a Unix socket. Its folder keeps the data when the process is killed.

    ``settings`` are settings of the server, as on its command line without the dashes. With ``listens`` it
    also listens on ``port`` of the loopback interface, so that other servers can replicate it. As a context
    manager it ends the process and removes the folder.
    """

    def __init__(self, *, listens: bool = False, **settings: str) -> None:
        # The folder is among the temporary files, because the path of a Unix socket must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="percolator-server-"))
        self.port = 0
        """The port on which the server has listened since its start; 0 for none."""
        self._listens = listens
        self._settings = {name.replace("_", "-"): value for name, value in settings.items()}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        """The path of the socket."""
        return self.folder / "s"

    @property
    def url(self) -> str:
        """The URL of the first database."""
        return f"unix://{self.socket}"

    def client(self) -> redis.Redis:
        """Return a plain client, to administer the server."""
        return redis.Redis(unix_socket_path=str(self.socket))

    def start(self) -> None:
        """Start the server with the data of its folder, on the port of its previous start if that is free.

        Raise StoreUnavailable if it does not answer; the message has the end of its log.
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
        """Kill the server with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Shut the server down with SIGTERM."""
        self._end(signal.SIGTERM)

    def log_size(self) -> int:
        """Return the size of `newest_log` in bytes; 0 without a log."""
        newest = self.newest_log()
        return newest.stat().st_size if newest is not None else 0

    def newest_log(self) -> Path | None:
        """Return the file of the append-only log that the server writes to; None if there is none."""
        # Redis 7 keeps several files and appends to the newest increment; Redis 6.2 has one file.
        files = [*self.folder.glob("appendonlydir/*.incr.aof"), *self.folder.glob("appendonly.aof")]
        return max(files, key=lambda path: path.stat().st_mtime_ns, default=None)

    def close(self) -> None:
        """Kill the server and remove its folder."""
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
                start_new_session=True,  # Ctrl-C goes only to the command, which then ends its servers
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
