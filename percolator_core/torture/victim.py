"""Servers that are there to be killed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import redis

from percolator_core.errors import StoreUnavailable
from percolator_core.store.binary import find_binary

_START_LIMIT: Final = 30.0
"""Seconds to start, which includes reading the log."""

_STOP_LIMIT: Final = 10.0


class VictimServer:
    """A redis-server on a Unix socket, with a folder of its own, which outlives its processes.

    ``settings`` are pairs of the server's configuration, as on its command line without the dashes. A context
    manager that ends the process and removes the folder.
    """

    def __init__(self, **settings: str) -> None:
        # Not where the caller's files are: the path of a Unix socket must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="percolator-torture-"))
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
        """Start it on what its folder holds.

        Raises:
            StoreUnavailable: it does not answer; the message has the end of its log.
        """
        settings = {"port": "0", "save": "", "maxmemory-policy": "noeviction", **self._settings}
        settings |= {"unixsocket": str(self.socket), "dir": str(self.folder)}
        arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
        log = self.folder / "log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [find_binary().path, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out
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
        raise StoreUnavailable(f"the server did not start: {log.read_text(errors='replace')[-500:]}")

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
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
