"""The models, writers and readers of the tests of migrations."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import create_model

from percolator_core import Database, Hash, PrimaryKey, SnapshotTooOld, Table, TransactionConflict

ROWS = 40


def model(**fields: Any) -> Any:
    """The table ``items`` with an int key ``id`` and these fields, each as `create_model` takes it."""
    return create_model(
        "Item",
        __base__=Table,
        __cls_kwargs__={"name": "items", "partition": [Hash("id", buckets=3)]},
        id=(PrimaryKey[int], ...),
        **fields,
    )


def rows(db: Database) -> list[dict[str, Any]]:
    """All rows of ``items``, by id."""
    return sorted(db.snapshot().select("items"), key=lambda row: row["id"])


class Clients:
    """Clients that increment the column ``n``, whatever its type, and read, while the table changes."""

    def __init__(self, writers: list[Database], reader: Database) -> None:
        self.done = 0
        self.errors: list[BaseException] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._turn = threading.Condition()
        self._threads = [
            *(threading.Thread(target=self._write, args=(db, at)) for at, db in enumerate(writers)),
            threading.Thread(target=self._read, args=(reader,)),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        for error in self.errors:
            raise error

    def wait_for_more(self, count: int = 3) -> None:
        """Wait until the writers have committed ``count`` more increments."""
        with self._turn:
            wanted = self.done + count
            assert self._turn.wait_for(lambda: self.done >= wanted or self.errors, timeout=180)

    def _write(self, db: Database, at: int) -> None:
        number = at
        try:
            while not self._over.is_set():
                number = (number * 7 + 3 + at) % ROWS
                try:
                    db.run(lambda t, number=number: increment(t, number), attempts=100)  # type: ignore[misc]
                except (TransactionConflict, SnapshotTooOld):
                    continue
                with self._turn:
                    self.done += 1
                    self._turn.notify_all()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            with self._turn:
                self.errors.append(error)
                self._turn.notify_all()

    def _read(self, db: Database) -> None:
        try:
            while not self._over.is_set():
                try:
                    with db.snapshot() as snapshot:
                        first = list(snapshot.select("items"))
                        assert len(first) == ROWS
                        assert list(snapshot.select("items")) == first
                except SnapshotTooOld:
                    continue
        except BaseException as error:  # noqa: BLE001 - the test raises it
            with self._turn:
                self.errors.append(error)
                self._turn.notify_all()


def increment(t: Any, number: int) -> None:
    """Add 1 to the column ``n`` of a row, whatever its type."""
    row = t.find("items", id=number)
    kind = type(row["n"])
    t.update("items", id=number, n=kind(int(row["n"]) + 1))


def ignore(t: Any, cell: Any) -> None:
    """An observer that does nothing."""


@contextmanager
def clients(writers: list[Database], reader: Database) -> Iterator[Clients]:
    """Writers and a reader in threads, for the time of the block; their errors are raised at its end."""
    made = Clients(writers, reader)
    made.start()
    try:
        yield made
    finally:
        made.stop()
