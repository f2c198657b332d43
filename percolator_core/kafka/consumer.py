"""Consume: read the partitions of a topic from the stored offsets, and reconnect after failures.

A process that follows a topic joins the consumer group NAME, which divides the partitions between its
members. With ``once`` it reads all partitions, without the group. In both cases it takes over each partition
in the store first, and reads from the offset that it finds there: a process that still believes that it has
the partition cannot commit any more. Kafka's own offsets are neither read nor written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Received

from percolator_core.database import Database
from percolator_core.errors import (
    ConfigurationError,
    LockTimeout,
    PercolatorError,
    StoreUnavailable,
    TransactionConflict,
    UnknownTable,
)
from percolator_core.kafka.apply import ASIDE, STATE, Applier
from percolator_core.kafka.records import Converter, Message
from percolator_core.kafka.report import ConsumptionProgress, ConsumptionReport, PartitionInUse
from percolator_core.observers import Chain
from percolator_core.runtime.log import Log
from percolator_core.runtime.patience import Patience

_BATCH_RECORDS: Final = 500
_BATCH_BYTES: Final = 4 << 20
"""Limits of the records that are read before they are written; a single one may be larger."""

_LOOK: Final = 0.2
"""Seconds between two looks at ``stop`` while nothing comes."""

_ANSWER: Final = 10.0
"""Seconds for an answer of Kafka."""

_CRITICAL: Final = 2
"""What Kafka's library writes to stderr by itself: it reports other failures to this module, too."""

_PASSING: Final = (KafkaException, StoreUnavailable, LockTimeout, TransactionConflict, PartitionInUse)
"""Failures that may pass by themselves."""

_REFUSALS: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - its name in Kafka's library
    }
)
"""Errors of Kafka that another attempt does not mend."""

log = Log("percolator.kafka")


def consume(
    db: Database,
    servers: str,
    topic: str,
    table: str,
    *,
    name: str,
    columns: Mapping[str, str] | None = None,
    column: str | None = None,
    chain: Chain | None = None,
    once: bool = False,
    reset: bool = False,
    max_bad: int | None = None,
    patience: float = 300.0,
    settings: Mapping[str, str] | None = None,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[ConsumptionProgress], object] | None = None,
) -> ConsumptionReport:
    """Write the records of a Kafka topic into a table, each exactly once, in the order of its partition.

    A transaction has records of one partition, and the offset behind them. Only cells that differ are
    written. A record without a value deletes its row. A record that does not fit is put aside in the table
    ``kafka_aside``. The first call for a name begins at the first record that the topic has.

    Args:
        db: the database of the table.
        servers: addresses of Kafka, ``HOST:PORT,…``.
        topic: the name of the topic.
        table: a table that exists, or that the chain creates.
        name: the name of the consumer, without a slash. It is the group in Kafka, and begins the names of the
            rows with the offsets in the table ``kafka``.
        columns: fields of the value to columns; other fields are left out. None means that each field is
            loaded into the column of the same name.
        column: the column of a raw table for the whole value, which then need not be JSON.
        chain: its tables are created, and its observers activated, first.
        once: read all partitions, and return at the ends that they had at the start.
        reset: go on at the first record that a partition has, if it no longer has the next one.
        max_bad: stop before the transaction with which more records than this are malformed, 0 or more. None
            means no limit.
        patience: seconds for which a server that does not answer is tried again, above 0. An error of the
            first attempt is raised at once.
        settings: settings of librdkafka, such as ``security.protocol``.
        stop: called several times a second; if it returns True, the call returns.
        progress: called after each transaction.

    Raises:
        ConfigurationError: the topic, the table or a setting cannot be used; the message says why.
        UnknownTable: the table does not exist.
        ConsumptionStopped: a partition has lost records, or too many are malformed.
        PartitionInUse: another process has taken over a partition, and did so for ``patience`` seconds.
        StoreUnavailable: the store or Kafka did not answer for ``patience`` seconds.
    """
    if not patience > 0 or (max_bad or 0) < 0:
        raise ValueError(
            f"patience is above 0 and max_bad not below, not {patience} and {max_bad}: leave them out"
        )
    if not name or "/" in name:
        raise ConfigurationError(f"the name of a consumer is a text without a slash, not {name!r}")
    if column is not None and columns is not None:
        raise ConfigurationError("the whole value goes into --column, or its fields into --columns: name one")
    if chain is not None:
        chain.create_tables(db)
    if all(definition.name != table for definition in db.tables()):
        raise UnknownTable(f"there is no table {table!r} in {db.namespace!r}: create it or name its chain")
    converter = Converter(topic, columns, column)
    handle = db.catalog.table(table)
    handle.definition.refuse_of_view()
    converter.typed(handle)
    db.create_table(STATE, tablets=1)
    db.create_table(ASIDE, tablets=1)
    applier = Applier(db, name, topic, table, None, uuid4().hex, converter, max_bad)
    return _Consumer(applier, servers, settings or {}, once, reset, Patience(patience, stop), progress).run()


