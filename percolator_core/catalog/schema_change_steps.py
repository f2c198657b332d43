"""The steps of one schema change, one method each. Every step may be repeated.

`percolator_core.catalog.schema_change` explains the order of the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from percolator_core.catalog.catalog import Catalog, Entry, raise_safe_points
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import ConfigurationError, UnknownColumn
from percolator_core.layout.keys import BASE, MAINTAINER, VERSION, meta_key, rows_key
from percolator_core.schema.definition_changes import with_range
from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.partitions import Partition
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Fencing
from percolator_core.store import Store

_ROWS_AT_ONCE: Final = 1000
"""One call drops, sweeps or reads at most this many rows of a tablet, because it blocks all other clients."""


class Oracle(Protocol):
    """The source of timestamps."""

    def timestamp(self) -> int:
        """Return a new timestamp."""


class Client(Protocol):
    """The part of `percolator_core.transaction.client.Client` that a schema change uses."""

    store: Store
    catalog: Catalog

    @property
    def oracle(self) -> Oracle:
        """The oracle."""

    def active_observers(self) -> set[str]:
        """Return the names of the active observers."""

    def observed_columns(self) -> Mapping[str, Mapping[str, Sequence[str]]]:
        """Return the recorded observers, by table and column."""


class LockSettler(Protocol):
    """The part of `percolator_core.maintenance.locks.Locks` that a schema change uses."""

    def settle_table(self, table: str, tags: Sequence[bytes], upto: int, *, primaries: bool) -> None:
        """Resolve the locks of one table, and with ``primaries`` all locks whose primary is in the table."""


class BaseSettler(Protocol):
    """The part of `percolator_core.base.changes.BaseChanges` that a schema change uses."""

    def settle(self, entry: Entry) -> bool:
        """Move all tablets to the definition's base or into the store. Return False if the table changed."""

    def rows_on_each_side(
        self, definition: TableDefinition, tag: bytes, value: bytes
    ) -> tuple[bytes | None, bytes | None]:
        """Return one row of a tablet's base below a value of the range column, and one at or above it."""

    def abandon(self, places: Sequence[tuple[str, str]], *, at_once: bool = ...) -> None:
        """Record folders that no table has any more, so that their files are removed."""

    def remove_abandoned(self) -> int:
        """Remove the files of the recorded folders that are due."""


