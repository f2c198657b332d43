"""One broker and one store for all tests of this folder; each test has a topic and a namespace."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from percolator_core import Database, connect
from percolator_core.kafka import ConsumptionReport, consume
from percolator_core.kafka.apply import STATE, Position
from tests.servers.kafka import Kafka, kafka_broker

kafka = pytest.fixture(scope="session")(kafka_broker)


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = f"embedded:{tmp_path_factory.mktemp('store')}"
    with connect(url):
        yield url


@dataclass
class Shop:
    """A topic, and a namespace with the raw table ``items``."""

    db: Database
    url: str
    kafka: Kafka
    topic: str

    @property
    def name(self) -> str:
        """The consumer's name: members of one group that tests share would wait for each other."""
        return f"shop-{self.topic}"

    def position(self, partition: int) -> str:
        """The row with the offset of a partition."""
        return f"{self.name}/{self.topic}/{partition}"

    def send(self, *records: tuple[str | bytes | None, Any], partition: int = -1) -> None:
        """Send records, each a key and a value."""
        for key, value in records:
            self.kafka.send(self.topic, key, value, partition)
        self.kafka.flush()

    def consume(self, table: str = "items", **settings: Any) -> ConsumptionReport:
        given: dict[str, Any] = {"name": self.name, "once": True, "patience": 60.0} | settings
        return consume(self.db, self.kafka.servers, self.topic, table, **given)

    def rows(self, table: str = "items") -> dict[str, dict[str, str]]:
        return {
            row.decode(): {name: value.decode() for name, value in cells.items()}
            for row, cells in self.db.snapshot().scan(table)
        }

    def aside(self) -> list[tuple[str, str, bytes | None, bytes | None]]:
        """The records that were put aside: the end of the row's name, the reason, the key and the value."""
        return [
            (row.decode().split("/", 2)[2], cells["reason"].decode(), cells.get("key"), cells.get("value"))
            for row, cells in self.db.snapshot().scan("kafka_aside")
        ]

    def offsets(self) -> list[int]:
        """The stored offsets of the partitions."""
        self.db.create_table(STATE, tablets=1)
        found = [Position.of(self.db.snapshot(), self.position(number)) for number in range(4)]
        return [-1 if one is None else one.offset for one in found]

    @contextmanager
    def following(self, **settings: Any) -> Iterator[threading.Event]:
        """A consumer in a thread, stopped at the end of the block or by the event."""
        stop = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                self.consume(once=False, stop=stop.is_set, **settings)
            except BaseException as error:  # noqa: BLE001 - raised below
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield stop
        finally:
            stop.set()
            thread.join()
        if failed:
            raise failed[0]


@pytest.fixture
def shop(kafka: Kafka, url: str) -> Iterator[Shop]:
    with connect(url, f"t{uuid4().hex}") as db:
        db.create_table("items", tablets=2)
        yield Shop(db, url, kafka, kafka.topic())
