"""Holding a Spark, or a load, at a known place for as long as a test wants."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from percolator_core import connect
from tests.servers.plain import commit_of

_JAVA = """\
#!/bin/sh
case "$*" in
-version | *org.apache.spark.launcher.Main*) ;;
*)
    echo $$ > '{here}/coming' && mv '{here}/coming' '{here}/pid'
    {then} ;;
esac
exec '{java}' "$@"
"""
_WAIT = "while [ ! -e '{here}/open' ]; do sleep 0.05; done"


class Gate:
    """A Java that tells its process id and waits for `open`, or does something else, before it runs Spark."""

    def __init__(self, folder: Path, then: str = _WAIT) -> None:
        self._here = folder
        home = os.environ.get("JAVA_HOME")
        real = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
        java = folder / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(_JAVA.format(here=folder, java=real, then=then.format(here=folder)))
        java.chmod(0o755)
        self.environment = {"JAVA_HOME": str(folder)}

    def pid(self) -> int:
        """Waits until Java is at the gate; returns its process id."""
        eventually((self._here / "pid").exists)
        return int((self._here / "pid").read_text())

    def open(self) -> None:
        """Lets Java go on."""
        (self._here / "open").touch()


@contextmanager
def held(url: str, namespace: str, table: str, row: str, column: str) -> Iterator[None]:
    """A writer that lives and does not commit: who reads or writes the cell waits, for half a minute."""
    with connect(url, namespace, lock_ttl=300) as db:
        transaction = db.begin()
        transaction.set(table, row, column, b"held")
        commit = commit_of(transaction)
        commit.prewrite()
        try:
            yield
        finally:
            commit.roll_back()


def runs(pid: int) -> bool:
    """Whether the process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition: Callable[[], object], seconds: float = 100.0) -> None:
    """Waits for the condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not come about in {seconds:.0f} s"
        time.sleep(0.01)
