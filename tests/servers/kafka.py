"""A broker of Kafka for tests.

It is the mock cluster of Kafka's client library, which speaks the protocol and keeps its records in memory.
``PERCOLATOR_TEST_KAFKA`` names another one, ``HOST:PORT``, on which the same tests then run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

ROOT: Final = Path(__file__).resolve().parents[2]

OTHER: Final = os.environ.get("PERCOLATOR_TEST_KAFKA")

LARGE: Final = 500_000
"""Bytes of a record that soon pushes earlier ones out of the mock cluster: it keeps 5 MB of a partition."""


class Kafka:
    """A broker, and a producer for it."""

    def __init__(self, servers: str | None = OTHER) -> None:
        quiet = {"log_level": 2}
        self._is_mock = servers is None or servers != OTHER
        if servers is None:
            self._mock = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, **quiet})
            brokers = self._mock.list_topics(timeout=30).brokers.values()
            servers = ",".join(f"{one.host}:{one.port}" for one in brokers)
        self.servers = servers
        self.producer = Producer({"bootstrap.servers": servers, **quiet})

    def topic(self) -> str:
        """Make a topic with four partitions, as the mock cluster makes each one at its first mention."""
        name = f"t{uuid.uuid4().hex}"
        if not self._is_mock:
            admin = AdminClient({"bootstrap.servers": self.servers})
            admin.create_topics([NewTopic(name, 4, 1)])[name].result(30)
        assert len(self.producer.list_topics(name, timeout=30).topics[name].partitions) == 4
        return name

    def send(self, topic: str, key: str | bytes | None, value: Any, partition: int = -1) -> None:
        """Send a record; a value that is not bytes is sent as JSON, and None is none."""
        if value is not None and not isinstance(value, bytes):
            value = json.dumps(value).encode()
        self.producer.produce(topic, value, key, partition=partition, on_delivery=must_be_delivered)
        self.producer.poll(0)

    def flush(self) -> None:
        assert self.producer.flush(30) == 0

    def truncate(self, topic: str, partition: int) -> None:
        """Delete the records that the partition has; it gets others."""
        self.flush()
        if not self._is_mock:
            end = TopicPartition(topic, partition, -1)
            admin = AdminClient({"bootstrap.servers": self.servers})
            admin.delete_records([end])[end].result(30)
        for _ in range(12):
            self.send(topic, "large", {"text": "x" * LARGE}, partition)
            self.flush()


def must_be_delivered(error: object, _message: object) -> None:
    assert error is None, error


@contextmanager
def broker() -> Iterator[tuple[subprocess.Popen[str], Kafka]]:
    """A broker in a process of its own, which is killed at the end.

    To take down the mock cluster in this process may take for ever: the client library waits for its threads.
    """
    command = [sys.executable, "-m", "tests.servers.kafka"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield process, Kafka(process.stdout.readline().strip())
        finally:
            process.kill()


def kafka_broker() -> Iterator[Kafka]:
    """The body of a fixture."""
    if OTHER is not None:
        yield Kafka()
        return
    with broker() as (_, kafka):
        yield kafka
        # The producer goes while its broker still answers.
        kafka.flush()
        del kafka.producer


if __name__ == "__main__":  # a broker in a process of its own, which a test can stop
    kafka = Kafka(None)
    print(kafka.servers, flush=True)
    sys.stdin.read()
