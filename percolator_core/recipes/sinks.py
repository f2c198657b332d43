"""The sinks of an `ExportQueue`: the interface, and three implementations.

A call may be repeated, even after it succeeded. Calls for one key may overlap, and the call with the older
item may end after the call with the newer one. So a sink stores the newest sequence of every key with the
key's data. In one atomic step, the sink compares the item's sequence with the stored sequence, and replaces
sequence and data. It ignores an item whose sequence is not above the stored sequence.
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
"""The name of the header that has the sequence, in decimal digits, in a message of `KafkaSink`."""

_LONGEST_READABLE_KEY: Final = 100
_BODY_SHOWN: Final = 200
_PAUSE: Final = 0.01


class NotTaken(PercolatorError):
    """The receiver of a sink refused an item; the message has the reason. The worker tries again."""


class Sink(Protocol):
    """A receiver of items: any object with this method."""

    def take(self, key: bytes, sequence: int, payload: bytes) -> None:
        """Take an item durably: after the return the item leaves the queue.

        The items of a key come in order. But an item may come more than once, and a delayed run may pass an
        item that is older than a taken one. Threads and processes call this method at the same time: mostly
        for different keys, sometimes for one key. ``sequence`` is above 0 and below 2**53, and rises with
        every item of a key. Return without an error if the sequence is not above the key's newest one. Raise
        any exception if the item was not taken, or if that is unknown.
        """


Effect: TypeAlias = Callable[[sqlite3.Connection, bytes, int, bytes], object]


class SQLiteSink:
    """Stores the newest payload of each key, with its sequence, in an SQLite file.

    The table is ``(key BLOB PRIMARY KEY, sequence INTEGER, payload BLOB)``. To store more, such as a log of
    all items or further columns, pass an ``effect``. It is called for every new item, in the transaction that
    takes the item, so its writes are committed exactly once.

    Threads may share the sink, and processes may share the file. The sink is a context manager.
    """

    def __init__(
        self,
        path: str | Path,
        table: str = "exports",
        *,
        effect: Effect | None = None,
        timeout: float = 10.0,
    ) -> None:
        """Open or create the file and the table.

        Args:
            path: the file; its folder must exist.
            table: the name of the table.
            effect: called as ``effect(connection, key, sequence, payload)`` for every new item, in a
                transaction. It must not end the transaction; an exception rolls the item back.
            timeout: seconds to wait for another process that writes.

        Raises:
            sqlite3.Error: the file cannot be opened, or is not a database.
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
        """Store the item if its sequence is above the key's newest one.

        Raises:
            sqlite3.Error: nothing was written: the disk is full, or another process has the lock.
            Exception: the effect failed, and nothing was written.
        """
        connection = self._connection
        with self._lock:
            try:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")  # an earlier call was interrupted before its rollback
                connection.execute("BEGIN IMMEDIATE")
                changed = connection.execute(
                    # One statement compares and writes, so that two processes cannot both find a lower
                    # sequence in the file.
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
        """Return the newest sequence and payload of a key, or None."""
        key = key.encode() if isinstance(key, str) else key
        with self._lock:
            found = self._connection.execute(
                f"SELECT sequence, payload FROM {self._name} WHERE key = ?",  # noqa: S608
                (key,),
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
        """Switch to a write-ahead log, and create the table."""
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                # Several processes may open the file at the same time, and SQLite does not wait for this
                # lock.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)
        # A write has to survive a loss of power, because the item leaves the queue after the write.
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self._name} "
            "(key BLOB PRIMARY KEY, sequence INTEGER NOT NULL, payload BLOB NOT NULL)"
        )


class KafkaSink:
    """Sends items as messages of a Kafka topic, with the item's key, and its sequence in a header.

    The producer has the interface of the common Python clients: ``send(topic, key=, value=, headers=)``
    returns a future with ``get(timeout)``, and ``flush()`` sends buffered messages. The producer has to be
    thread-safe, and has to wait for all replicas (``acks="all"``). It has to give up a message before the
    observer's ``timeout``, because the timeout cannot interrupt the producer.

    The producer chooses the partition by the key, so the messages of a key go to one partition. The sink
    waits for the acknowledgement of each message, which keeps the order. Messages may be repeated: a consumer
    stores the newest sequence of each key, and drops a message whose sequence (`sequence_of`) is not greater.
    """

    def __init__(self, producer: Any, topic: str, *, timeout: float = 30.0) -> None:
        """``timeout`` is in seconds, above 0, for the acknowledgement of one message; else ValueError."""
        self._producer = producer
        self._topic = topic
        self._timeout = _seconds(timeout)

    def take(self, key: bytes, sequence: int, payload: bytes) -> None:
        """Send the item, and wait until it is acknowledged.

        Raises:
            Exception: the producer or its future failed. The message may have been sent.
        """
        headers = [(SEQUENCE_HEADER, b"%d" % sequence)]
        future = self._producer.send(self._topic, key=key, value=payload, headers=headers)
        self._producer.flush()
        future.get(self._timeout)

    @staticmethod
    def sequence_of(headers: Iterable[tuple[str, bytes]]) -> int | None:
        """Return the sequence in the headers of a message, for consumers; None if there is none."""
        for name, value in headers:
            if name == SEQUENCE_HEADER:
                return int(value)
        return None


class HTTPSink:
    """Sends each item as a request to an HTTP or HTTPS server.

    The item's percent-encoded key replaces ``{key}`` in the path or query of the URL. The body is the
    payload. The request has two headers. ``Idempotency-Key`` consists of key and sequence, and is the same
    for each repetition. ``Export-Sequence`` is the sequence in decimal digits. The server has to recognize
    both: if it has seen the idempotency key, it sends 409, or its earlier answer; if it has seen a higher
    sequence of the item's key, it ignores the request and sends 409.

    The answer 2xx means that the item was taken, and 409 that the server has this item or a newer one. All
    other answers, also redirections, mean that the item was not taken.
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
        """Check the arguments, and send nothing.

        Args:
            url: ``http://`` or ``https://``, without user and password: put credentials into ``headers``.
            method: POST or PUT.
            timeout: seconds to wait for the server, above 0.
            headers: sent with every request, such as Authorization and Content-Type.
            context: the trusted authorities for https; by default the authorities of the system.

        Raises:
            ValueError: the URL, method or timeout is not valid.
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
            NotTaken: the answer was neither 2xx nor 409.
            OSError, http.client.HTTPException: no answer. The item may have been taken.
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
                    f"{self._host} answered {answer.status} {answer.reason}: {said!r}; the server must "
                    "answer 2xx, or 409 for an item that it already has"
                )

    def _connect(self) -> http.client.HTTPConnection:
        # urllib's opener would follow a redirection, and turn a POST into a GET without the payload.
        if self._context is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout, context=self._context
        )


def _short(key: bytes, name: str) -> str:
    """Return a unique text for the key, short enough for a header."""
    if len(name) <= _LONGEST_READABLE_KEY:
        return name
    return "sha256=" + hashlib.sha256(key).hexdigest()  # no percent-encoded key has a "="


def _seconds(timeout: float) -> float:
    if not timeout > 0:
        raise ValueError(f"timeout is in seconds and above 0, not {timeout}")
    return timeout
