"""The serving index: a separate SQLite file with FTS5, which has one posting for each cluster.

Several processes and threads may write it: each has its own connection, and SQLite's write-ahead log does not
block readers. Every posting has a version, and only a newer version replaces it. The version of a removed
posting is kept for a while, so that a late write of an older version does not restore the posting.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from percolator_core import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

ENVIRONMENT: Final = "PERCOLATOR_SERVING"
DEFAULT_PATH: Final = ".percolator/serving.db"

BUSY_SECONDS: Final = 5.0
"""Seconds for which a writer waits for another writer; then the run fails, and is retried with backoff."""

KEEP_REMOVED: Final = 24 * 3600 * 1_000_000
"""Microseconds for which the version of a removed posting is kept, far longer than any run is delayed."""

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS postings (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    version INTEGER NOT NULL,
    url TEXT,
    fingerprint TEXT,
    rank REAL NOT NULL DEFAULT 0,
    size INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS removed ON postings (version) WHERE url IS NULL;
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (
    title, anchors, url, text, tokenize = "porter unicode61 remove_diacritics 2"
);
"""
"""A removed posting has no URL; ``words.rowid`` is ``postings.id``."""


@dataclass(frozen=True, slots=True)
class Posting:
    """A cluster's entry in the index; ``anchors`` has one line for each anchor."""

    key: str
    url: str
    title: str
    anchors: str
    text: str
    fingerprint: str
    rank: float
    size: int


class ServingIndex:
    """One connection to the index. ``open_index`` opens one for each thread, because threads cannot share it.

    Raises:
        ConfigurationError: the file was created by an older version: remove it, and build a new one.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        # The busy timeout, set above, also applies to this change of the journal mode.
        self._connection.execute("PRAGMA journal_mode = WAL")
        # A power failure may lose the last postings, although the store already has the acknowledgements of
        # the runs that wrote them: `export.rebuild` restores the postings.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        with self._writing():
            for statement in SCHEMA.split(";\n"):
                self._connection.execute(statement)
        columns = {row[1] for row in self._connection.execute("PRAGMA table_info (postings)")}
        if "size" not in columns:
            self._connection.close()
            raise ConfigurationError(
                f"{path} was created by an older version of the web index: remove it, and build it again "
                "with the command `demo --fresh`, or observers.webindex.export.rebuild."
            )
        self._file = _identity(path)

    def is_in_place(self) -> bool:
        """Return True if the file at the path is still the opened one."""
        return _identity(self.path) == self._file

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def refresh(self, posting: Posting, version: int) -> bool:
        """Update a posting without its text; return False if only `put` can update it.

        This method can update it if only rank and size have changed, which is the most frequent change. If
        the index already has a newer version, nothing is written, and the result is True.
        """
        with self._writing() as connection:
            found = connection.execute(
                "SELECT p.version, p.url, p.fingerprint, w.title, w.anchors FROM postings p "
                "LEFT JOIN words w ON w.rowid = p.id WHERE p.key = ?",
                (posting.key,),
            ).fetchone()
            if found is None:
                return False
            if found[0] >= version:
                return True
            if found[1:] != (posting.url, posting.fingerprint, posting.title, posting.anchors):
                return False
            connection.execute(
                "UPDATE postings SET version = ?, rank = ?, size = ? WHERE key = ?",
                (version, posting.rank, posting.size, posting.key),
            )
            return True

    def put(self, posting: Posting, version: int) -> bool:
        """Insert or replace a posting, unless the index has a newer version; return True if written."""
        with self._writing() as connection:
            changed = connection.execute(
                "INSERT INTO postings (version, url, fingerprint, rank, size, key) VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET version = excluded.version, url = excluded.url, "
                "fingerprint = excluded.fingerprint, rank = excluded.rank, size = excluded.size "
                "WHERE version < excluded.version RETURNING id",
                (version, posting.url, posting.fingerprint, posting.rank, posting.size, posting.key),
            ).fetchone()
            if changed is None:
                return False
            connection.execute("DELETE FROM words WHERE rowid = ?", changed)
            connection.execute(
                "INSERT INTO words (rowid, title, anchors, url, text) VALUES (?, ?, ?, ?, ?)",
                (changed[0], posting.title, posting.anchors, posting.url, posting.text),
            )
            return True

    def remove(self, key: str, version: int) -> bool:
        """Remove a posting, unless the index has a newer version; return True if anything changed."""
        with self._writing() as connection:
            changed = connection.execute(
                "INSERT INTO postings (key, version) VALUES (?, ?) ON CONFLICT (key) DO UPDATE "
                "SET version = excluded.version, url = NULL, fingerprint = NULL, rank = 0, size = 0 "
                "WHERE version < excluded.version RETURNING id",
                (key, version),
            ).fetchone()
            if changed is None:
                return False
            connection.execute("DELETE FROM words WHERE rowid = ?", changed)
            connection.execute(
                "DELETE FROM postings WHERE url IS NULL AND version < ?", (version - KEEP_REMOVED,)
            )
            return True

    def postings(self) -> Iterator[Posting]:
        """Yield all postings in the order of their keys."""
        for row in self._connection.execute(
            "SELECT p.key, p.url, w.title, w.anchors, w.text, p.fingerprint, p.rank, p.size, w.url "
            "FROM postings p LEFT JOIN words w ON w.rowid = p.id WHERE p.url IS NOT NULL ORDER BY p.key"
        ):
            key, url, title, anchors, text, fingerprint, rank, size, indexed_url = row
            if indexed_url != url:
                # A row of `words` that is missing or belongs to another URL counts as empty.
                title, anchors, text = "", "", ""
            yield Posting(key, url, title, anchors, text, fingerprint, rank, size)

    def orphans(self) -> list[int]:
        """Return the rows of the table ``words`` that belong to no posting."""
        rows = self._connection.execute(
            "SELECT rowid FROM words WHERE rowid NOT IN (SELECT id FROM postings WHERE url IS NOT NULL)"
        )
        return [row[0] for row in rows]

    def clear(self) -> None:
        """Remove all postings and their versions."""
        with self._writing() as connection:
            connection.execute("DELETE FROM postings")
            connection.execute("DELETE FROM words")

    def query(self, statement: str, parameters: tuple[object, ...]) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT statement."""
        return self._connection.execute(statement, parameters).fetchall()

    def intact(self) -> bool:
        """Return True if the integrity check of FTS5 succeeds."""
        try:
            self._connection.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")
        except sqlite3.DatabaseError:
            return False
        return True

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        # IMMEDIATE takes the write lock at once. A transaction that reads first and then writes would not
        # wait for the lock: it would fail.
        if self._connection.in_transaction:
            # The transaction is still open: the deadline of a run interrupted it between two statements.
            self._connection.execute("ROLLBACK")
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


