"""A sink that sends messages of a Kafka topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from percolator_core.recipes.sinks import seconds

SEQUENCE_HEADER: Final = "sequence"
"""The name of the header that has the sequence, in decimal digits, in a message of `KafkaSink`."""


class KafkaSink:
    """Sends items as messages of a Kafka topic, with the item's key, and its sequence in a header.

    The producer is that of confluent-kafka, or has the interface of kafka-python: ``send(topic, key=, value=,
    headers=)`` returns a future with ``get(timeout)``, and ``flush()`` sends buffered messages. It has to be
    thread-safe, and has to wait for all replicas (``acks="all"``). It has to give up a message before the
    observer's ``timeout``, because the timeout cannot interrupt the producer.

    The producer chooses the partition by the key, and the sink waits for the acknowledgement of each message.
    This keeps the order. Messages may be repeated: a consumer stores the newest sequence of each key, and
    drops a message whose sequence (`sequence_of`) is not greater.
    """

    def __init__(self, producer: Any, topic: str, *, timeout: float = 30.0) -> None:
        """``timeout`` is in seconds, above 0, for the acknowledgement of one message; else ValueError."""
        self._producer = producer
        self._topic = topic
        self._timeout = seconds(timeout)

    def take(self, key: bytes, sequence: int, payload: bytes) -> None:
        """Send the item, and wait until it is acknowledged.

        Raises:
            Exception: the producer or its future failed. The message may have been sent.
        """
        headers = [(SEQUENCE_HEADER, b"%d" % sequence)]
        if hasattr(self._producer, "produce"):
            outcome: list[object] = []
            self._producer.produce(
                self._topic, payload, key, headers=headers, on_delivery=lambda error, _: outcome.append(error)
            )
            self._producer.flush(self._timeout)
            if outcome != [None]:
                raise TimeoutError(f"Kafka has not acknowledged a message: {(outcome or ['no answer'])[0]}")
            return
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
