"""The stream of a slot, over a connection in the mode of the replication protocol (COPY BOTH).

See "Streaming Replication Protocol" of PostgreSQL. psycopg has no calls for it, but it has libpq's calls for
the data of a copy.
"""

from __future__ import annotations

import select
import struct
import time
from typing import Final

import psycopg
from psycopg import errors, pq, sql

from percolator_core.replication.report import lsn_text

_DATA_HEAD: Final = 25
"""The bytes before the message: the kind, two positions and a time."""

_KEEPALIVE: Final = struct.Struct(">xqqB")
_STATUS: Final = struct.Struct(">cqqqqB")
_SILENCE: Final = 10.0
"""Seconds after which the position is sent again. The server ends a stream after 60 s of silence (its
``wal_sender_timeout``)."""

_LONGEST_SILENCE: Final = 60.0
"""Seconds after which a question without an answer ends the stream: the network has lost the connection."""

_EPOCH: Final = 946_684_800
"""PostgreSQL counts time from 2000-01-01 UTC."""


class Stream:
    """Receives the messages of a slot, and confirms to the server what is stored.

    ``reached``: all changes before this position have been received, if no transaction is open. ``is_asked``:
    the server waits for a confirmation; a server that stops waits until everything is confirmed.
    """

    def __init__(
        self, connection: psycopg.Connection[tuple[object, ...]], slot: str, publication: str, start: int
    ) -> None:
        """Begin after the transactions that end at ``start`` or before.

        Raises:
            psycopg.OperationalError: another process receives from the slot, or the connection ended.
        """
        self._pgconn = connection.pgconn
        self.reached = start
        self.is_asked = False
        self._confirmed = start
        self._sent_at = 0.0
        self._heard_at = time.monotonic()
        self._asked_at: float | None = None
        name = sql.Identifier(slot).as_string(connection)
        names = sql.Literal(sql.Identifier(publication).as_string(connection)).as_string(connection)
        options = f"(proto_version '1', publication_names {names})"
        result = self._pgconn.exec_(
            f"START_REPLICATION SLOT {name} LOGICAL {lsn_text(start)} {options}".encode()
        )
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise errors.error_from_result(result)

    def receive(self) -> bytes | None:
        """Return the next message of pgoutput that has arrived, or None.

        Raises psycopg.OperationalError if the stream has ended.
        """
        while True:
            size, data = self._pgconn.get_copy_data(1)
            if size == 0:
                self._pgconn.consume_input()
                size, data = self._pgconn.get_copy_data(1)
            if size == 0:
                return None
            if size < 0:
                self._raise_end()
            self._heard_at, self._asked_at = time.monotonic(), None
            if data[0] == b"w"[0]:
                return bytes(data[_DATA_HEAD:])
            if data[0] == b"k"[0]:
                position, _, must_reply = _KEEPALIVE.unpack_from(data)
                self.reached = max(self.reached, position)
                if must_reply:
                    self.is_asked = True
                    self._send()

    def wait(self, seconds: float) -> None:
        """Wait until data arrives, at most ``seconds``.

        Raises psycopg.OperationalError if the server has not answered for too long.
        """
        now = time.monotonic()
        if self._asked_at is not None and now - self._asked_at > _LONGEST_SILENCE:
            raise psycopg.OperationalError(f"PostgreSQL has not answered for {_LONGEST_SILENCE:g} s")
        if now - self._heard_at > _SILENCE and self._asked_at is None:
            self.ask()
        poll = select.poll()  # unlike select(), for any number of open files
        poll.register(self._pgconn.socket, select.POLLIN)
        poll.poll(1000 * seconds)

    def confirm(self, position: int) -> None:
        """Tell the server that it may forget everything before a position, which is safe in the store."""
        self._confirmed = max(self._confirmed, position)
        self.is_asked = False
        self._send()

    def keep_alive(self) -> None:
        """Send the position again if the last time is long ago."""
        if time.monotonic() - self._sent_at > _SILENCE:
            self._send()

    def ask(self) -> None:
        """Ask the server how far the stream has come; its reply sets ``reached``."""
        self._asked_at = self._asked_at or time.monotonic()
        self._send(reply=True)

    def _send(self, *, reply: bool = False) -> None:
        now = int((time.time() - _EPOCH) * 1_000_000)
        position = self._confirmed
        self._pgconn.put_copy_data(_STATUS.pack(b"r", position, position, position, now, reply))
        self._pgconn.flush()
        self._sent_at = time.monotonic()

    def _raise_end(self) -> None:
        result = self._pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result)
        raise psycopg.OperationalError("PostgreSQL ended the stream of changes")