class PendingChange:
    """An unfinished schema change, as its entry in the catalog describes it."""

    def __init__(self, client: Client, locks: LockSettler, bases: BaseSettler, entry: Entry) -> None:
        self._client = client
        self._store = client.store
        self._locks = locks
        self._bases = bases
        self._entry = entry
        self._definition = entry.definition
        self._plan = entry.pending or {}
        self._kind: str = self._plan.get("kind", "")
        self._tags = tags_of(client.store, entry.definition)

    def fence(self) -> None:
        """Give all tablets the entry's version. From now on they refuse writes with the old definition."""
        # A new safe point for three reasons: a new table must refuse older snapshots, a dropped table all
        # existing snapshots, and a repaired tablet may have lost its safe point.
        refuses = self._kind in ("create", "drop", "mend")
        least = self._client.oracle.timestamp() if refuses else 0
        hows: dict[str, Fencing] = {"create": "found", "mend": "mend"}
        how = hows.get(self._kind, "raise")
        # The chain's record is read after the entry was written. An activation that is missing in the record
        # lists the tables later, so it finds this table.
        fields = () if how == "raise" else _flat(self._observers(self._definition), b"o")
        self._fence(self._tags, how, least, fields)

    def settle(self) -> None:
        """Wait for the transactions that have locks from before the fence, or end them."""
        # A new timestamp is the limit, because all locks from before the fence have older start timestamps.
        # Newer locks may stay. They exist if another client has already published the change.
        upto = self._client.oracle.timestamp()
        # If the change removes data, resolve all locks whose primary is in this table: without the primary
        # no client could later find out if they were committed.
        removes_data = self._kind == "drop" or bool(self._plan.get("sweep"))
        self._locks.settle_table(self._definition.name, self._tags, upto, primaries=removes_data)
        if removes_data:
            # A failover must not restore a resolved lock after its primary was removed.
            tags = [tag for _, tag in self._client.catalog.tablets()]
            raise_safe_points(self._store, tags, durably=True)
        if self._plan.get("refuses_older"):
            # This comes before the publication. By the new definition, a snapshot that is older than the new
            # cells would find rows without them.
            self._refuse_older()

    def publish(
        self,
        definition: TableDefinition,
        sweep: Sequence[str] = (),
        left: Sequence[tuple[str, str]] | None = None,
    ) -> Entry | None:
        """Write the definition into the catalog, unless the entry has changed; return the present entry."""
        entry = self._entry
        return self._client.catalog.replace(entry, definition, entry.version, sweep=sweep, left=left)

    def split_range(self) -> TableDefinition:
        """Return the definition with the new range. Raises ConfigurationError if rows would have to move."""
        return split_range(self._store, self._bases, self._definition, bytes.fromhex(self._plan["value"]))

    def seed(self, new: TableDefinition) -> None:
        """Give the added tablets the entry's version and an old tablet's meta hash, before any write to them.

        No registration of a concurrent activation is lost. Registrations from before the fence are copied.
        Old tablets refuse later registrations, so the activation starts again.
        """
        flat = self._store.one((b"HGETALL", meta_key(self._tags[0])))
        pairs = zip(flat[::2], flat[1::2], strict=True)
        fields = [part for pair in pairs if pair[0] not in {VERSION, BASE, MAINTAINER} for part in pair]
        self._fence(tags_of(self._store, new)[len(self._tags) :], "found", fields=fields)

    def observe_new_columns(self, new: TableDefinition) -> None:
        """Register the observers of added columns, before any client can write to these columns."""
        stored = {column.stored.encode() for column in self._definition.columns}
        added = {column: names for column, names in self._observers(new).items() if column not in stored}
        if added:
            version, pairs = b"%d" % self._entry.version, _flat(added)
            registered = [calls.observe(tag, "add", version, 0, (), pairs) for tag in self._tags]
            self._store.run_all(registered, durably=True)

    def drop_rows(self) -> None:
        """Remove everything in the tablets."""
        observers = sorted({*self._plan["observers"], *self._client.active_observers()})
        for tag in self._tags:
            step = calls.drop_table(tag, self._entry.version, _ROWS_AT_ONCE, observers)
            while self._store.run(step):
                pass

    def remove_entry(self) -> None:
        """Remove the dropped table from the catalog, then the files of its base."""
        base = self._definition.base
        places = [*self._entry.left, *([] if base is None else [base.place])]
        # The folders are recorded first: after a crash, maintenance removes their files.
        self._bases.abandon(places, at_once=True)
        self._client.catalog.replace(self._entry, None)
        if places:
            self._bases.remove_abandoned()

    def sweep(self) -> None:
        """Remove the cells of dropped columns, then remove the columns from ``sweep`` of the entry."""
        # First raise the safe point of all tablets above every snapshot that can read the columns. Later
        # snapshots use a definition without them. The write is durable: a failover must not allow an older
        # snapshot after a cell was removed.
        if not self._refuse_older():
            return  # another client has swept, or has changed the table and continues the sweep
        if self.remove_cells([name.encode() for name in self._entry.sweep]):
            self.publish(self._definition)

    def remove_cells(self, columns: Sequence[bytes]) -> bool:
        """Remove the cells of columns that nobody reads or writes; False if a tablet has another version.

        During a sweep another client has then changed the table, and continues the sweep.
        """
        for tag in self._tags:
            bound: bytes | None = b"-"
            while bound:
                bound = self._store.run(calls.sweep(tag, self._entry.version, bound, _ROWS_AT_ONCE, columns))
                if bound is None:
                    return False
        return True

    def _refuse_older(self) -> bool:
        """Refuse all snapshots up to now, unless another client has ended this change or its sweep.

        Return False in that case: the other client has refused them itself. A late client would also refuse
        snapshots that use the new definition, because its timestamp may be above theirs.
        """
        safe = self._client.oracle.timestamp()
        # The entry is read after `safe` was requested. So an end by another client below `safe` is noticed.
        entry = self._client.catalog.entry(self._definition.name)
        if entry is None or _progress(entry) != _progress(self._entry):
            return False
        raise_safe_points(self._store, self._tags, safe, durably=True)
        return True

    def settle_bases(self) -> None:
        """Move everything out of the bases that the table has left, then remove them from the entry.

        The files of these bases stay for a while, because readers may still use them.
        """
        if self._bases.settle(self._entry):
            self._bases.abandon(self._entry.left)
            self.publish(self._definition, self._entry.sweep, left=())

    def tablets_have(self, version: bytes) -> bool:
        """Return True if all tablets have ``version``."""
        wanted = [(b"HGET", meta_key(tag), VERSION) for tag in self._tags]
        return all((found or b"") == version for found in self._store.call(*wanted))

    def _fence(
        self, tags: Sequence[bytes], how: Fencing, least: int = 0, fields: Sequence[bytes] = ()
    ) -> None:
        """Give tablets the entry's version and at least the safe point ``least`` (`fence.lua`)."""
        # The write is durable, because the next entry of the catalog relies on the fence. A new table does
        # not need this: no client can write to it with an older definition.
        fences = [calls.fence(tag, self._entry.version, least, how, fields) for tag in tags]
        self._store.run_all(fences, durably=not self._entry.is_new)

    def _observers(self, definition: TableDefinition) -> dict[bytes, bytes]:
        """Return the recorded observers of each encoded column, joined by commas.

        So a new table is observed from its first write, even if it is created again while workers run.
        """
        handle = TableHandle(definition, self._store)
        found: dict[bytes, bytes] = {}
        for column, observers in definition.observers(self._client.observed_columns()).items():
            with suppress(UnknownColumn):  # the chain has another definition, so its workers will be refused
                found[handle.encode(column)] = ",".join(observers).encode()
        return found