@dataclass(slots=True)
class _Partition:
    """A partition that this process reads. ``offset`` is that of the next record to apply.

    ``reached`` is the offset up to which Kafka has sent everything, ``end`` the last known end, and ``goal``
    the end at the start.
    """

    offset: int
    reached: int
    end: int
    goal: int
    batch: list[Message] = field(default_factory=list)


@dataclass(slots=True)
class _Consumer:
    """One call of `consume`; the fields are its arguments."""

    applier: Applier
    servers: str
    settings: Mapping[str, str]
    once: bool
    reset: bool
    patience: Patience
    progress: Callable[[ConsumptionProgress], object] | None
    _numbers: ConsumptionProgress = field(default_factory=ConsumptionProgress)
    _partitions: dict[int, _Partition] = field(default_factory=dict)
    _records: int = 0
    _bytes: int = 0
    _failure: KafkaError | None = None
    _was_connected: bool = False

    def run(self) -> ConsumptionReport:
        """Repeat sessions until one ends by itself, is stopped, or cannot go on."""
        began = time.monotonic()
        while not self.patience.stop():
            consumer = self._connect()
            try:
                self._session(consumer)
                break
            except _PASSING as error:
                self._wait_after(error)
            finally:
                self._drop_batches()
                consumer.close()
        now = self._numbers
        return ConsumptionReport(
            self.applier.name,
            self.applier.topic,
            self.applier.table,
            now.read,
            now.new,
            now.changed,
            now.unchanged,
            now.deleted,
            now.bad,
            now.behind,
            time.monotonic() - began,
        )

    def _connect(self) -> Consumer:
        ours: dict[str, Any] = {
            "bootstrap.servers": self.servers,
            "group.id": self.applier.name,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # The offset is always given. A partition that does not have it has lost records.
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            # All partitions are given back before a rebalance, so each new assignment is the whole one.
            "partition.assignment.strategy": "range",
            "error_cb": self._note_failure,
        }
        self._failure = None
        try:
            return Consumer({"log_level": _CRITICAL, **self.settings, **ours})
        except (KafkaException, ValueError, TypeError) as error:
            raise ConfigurationError(f"a setting of Kafka's library is not valid: {_text(error)}") from None

    def _note_failure(self, error: KafkaError) -> None:
        if error.code() in {KafkaError._ALL_BROKERS_DOWN, *_REFUSALS} or error.fatal():  # noqa: SLF001
            self._failure = error

    def _wait_after(self, error: Exception) -> None:
        """Wait before the next attempt. Raises the error if no attempt has succeeded for too long."""
        kafka = error.args[0] if isinstance(error, KafkaException) else None
        if kafka is not None and kafka.code() in _REFUSALS:
            raise ConfigurationError(
                f"Kafka refuses the topic {self.applier.topic}: {kafka.str()}"
            ) from error
        if self.patience.is_over() or not self._was_connected:
            if isinstance(error, PercolatorError):
                raise error
            raise StoreUnavailable(
                f"Kafka cannot be reached: {_text(error)}; check its address, and that it runs"
            ) from error
        log.warning("the consumer was interrupted, and tries again", error=_text(error))
        self.patience.wait()

    def _session(self, consumer: Consumer) -> None:
        partitions = self._describe(consumer)
        self._was_connected = True
        if self.once:
            self._assign(consumer, [TopicPartition(self.applier.topic, one) for one in partitions])
        else:
            consumer.subscribe([self.applier.topic], on_assign=self._assign, on_revoke=self._revoke)
        while not self.patience.stop() and not self._is_done():
            received = consumer.poll(0 if self._records else _LOOK)
            if received is not None:
                self._take(received)
            if received is None or self._records >= _BATCH_RECORDS or self._bytes >= _BATCH_BYTES:
                self._apply(consumer)
            if self._failure is not None:
                raise KafkaException(self._failure)
        self._apply(consumer)
        self._report()

    def _is_done(self) -> bool:
        return self.once and all(one.reached >= one.goal for one in self._partitions.values())

    def _describe(self, consumer: Consumer) -> list[int]:
        """Return the partitions of the topic, and note the cluster."""
        try:
            found = consumer.list_topics(self.applier.topic, timeout=_ANSWER)
        except KafkaException:
            consumer.poll(0)  # calls `_note_failure` with the reason, if Kafka has told it
            if self._failure is not None:
                raise KafkaException(self._failure) from None
            raise
        described = found.topics[self.applier.topic]
        if described.error is not None:
            raise KafkaException(described.error)
        self.applier.cluster = found.cluster_id
        return sorted(described.partitions)

    def _assign(self, consumer: Consumer, given: Sequence[TopicPartition]) -> None:
        """Take over partitions, and read them from the stored offsets."""
        self._drop_batches()
        for one in given:
            low, high = consumer.get_watermark_offsets(one, timeout=_ANSWER)
            offset = self.applier.take_over(one.partition, low, high, reset=self.reset)
            self._partitions[one.partition] = _Partition(offset, offset, high, high)
        topic = self.applier.topic
        consumer.assign([TopicPartition(topic, one, each.offset) for one, each in self._partitions.items()])
        self._report()

    def _revoke(self, _consumer: Consumer, _given: Sequence[TopicPartition]) -> None:
        """Forget what was read and is not applied: the next owner reads it again."""
        self._drop_batches()

    def _drop_batches(self) -> None:
        self._partitions, self._records, self._bytes = {}, 0, 0

    def _take(self, received: Received) -> None:
        error, partition, offset = received.error(), received.partition(), received.offset()
        state = None if partition is None else self._partitions.get(partition)
        if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
            # If the next record is gone, the next session finds this out, and says what is lost.
            raise KafkaException(error)
        if state is None or offset is None:
            return
        if error is not None:
            # Behind the last record may be the marks of Kafka's transactions, which are no records.
            state.reached = state.end = max(state.reached, offset)
            return
        key, value = received.key(), received.value()
        state.batch.append(Message(offset, _bytes(key), _bytes(value)))
        state.reached = offset + 1
        state.end = max(state.end, state.reached)
        self._records += 1
        self._bytes += len(key or b"") + len(value or b"")

    def _apply(self, consumer: Consumer) -> None:
        """Write what was read, a transaction for each partition."""
        for partition, state in self._partitions.items():
            if not state.batch:
                continue
            counts = self.applier.apply(partition, state.batch)
            state.batch, state.offset = [], state.reached
            now = self._numbers
            for number in ("read", "new", "changed", "unchanged", "deleted", "bad"):
                setattr(now, number, getattr(now, number) + counts[number])
            asked = TopicPartition(self.applier.topic, partition)
            state.end = max(state.end, consumer.get_watermark_offsets(asked, cached=True)[1])
            self._report()
        self._records = self._bytes = 0

    def _report(self) -> None:
        """Report numbers after a success."""
        self.patience.succeeded()
        self._numbers.partitions = len(self._partitions)
        self._numbers.behind = sum(max(0, one.end - one.reached) for one in self._partitions.values())
        if self.progress is not None:
            self.progress(self._numbers)


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _text(error: BaseException) -> str:
    found = error.args[0] if isinstance(error, KafkaException) else error
    return found.str() if isinstance(found, KafkaError) else str(found)
