"""Apply records of a partition: the rows and the offset behind them, in one transaction.

The table `STATE` has a row for each partition that a consumer reads, ``NAME/TOPIC/PARTITION``. Each
transaction reads and writes its cell ``position``, so two processes that apply at the same time conflict. The
cell also names the process that may apply: a process that takes over replaces the name, and the earlier
process stops at its next transaction.

Malformed records are rows of the table `ASIDE`, ``NAME/TOPIC/PARTITION/OFFSET``, written in the transaction
that passes them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Final, Self

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.database import Database
from percolator_core.errors import ConfigurationError, UnknownColumn
from percolator_core.kafka.records import Converter, Deletion, Message
from percolator_core.kafka.report import ConsumptionStopped, PartitionInUse
from percolator_core.loading import repeatable
from percolator_core.loading.records import MAX_LOADED_VALUE, BadRecord, Record
from percolator_core.loading.transactions import merge_cells, merge_rows
from percolator_core.loading.typed_records import TypedRecords
from percolator_core.tables import rows
from percolator_core.transaction.snapshot import Snapshot
from percolator_core.transaction.transaction import Transaction

STATE: Final = "kafka"
"""The raw table with the positions of all consumers."""

ASIDE: Final = "kafka_aside"
"""The raw table with the malformed records of all consumers."""

_STATE_CELL: Final = "position"


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a consumer in a partition, as of the last transaction.

    All records below ``offset`` are applied. ``cluster`` identifies the Kafka cluster, ``table`` is the table
    of the rows, and ``owner`` the process that may apply.
    """

    offset: int
    cluster: str | None
    table: str
    owner: str

    def to_bytes(self) -> bytes:
        """Return the value of the cell."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of(cls, t: Snapshot, row: str) -> Self | None:
        """Read the position in a row of `STATE`; None if it has none."""
        found = t.get(STATE, row, _STATE_CELL)
        return None if found is None else cls(**json.loads(found))


@dataclass(slots=True)
class Applier:
    """Applies records of one topic. ``max_bad`` is the number of malformed records that may still come."""

    db: Database
    name: str
    topic: str
    table: str
    cluster: str | None
    owner: str
    converter: Converter
    max_bad: int | None

    def take_over(self, partition: int, low: int, high: int, *, reset: bool) -> int:
        """Become the process that may apply records of a partition; return the offset of the next one.

        ``low`` and ``high`` are the offset of the first record that the partition has, and of its end.

        Raises:
            ConfigurationError: the position is that of another cluster or table.
            ConsumptionStopped: the partition no longer has the next record, and ``reset`` is False.
        """

        def transaction(t: Transaction) -> int:
            stored = Position.of(t, self._row(partition))
            offset = low if stored is None else stored.offset
            if stored is not None:
                self._check(stored)
            if not low <= offset <= high:
                if not reset:
                    raise self._lost(partition, offset, low, high)
                offset = low
            position = Position(offset, self.cluster, self.table, self.owner)
            t.set(STATE, self._row(partition), _STATE_CELL, position.to_bytes())
            return offset

        return repeatable.run(self.db, transaction)

    def apply(self, partition: int, messages: Sequence[Message]) -> Counter[str]:
        """Apply records in the order of their offsets; return the numbers of `ConsumptionProgress`.

        Records below the stored offset are left out.

        Raises:
            PartitionInUse: another process has taken over.
            ConsumptionStopped: more than ``max_bad`` records are malformed. None of these is applied.
            StoreUnavailable, TransactionConflict: nothing is applied, and the call may be repeated.
        """
        row, end = self._row(partition), messages[-1].offset + 1

        def transaction(t: Transaction) -> Counter[str]:
            stored = Position.of(t, row)
            if stored is None or stored.owner != self.owner:
                raise PartitionInUse(
                    f"another process has taken over {row}: let it go on, or use another name"
                )
            # An earlier attempt may have committed, and its reply was lost.
            new = [one for one in messages if one.offset >= stored.offset]
            if not new:
                return Counter()
            t.set(STATE, row, _STATE_CELL, replace(stored, offset=end).to_bytes())
            return self._write(t, partition, new)

        counts = repeatable.run(self.db, transaction)
        if self.max_bad is not None:
            self.max_bad -= counts["bad"]
        return counts

    def _row(self, partition: int) -> str:
        return f"{self.name}/{self.topic}/{partition}"

    def _check(self, stored: Position) -> None:
        """Raise ConfigurationError if the position belongs to another cluster or table."""
        if stored.table != self.table:
            raise ConfigurationError(
                f"the consumer {self.name!r} writes {self.topic} into {stored.table}: name that table, or "
                "use another name"
            )
        if stored.cluster != self.cluster:
            raise ConfigurationError(
                f"the offsets of the consumer {self.name!r} are those of the cluster {stored.cluster}, and "
                f"this is {self.cluster}: use another name, which begins at the first record"
            )

    def _lost(self, partition: int, offset: int, low: int, high: int) -> ConsumptionStopped:
        gone = (
            f"records {offset} to {low - 1} were deleted before they were read"
            if offset < low
            else f"it ends at {high}, before the stored offset {offset}, as after it was made again"
        )
        return ConsumptionStopped(
            f"partition {partition} of {self.topic} has lost records, {gone}: go on with the first record "
            "that it has by --reset, or write the lost rows first"
        )

    def _write(self, t: Transaction, partition: int, messages: Iterable[Message]) -> Counter[str]:
        handle = t.handle_of(self.table)
        typed = self.converter.typed(handle)
        found = [(one, self.converter.convert(typed, partition, one)) for one in messages]
        _prefetch(t, handle, [one for _, one in found if isinstance(one, Record)])
        counts = Counter({"read": len(found)})
        by_offset = {message.offset: message for message, _ in found}
        for outcome in _outcomes(t, handle, typed, [one for _, one in found]):
            if isinstance(outcome, str):
                counts[outcome] += 1
                continue
            offset = outcome.origin.position
            self._put_aside(t, partition, by_offset[offset], outcome.reason)
            counts["bad"] += 1
            if self.max_bad is not None and counts["bad"] > self.max_bad:
                raise ConsumptionStopped(
                    f"more records are malformed than max_bad allows, the last one at offset {offset} of "
                    f"partition {partition} of {self.topic}: {outcome.reason}; correct the options or the "
                    "table, or allow more"
                )
        return counts

    def _put_aside(self, t: Transaction, partition: int, message: Message, reason: str) -> None:
        row = f"{self._row(partition)}/{message.offset:020}"
        t.set(ASIDE, row, "reason", reason.encode())
        for column, value in (("key", message.key), ("value", message.value)):
            if value is not None:
                t.set(ASIDE, row, column, value[:MAX_LOADED_VALUE])


_Changes = Sequence[Record | Deletion | BadRecord]


def _prefetch(t: Transaction, handle: TableHandle, records: Sequence[Record]) -> None:
    """Read the cells of all records in few round trips, into the transaction's cache."""
    if handle.is_typed:
        rows.prefetch(t, handle, [(one.key, one.cells) for one in records], whole=True)
        return
    with suppress(UnknownColumn):  # the write of the record reports it
        t.get_many((handle.name, one.key, column) for one in records for column in one.cells)


def _outcomes(
    t: Transaction, handle: TableHandle, typed: TypedRecords | None, changes: _Changes
) -> Iterator[str | BadRecord]:
    """Write the changes in their order; yield the outcome of each."""
    if typed is None:
        for one in changes:
            yield _raw_outcome(t, handle.name, one)
        return
    group: dict[bytes, Record] = {}
    for one in changes:
        if isinstance(one, BadRecord):
            yield one
            continue
        if isinstance(one, Deletion) or one.key in group:
            yield from merge_rows(typed, list(group.values()), t)
            group = {}
        if isinstance(one, Record):
            group[one.key] = one
        else:
            yield "deleted" if rows.remove(t, handle, one.key) else "unchanged"
    yield from merge_rows(typed, list(group.values()), t)


def _raw_outcome(t: Transaction, table: str, change: Record | Deletion | BadRecord) -> str | BadRecord:
    if isinstance(change, BadRecord):
        return change
    if isinstance(change, Deletion):
        found = t.get_row(table, change.key)
        for column in found:
            t.delete(table, change.key, column)
        return "deleted" if found else "unchanged"
    try:
        return merge_cells(table, change, t)
    except (UnknownColumn, ValueError) as error:
        return BadRecord(change.origin, str(error), key=change.key)
