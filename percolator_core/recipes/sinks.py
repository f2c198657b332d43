"""Where an `ExportQueue` hands its items to: what a sink owes it, and three that are ready made.

A call may be repeated, whatever the sink did with it, and calls for one key may overlap, an old one being
late. So a sink keeps the last sequence of every key beside what it keeps of the key, compares and replaces
both in one step, and ignores what is not newer.
"""

from __future__ import annotations

import hashlib
import http.client
import sqlite3
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Literal, Protocol, Self, TypeAlias
from urllib.parse import quote, urlsplit

from percolator_core.errors import PercolatorError

SEQUENCE_HEADER: Final = "sequence"
"""The header of a message in which `KafkaSink` writes the sequence, in decimal digits."""

_LONGEST_READABLE_KEY: Final = 100
_BODY_SHOWN: Final = 200
_PAUSE: Final = 0.01


class NotTaken(PercolatorError):
    """A sink's other side did not take an item; the message says why. The observer's worker tries again."""


class Sink(Protocol):
    """What takes items out of the store. Any object with this method is one."""

    def take(self, key: bytes, sequence: int, payload: bytes) -> None:
        """Take an item, for good: when this returns, the item leaves the queue.

        Called with one key's items in order, by several threads and processes at once for different keys;
        more than once for an item; and, from a run that was held up, for an item older than one already
        taken. ``sequence`` is above 0 and below 2**53, and rises with every item of a key: what is not above
        the last one of its key is ignored, without an error. Raise any exception where the item was
        not taken, or where that is unknown.
        """


Effect: TypeAlias = Callable[[sqlite3.Connection, bytes, int, bytes], object]


class SQLiteSink:
    """Items in one SQLite file: of each key the newest payload and its sequence; each item has effect once.

    The table is ``(key BLOB PRIMARY KEY, sequence INTEGER, payload BLOB)``. For more than the newest payload,
    such as a log of all or columns of your own, give an ``effect``: it is called for every new item, in the
    transaction that takes it, and so exactly once for each that is committed.

    For all threads of a process, and for several processes that share the file. A context manager.
    """

    def __init__(
        self,
        path: str | Path,
        table: str = "exports",
        *,
        effect: Effect | None = None,
        timeout: float = 10.0,
    ) -> None:
        """Open the file, or make it, with the table in it.

        Args:
            path: the file; its folder must be there.
            table: the name of the table.
            effect: called as ``effect(connection, key, sequence, payload)`` for every new item, in its
                transaction, which it must not end; what it raises undoes the item.
            timeout: seconds to wait for another process that writes.

        Raises:
            sqlite3.Error: the file cannot be opened, or is no database.
        """
        self._name = '"' + table.replace('"', '""') + '"'
        self._effect = effect
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(
            path, timeout=timeout, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare(time.monotonic() + timeout)
        except BaseException:
            self._connection.close()
            raise

    def take(self, key: bytes, sequence: int, payload: bytes) -> None:
        """Keep the item if it is newer than what there is of its key.

        Raises:
            sqlite3.Error: nothing was written, such as for a full disk or a lock that others hold.
            Exception: what the effect raised; nothing was written.
        """
        connection = self._connection
        with self._lock:
            try:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")  # left behind by one that was interrupted in its clean-up
                connection.execute("BEGIN IMMEDIATE")
                changed = connection.execute(
                    # In one statement: two processes must not both find the sequence below their own.
                    f"INSERT INTO {self._name} AS kept VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE "  # noqa: S608
                    "SET sequence = excluded.sequence, payload = excluded.payload "
                    "WHERE excluded.sequence > kept.sequence",
                    (key, sequence, payload),
                )
                if changed.rowcount and self._effect is not None:
                    self._effect(connection, key, sequence, payload)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def get(self, key: str | bytes) -> tuple[int, bytes] | None:
        """The newest sequence and payload of a key, or None."""
        wanted = key.encode() if isinstance(key, str) else key
        with self._lock:
            found = self._connection.execute(
                f"SELECT sequence, payload FROM {self._name} WHERE key = ?",  # noqa: S608
                (wanted,),
            ).fetchone()
        return None if found is None else (found[0], found[1])

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self, deadline: float) -> None:
        """Set the journal up, and make the table."""
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                # The processes of a worker open the file all at once, and SQLite does not wait for this lock.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)
        # An item leaves the queue once we have it: we must have it after a loss of power, too.
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self._name} "
            "(key BLOB PRIMARY KEY, sequence INTEGER NOT NULL, payload BLOB NOT NULL)"
        )