_local = threading.local()


def open_index(path: str | os.PathLike[str] | None = None) -> ServingIndex:
    """Return this thread's connection to the index at ``path``.

    The default path is $PERCOLATOR_SERVING, or else .percolator/serving.db.
    """
    where = Path(path or os.environ.get(ENVIRONMENT) or DEFAULT_PATH).absolute()
    # A connection must not be used after a fork: a child opens its own.
    opened: dict[tuple[int, Path], ServingIndex] = _local.__dict__.setdefault("opened", {})
    identity = (os.getpid(), where)
    found = opened.get(identity)
    if found is not None and not found.is_in_place():
        # The file was removed or replaced, so writes through the old connection would be lost.
        opened.pop(identity).close()
        found = None
    if found is None:
        found = opened[identity] = ServingIndex(where)
    return found


@contextmanager
def serving_index(path: Path) -> Iterator[None]:
    """In the block, `open_index` of this process and its children opens the index at ``path``."""
    before = os.environ.get(ENVIRONMENT)
    os.environ[ENVIRONMENT] = str(path)
    try:
        yield
    finally:
        close_indexes()
        if before is None:
            del os.environ[ENVIRONMENT]
        else:
            os.environ[ENVIRONMENT] = before


def close_indexes() -> None:
    """Close this thread's connections."""
    opened: dict[tuple[int, Path], ServingIndex] = _local.__dict__.setdefault("opened", {})
    for identity in [identity for identity in opened if identity[0] == os.getpid()]:
        opened.pop(identity).close()