def _progress(entry: Entry) -> tuple[object, ...]:
    """Return what the steps of a change replace in an entry; a move of its base replaces other parts."""
    return entry.version, entry.pending, entry.sweep


def tags_of(store: Store, definition: TableDefinition) -> list[bytes]:
    """Return the tags of all tablets of a table."""
    return [store.keyspace.tag(definition.stored, number) for number in range(definition.tablets)]


def _flat(pairs: Mapping[bytes, bytes], prefix: bytes = b"") -> list[bytes]:
    return [part for name, value in pairs.items() for part in (prefix + name, value)]


def split_range(
    store: Store, bases: BaseSettler, definition: TableDefinition, value: bytes
) -> TableDefinition:
    """Split a range at ``value``, and give the new tablets to the part without rows.

    Raises ConfigurationError if both parts have rows, because rows would have to move.
    """
    partition, codec = Partition(definition), KeyCodec(definition)
    below = above = None
    for number in partition.tablets_of_range(value):
        tag = store.keyspace.tag(definition.name, number)
        # The store is read first: a row that moves to the base at this moment is then found in the base.
        for low, high in (
            partition.row_on_each_side(value, partial(_rows, store, rows_key(tag))),
            bases.rows_on_each_side(definition, tag, value),
        ):
            # An empty row key is possible: only None means "no row".
            below, above = low if below is None else below, high if above is None else above
    if below is not None and above is not None:
        raise ConfigurationError(
            f"table {definition.name!r}: a split there would move rows, such as {codec.describe(below)} "
            f"below it or {codec.describe(above)} above: add ranges where there are no rows yet; a deleted "
            "row counts until garbage is collected"
        )
    return with_range(definition, value, upper_is_new=above is None)


def _rows(store: Store, key: bytes, low: bytes, high: bytes | None) -> Iterator[bytes]:
    """Yield the rows of a tablet's row index from ``low`` to below ``high``."""
    start, stop = b"[" + low, b"+" if high is None else b"(" + high
    while start:
        rows = store.one((b"ZRANGEBYLEX", key, start, stop, b"LIMIT", 0, _ROWS_AT_ONCE))
        yield from rows
        start = b"(" + rows[-1] if len(rows) == _ROWS_AT_ONCE else b""
