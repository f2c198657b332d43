"""A private PostgreSQL server for as long as a benchmark runs.

The system's programs, in a temporary folder, on a Unix socket there and on no port, with the settings of a
fresh installation (fsync on). PostgreSQL refuses to run as root: started by root, it runs as the user
``postgres``, or ``nobody`` where there is none. psycopg 3 is imported when the first connection is made.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from percolator_bench.peers.cpu import tree_cpu_seconds
from percolator_core.errors import ConfigurationError, StoreUnavailable

if TYPE_CHECKING:
    import psycopg

PACKAGED: Final = Path("/usr/lib/postgresql")
"""Where Debian keeps the programs of each version, off the ``PATH``."""
_ROLE: Final = "postgres"
_INIT_LIMIT: Final = 120.0
"""Seconds for initdb."""

_START_LIMIT: Final = 60.0
_STOP_LIMIT: Final = 30.0
"""Seconds for the server to start, and to stop."""


def why_missing() -> str | None:
    """Why PostgreSQL cannot be measured on this machine, in one sentence with the mend; None if it can."""
    if folder_of_programs() is None:
        return (
            "the comparison with PostgreSQL needs initdb and postgres: install the server (Debian: "
            "apt install postgresql), or put its bin folder on the PATH"
        )
    if find_spec("psycopg") is None:
        return "the comparison with PostgreSQL needs psycopg 3: pip install 'percolator-core[bench]'"
    return None


class PostgresServer:
    """A server that runs within a ``with`` statement; what it holds is gone afterwards.

    ``max_connections`` is 1 or more.

    Raises:
        ConfigurationError: on entry: the programs or psycopg are missing, or no user may run them.
        StoreUnavailable: on entry: the server did not start; the message ends with its own last words.
    """

    def __init__(self, *, max_connections: int = 100) -> None:
        if max_connections < 1:
            raise ValueError(f"max_connections is 1 or more, not {max_connections}")
        self._running = _running(max_connections)
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path()

    def __enter__(self) -> Self:
        self._process, self._folder = self._running.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process = None
        self._running.__exit__(kind, error, trace)

    @property
    def pid(self) -> int:
        """Of the postmaster, whose children are all the other processes of the server."""
        if self._process is None:
            raise StoreUnavailable("the PostgreSQL server does not run: use it within its with statement")
        return self._process.pid

    @property
    def conninfo(self) -> str:
        """What `connect` needs, also in another process of the same user."""
        return _conninfo(self._folder)

    def connect(
        self, *, synchronous_commit: bool = True, autocommit: bool = False
    ) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection; see `connect`."""
        return connect(self.conninfo, synchronous_commit=synchronous_commit, autocommit=autocommit)

    def cpu_seconds(self) -> float:
        """User and system time so far, of the postmaster and all processes it has started, ended or not."""
        return tree_cpu_seconds(self.pid)


def connect(
    conninfo: str, *, synchronous_commit: bool = True, autocommit: bool = False
) -> psycopg.Connection[tuple[Any, ...]]:
    """A psycopg connection whose transactions are REPEATABLE READ, which is PostgreSQL's snapshot isolation.

    Without ``synchronous_commit``, a commit is answered before it is on the disk: a crash may lose the last
    ones, and breaks nothing. ``autocommit`` is psycopg's: each statement outside of `Connection.transaction`
    is then a transaction of its own.
    """
    import psycopg

    # As defaults of the session they cost no words in each BEGIN, and hold for single statements too.
    options = (
        r"-c default_transaction_isolation=repeatable\ read"
        f" -c synchronous_commit={'on' if synchronous_commit else 'off'}"
    )
    return psycopg.connect(conninfo, autocommit=autocommit, options=options)


def _conninfo(folder: Path) -> str:
    return f"host={folder} user={_ROLE} dbname=postgres"


@contextmanager
def _running(max_connections: int) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    missing = why_missing()
    programs = folder_of_programs()
    if missing is not None or programs is None:
        raise ConfigurationError(missing or "PostgreSQL is missing")
    identity = _identity()
    # Ignoring errors: the server's own files may come and go while the folder is removed.
    with tempfile.TemporaryDirectory(prefix="percolator-pg-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if identity:
            os.chown(folder, identity["user"], identity["group"])
        _make_cluster(programs, folder, identity)
        server = _start(programs, folder, max_connections, identity)
        try:
            _wait_until_ready(server, folder)
            yield server, folder
        finally:
            _stop(server)


def folder_of_programs() -> Path | None:
    """Where both initdb and postgres are: on the PATH, else the newest packaged version."""
    initdb = shutil.which("initdb")
    if initdb is not None and shutil.which("postgres", path=str(Path(initdb).parent)):
        return Path(initdb).parent
    packaged = [path.parent for path in PACKAGED.glob("*/bin/postgres") if (path.parent / "initdb").exists()]
    return max(packaged, key=_version, default=None)


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", folder.parent.name)))


def _identity() -> dict[str, Any]:
    """Arguments for a subprocess that make it someone else where this is root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise ConfigurationError(
        "PostgreSQL refuses to run as root and there is no user postgres or nobody: run as another user"
    )


def _make_cluster(programs: Path, folder: Path, identity: dict[str, Any]) -> None:
    # The folder, and so its socket, is open to the server's user alone (and root): trust is safe there.
    # Not synced: a folder that lives as long as the server need not survive a crash before its start.
    options = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", f"--username={_ROLE}"]
    done = subprocess.run(
        [programs / "initdb", *options, f"--pgdata={folder / 'data'}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=folder,
        timeout=_INIT_LIMIT,
        check=False,
        **identity,
    )
    if done.returncode != 0:
        raise StoreUnavailable(
            f"initdb failed; mend what it names: {done.stderr.decode(errors='replace').strip()[-500:]}"
        )


def _start(
    programs: Path, folder: Path, max_connections: int, identity: dict[str, Any]
) -> subprocess.Popen[bytes]:
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(folder),
        "max_connections": str(max_connections),
    }
    arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    with _log(folder).open("wb") as log:
        return subprocess.Popen(
            [programs / "postgres", "-D", folder / "data", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            # Ctrl-C is for the benchmark, which then stops the server.
            start_new_session=True,
            **identity,
        )


def _log(folder: Path) -> Path:
    return folder / "postgres.log"


def _wait_until_ready(server: subprocess.Popen[bytes], folder: Path) -> None:
    import psycopg

    until = time.monotonic() + _START_LIMIT
    while time.monotonic() < until and server.poll() is None:
        try:
            with psycopg.connect(_conninfo(folder)):
                return
        except psycopg.OperationalError:
            time.sleep(0.02)
    words = _log(folder).read_text(errors="replace").strip()[-500:]
    raise StoreUnavailable(f"the benchmark's PostgreSQL server did not start; mend what it names: {words}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Its fast shutdown, which ends the sessions there are; immediate where that takes too long."""
    for how in (signal.SIGINT, signal.SIGQUIT):
        server.send_signal(how)
        try:
            server.wait(_STOP_LIMIT)
        except subprocess.TimeoutExpired:
            continue
        return
    server.kill()
    server.wait()
