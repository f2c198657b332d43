"""A private PostgreSQL server for the time of a benchmark, or of a test.

The server uses the programs and the default settings of an installation (fsync on), besides ``settings``. Its
data and its Unix socket are in a temporary folder; it has no port. PostgreSQL refuses to run as root: started
by root, it runs as the user ``postgres``, or ``nobody`` if there is none. psycopg 3 is imported with the
first connection.
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
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from percolator_bench.peers.cpu import tree_cpu_seconds
from percolator_core.errors import ConfigurationError, StoreUnavailable

if TYPE_CHECKING:
    import psycopg

PACKAGED: Final = Path("/usr/lib/postgresql")
"""Debian's folder of the programs of each version, which is not on the ``PATH``."""
_ROLE: Final = "postgres"
_INIT_LIMIT: Final = 120.0
"""initdb has to finish within this many seconds."""

_START_LIMIT: Final = 60.0
_STOP_LIMIT: Final = 30.0
"""The server has to start, and to stop, within this many seconds."""


def why_missing() -> str | None:
    """Return why PostgreSQL cannot be measured here, in one sentence with a remedy; None if it can."""
    if folder_of_programs() is None:
        return (
            "the comparison with PostgreSQL needs initdb and postgres: install the server (Debian: "
            "apt install postgresql), or put its bin folder on the PATH"
        )
    if find_spec("psycopg") is None:
        return "the comparison with PostgreSQL needs psycopg 3: pip install 'percolator-core[bench]'"
    return None


class PostgresServer:
    """A server that runs within a ``with`` statement; its data is removed afterwards.

    ``max_connections`` is 1 or more. ``settings`` are further settings, as in postgresql.conf.

    Raises:
        ConfigurationError: on entry: the programs or psycopg are missing, or this process is root and the
            system has no other user to run the server.
        StoreUnavailable: on entry: the server did not start; the message ends with the server's last message.
    """

    def __init__(self, *, max_connections: int = 100, settings: Mapping[str, str] | None = None) -> None:
        if max_connections < 1:
            raise ValueError(f"max_connections is 1 or more, not {max_connections}")
        self._settings = {"max_connections": str(max_connections), **(settings or {})}
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        missing = why_missing()
        programs = folder_of_programs()
        if missing is not None or programs is None:
            raise ConfigurationError(missing or "PostgreSQL is missing")
        self._programs, self._identity = programs, _identity()
        # Errors are ignored: the server may remove files of its own while the folder is removed.
        temporary = tempfile.TemporaryDirectory(prefix="percolator-pg-", ignore_cleanup_errors=True)
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(temporary))
            if self._identity:
                os.chown(self._folder, self._identity["user"], self._identity["group"])
            _make_cluster(programs, self._folder, self._identity)
            stack.callback(self._stop)
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def pid(self) -> int:
        """The process id of the postmaster, the parent of all other processes of the server."""
        return self._must_run().pid

    @property
    def conninfo(self) -> str:
        """The argument of `connect`, also in another process of the same user."""
        self._must_run()
        return _conninfo(self._folder)

    def restart(self) -> None:
        """Stop the server, which ends all sessions, and start it again with the same data and socket.

        Raises StoreUnavailable if it does not start.
        """
        self._must_run()
        self._stop()
        self._start()

    def _must_run(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise StoreUnavailable("the PostgreSQL server does not run: use it within its with statement")
        return self._process

    def connect(
        self, *, synchronous_commit: bool = True, autocommit: bool = False
    ) -> psycopg.Connection[tuple[Any, ...]]:
        """Open a connection; see `connect`."""
        return connect(self.conninfo, synchronous_commit=synchronous_commit, autocommit=autocommit)

    def cpu_seconds(self) -> float:
        """User and system time so far, of the postmaster and all its children, also ended ones."""
        return tree_cpu_seconds(self.pid)

    def _start(self) -> None:
        settings = {"listen_addresses": "", "unix_socket_directories": str(self._folder), **self._settings}
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with _log(self._folder).open("wb") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._folder / "data", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                # Ctrl-C goes to the benchmark, which then stops the server.
                start_new_session=True,
                **self._identity,
            )
        _wait_until_ready(self._process, self._folder)

    def _stop(self) -> None:
        """Use the fast shutdown, which ends sessions, or the immediate one if that takes too long."""
        server, self._process = self._process, None
        if server is None:
            return
        for how in (signal.SIGINT, signal.SIGQUIT):
            server.send_signal(how)
            try:
                server.wait(_STOP_LIMIT)
            except subprocess.TimeoutExpired:
                continue
            return
        server.kill()
        server.wait()


def connect(
    conninfo: str, *, synchronous_commit: bool = True, autocommit: bool = False
) -> psycopg.Connection[tuple[Any, ...]]:
    """Open a psycopg connection whose transactions are REPEATABLE READ, PostgreSQL's snapshot isolation.

    Without ``synchronous_commit``, a commit is answered before it is on the disk: a crash may lose the last
    commits, but corrupts nothing. With psycopg's ``autocommit``, each statement outside of
    `Connection.transaction` is a transaction of its own.
    """
    import psycopg

    # As defaults of the session, the settings also apply to single statements, and no BEGIN repeats them.
    options = (
        r"-c default_transaction_isolation=repeatable\ read"
        f" -c synchronous_commit={'on' if synchronous_commit else 'off'}"
    )
    return psycopg.connect(conninfo, autocommit=autocommit, options=options)


def _conninfo(folder: Path) -> str:
    return f"host={folder} user={_ROLE} dbname=postgres"


def folder_of_programs() -> Path | None:
    """Find the folder with initdb and postgres: on the PATH, else the newest packaged version."""
    initdb = shutil.which("initdb")
    if initdb is not None and shutil.which("postgres", path=str(Path(initdb).parent)):
        return Path(initdb).parent
    packaged = [path.parent for path in PACKAGED.glob("*/bin/postgres") if (path.parent / "initdb").exists()]
    return max(packaged, key=_version, default=None)


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", folder.parent.name)))


def _identity() -> dict[str, Any]:
    """Return the arguments that make a subprocess run as another user, if this process is root."""
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
    # Only the server's user (and root) can open the folder, and so its socket, so --auth=trust is safe.
    # --no-sync: the folder lives only as long as the server, and need not survive a crash.
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
            f"initdb failed; fix the reported problem: {done.stderr.decode(errors='replace').strip()[-500:]}"
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
    raise StoreUnavailable(
        f"the benchmark's PostgreSQL server did not start; fix the reported problem: {words}"
    )