class KafkaSink:
    """Items as messages of a Kafka topic: the key is the item's, the sequence stands in a header.

    Takes a producer that you made, as the common clients for Python have it:
    ``send(topic, key=, value=, headers=)`` returns a future with ``get(timeout)``, and ``flush()`` sends what
    lingers. It must wait for all replicas (``acks="all"``), be usable by several threads, and give a message
    up before the observer's ``timeout`` is over, which cannot interrupt it.

    A key's messages go to one partition, which the producer chooses by the key. Each is acknowledged before
    the next is sent, so none overtakes another, whatever the producer repeats. Repeats do come: a consumer
    keeps the last sequence of each key, and drops what is not above it (`sequence_of`).
    """

    def __init__(self, producer: Any, topic: str, *, timeout: float = 30.0) -> None:
        """``timeout`` is in seconds, above 0, for the acknowledgement of one message; else ValueError."""
        self._producer = producer
        self._topic = topic
        self._timeout = _seconds(timeout)

    def take(self, key: bytes, sequence: int, payload: bytes) -> None:
        """Send the item, and wait until it is acknowledged.

        Raises:
            Exception: what the producer or its future raised. It may have been sent all the same.
        """
        headers = [(SEQUENCE_HEADER, b"%d" % sequence)]
        future = self._producer.send(self._topic, key=key, value=payload, headers=headers)
        self._producer.flush()
        future.get(self._timeout)

    @staticmethod
    def sequence_of(headers: Iterable[tuple[str, bytes]]) -> int | None:
        """For consumers: the sequence in a message's headers, None where there is none."""
        for name, value in headers:
            if name == SEQUENCE_HEADER:
                return int(value)
        return None


class HTTPSink:
    """Items as requests, one each, to an HTTP or HTTPS server.

    ``{key}`` in the path or query of the URL stands for the item's key, percent-encoded. The body is the
    payload. Two headers go with it: ``Idempotency-Key``, made of key and sequence and so the same for each
    repeat, and ``Export-Sequence``, the sequence in decimal digits. A server that knows the idempotency key
    answers 409, or what it answered before. It compares sequences, too: where it has a higher one of the key
    it ignores the request, and answers 409.

    2xx: taken. 409: it has that one, or a newer one, already. Anything else, redirections too: not taken.
    """

    def __init__(
        self,
        url: str,
        *,
        method: Literal["POST", "PUT"] = "POST",
        timeout: float = 10.0,
        headers: Mapping[str, str] | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Nothing is sent yet.

        Args:
            url: ``http://`` or ``https://``, without user and password: those belong into ``headers``.
            method: POST or PUT.
            timeout: seconds that the server may be silent, above 0.
            headers: sent with every request, such as Authorization and Content-Type.
            context: whom to trust with https; by default the system's authorities.

        Raises:
            ValueError: the URL, method or timeout cannot be.
        """
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None:
            raise ValueError("a sink's URL is http(s)://HOST[:PORT]/PATH: put credentials into headers")
        if method not in {"POST", "PUT"}:
            raise ValueError(f"a sink's method is POST or PUT, not {method}")
        self._host, self._port = parts.hostname, parts.port
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._method = method
        self._timeout = _seconds(timeout)
        self._headers = dict(headers or {})
        self._context = (context or ssl.create_default_context()) if parts.scheme == "https" else None

    def take(self, key: bytes, sequence: int, payload: bytes) -> None:
        """Send the item, and read the answer.

        Raises:
            NotTaken: the server answered something else than 2xx or 409.
            OSError, http.client.HTTPException: no answer. It may have been taken all the same.
        """
        name = quote(key, safe="")
        headers = {
            "Content-Type": "application/octet-stream",
            **self._headers,
            "Idempotency-Key": f"{_short(key, name)}:{sequence}",
            "Export-Sequence": str(sequence),
        }
        with closing(self._connect()) as connection:
            connection.request(self._method, self._target.replace("{key}", name), payload, headers)
            with connection.getresponse() as answer:
                if 200 <= answer.status < 300 or answer.status == http.client.CONFLICT:
                    return
                said = answer.read(_BODY_SHOWN).decode("utf-8", "replace")
                raise NotTaken(
                    f"{self._host} answered {answer.status} {answer.reason}: {said!r}; it must answer 2xx, "
                    "or 409 for what it has already"
                )

    def _connect(self) -> http.client.HTTPConnection:
        # Not urllib's opener: that follows a redirection, and makes a GET without the payload of a POST.
        if self._context is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout, context=self._context
        )


def _short(key: bytes, name: str) -> str:
    """The key as a part of a header: no two alike, and no longer than servers take."""
    if len(name) <= _LONGEST_READABLE_KEY:
        return name
    return "sha256=" + hashlib.sha256(key).hexdigest()  # no percent-encoded key has a "="


def _seconds(timeout: float) -> float:
    if not timeout > 0:
        raise ValueError(f"timeout is in seconds and above 0, not {timeout}")
    return timeout
