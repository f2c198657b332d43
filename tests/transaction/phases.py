"""Cells in three tablets, and transactions that write all of them."""

from __future__ import annotations

from percolator_core import Database, Transaction
from tests.servers.plain import rows_apart

X, Y, Z = rows_apart(3)


def started(writer: Database, *rows: bytes) -> Transaction:
    t = writer.begin()
    assert t.start_timestamp
    for row in rows or (X, Y, Z):
        t.set("t", row, "v", b"new")
    return t


def values(db: Database) -> list[bytes | None]:
    with db.transaction() as t:
        return t.get_many([("t", row, "v") for row in (X, Y, Z)])


def locks(db: Database) -> list[bytes]:
    return [lock.row for lock in db.locks()]
