"""Making, changing and dropping tables while others use them.

A change is written down in the table's entry of the catalog before it begins, and goes on in steps that may
be repeated. Whoever meets one that is under way carries it on, whatever became of who began it:

1. *begin*: the entry has the change and a new version.
2. *fence*: every tablet is given the version. From then on it refuses writes by the old definition.
3. *settle*: transactions that had locks before the fence are waited for, or ended. Nothing is in flight now.
4. *publish*: the entry has the new definition, and writers go on by it.
5. *sweep*: data that the change left is removed.

A change that cannot be made, as is found out in between, publishes the old definition.

Readers are not held up. The timestamp of a snapshot comes with the catalog's epoch, so a snapshot reads by
the tables as they were at its timestamp, to its end. This stays right while others change a table: no row
moves, no name in the store is used again, and what is committed to new tablets is committed after the
snapshot. Only a change that removes data would leave a hole. It raises the safe point first, above every
snapshot by the old definition, so these are refused.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from percolator_core.catalog.catalog import Entry, TableHandle
from percolator_core.errors import ConfigurationError, UnknownColumn, UnknownTable
from percolator_core.layout.keys import decode_primary
from percolator_core.layout.records import unpack_lock
from percolator_core.maintenance.janitor import FoundLock, Janitor
from percolator_core.schema.definition_changes import (
    agrees,
    describe,
    with_column,
    with_range,
    with_renamed,
    without_column,
)
from percolator_core.schema.definitions import (
    Column,
    TableDefinition,
    check_definition,
    from_json,
    index_definition,
    to_json,
)
from percolator_core.schema.partitions import Partition
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Fencing
from percolator_core.store import FORMAT
from percolator_core.transaction.client import Client

_Plan: TypeAlias = dict[str, Any]
"""A change as the entry has it, in types that JSON has."""

_AT_ONCE: Final = 1000
"""Rows of a tablet that one call drops, sweeps or looks at, at most: a script holds up everybody."""


class SchemaChanges:
    """Makes, changes and drops the tables of one namespace."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._store = client.store
        self._catalog = client.catalog

    def create(self, definition: TableDefinition) -> None:
        """Add a table and its indexes; the same definition again is fine. The first founds the namespace.

        Columns and ranges that the table was given since do not make it another one.

        Raises:
            ConfigurationError: the definition cannot be, or the table exists with another one.
            TypeError: ``tablets`` is no whole number, or a name is not str.
            LockTimeout: as `drop`, where that was not finished.
        """
        check_definition(definition)
        while True:
            entry = self._catalog.entry(definition.name)
            if entry is None:
                # Before the table: whoever finds it finds its indexes, too.
                for index in self._indexes(definition):
                    self.create(index)
                format_, entry = self._catalog.add(definition, {"kind": "create"}, FORMAT)
                self._store.check_format(format_)
            if entry.pending is None:
                break
            self.finish(entry)
        if not agrees(definition, entry.definition):
            raise ConfigurationError(
                f"table {definition.name!r} exists with {describe(entry.definition)}, not "
                f"{describe(definition)}: drop it first, or use its definition"
            )

    def drop(self, name: str) -> None:
        """Remove a table with all its rows and indexes, in bounded steps. After a crash, drop it again.

        Raises:
            UnknownTable: there is none.
            ConfigurationError: it is an index, which goes with its table.
            LockTimeout: a transaction is still committing to it; drop it again later. It is out of use.
        """
        entry = self._catalog.entry(name)
        if entry is None:
            raise self._unknown(name)
        table = entry.definition.index_of
        # One without its table was left by who died while he made both.
        if table and self._catalog.entry(table) is not None:
            raise ConfigurationError(f"{name} is an index: drop its table, {entry.definition.index_of!r}")
        self._drop(name)

    def _drop(self, name: str, before: float = math.inf) -> None:
        """Drop a table, if there is one, and its version is less than ``before``: later it is another one."""
        while True:
            entry = self._catalog.entry(name)
            if entry is None or (entry.is_there and entry.version >= before):
                return
            if entry.is_there and entry.pending is not None:
                self.finish(entry)
                continue
            held: Entry | None = entry
            if entry.is_there:
                observers = sorted(self._client.active_observers())
                held = self._catalog.replace(
                    entry, entry.definition, pending=_plain("drop", observers=observers)
                )
            if held is not None and not held.is_there:
                self.finish(held)
                return

    def add_column(self, name: str, column: Column) -> None:
        """Add a column to a typed table; the same once more does nothing.

        Rows that are there have ``column.missing`` for it.

        Raises:
            UnknownTable: there is none.
            ConfigurationError: the column cannot be, or there is another one of its name.
            LockTimeout: a transaction is still committing; add it again later.
        """

        def plan(found: TableDefinition) -> _Plan | None:
            return _defining(found, with_column(found, column))

        self._change(name, ["add column", column.name, column.type], plan)

    def drop_column(self, name: str, column: str) -> None:
        """Drop a column and what it holds.

        Raises:
            UnknownTable, UnknownColumn: there is none.
            ConfigurationError: it is one of the key or has an index, or an active observer watches it.
            LockTimeout: a transaction is still committing; drop it again later.
        """

        def plan(found: TableDefinition) -> _Plan | None:
            new = without_column(found, column)
            self._refuse_watched(found, column)
            return _defining(found, new, sweep=[found.by_name[column].stored])

        self._change(name, ["drop column", column], plan)

    def rename_column(self, name: str, old: str, new: str) -> None:
        """Rename a column, in the key, rules and indexes, too. Data goes by stored names: none is touched.

        Raises:
            UnknownTable, UnknownColumn: there is none.
            ConfigurationError: there is one of the new name.
            LockTimeout: a transaction is still committing; rename it again later.
        """

        def plan(found: TableDefinition) -> _Plan | None:
            return _defining(found, with_renamed(found, old, new))

        self._change(name, ["rename column", old, new], plan)

    def add_range(self, name: str, value: bytes) -> None:
        """Cut the range in which an encoded value of its column lies; the value belongs to the upper part.

        No row moves: the part that has no rows gets the new tablets. A split that is there is fine.

        Raises:
            UnknownTable: there is none.
            ConfigurationError: the table has no ranges, or there are rows on both sides.
            LockTimeout: a transaction is still committing; add it again later.
        """

        def plan(found: TableDefinition) -> _Plan | None:
            wanted = with_range(found, value, upper_is_new=True)
            if wanted == found:
                return None
            check_definition(wanted)
            self._cut(found, value)  # so that most of what cannot be holds nobody up
            return _plain("add range", value=value.hex())

        self._change(name, ["add range", value.hex()], plan)

    def carry_on(self, name: str, version: bytes) -> None:
        """Whoever was refused by a tablet because of this version sees to it that he can go on.

        Raises:
            LockTimeout: a transaction is still committing.
        """
        entry = self._catalog.entry(name)
        if entry is None or not entry.is_there:
            return
        if entry.pending is not None:
            self.finish(entry, sweep=False)
        elif entry.writers_version == version and not self._all_have(entry, version):
            # Entry and tablets do not agree, and nobody is about to change that: a failover lost one of both.
            held = self._begin(entry, _plain("mend", definition=to_json(entry.definition)))
            if held is not None:
                self.finish(held, sweep=False)

    def finish_all(self) -> None:
        """Carry on what others have left unfinished, and sweep. Raises LockTimeout as `carry_on`."""
        for entry in self._catalog.entries():
            if entry.pending is not None:
                self.finish(entry)
            elif entry.sweep:
                self._sweep(entry)

    def finish(self, entry: Entry, *, sweep: bool = True, is_ours: bool = False) -> None:
        """Carry a change on to its end. That it cannot be made is told to who began it, and to nobody else.

        Raises:
            LockTimeout: a transaction is still committing. The change remains under way.
        """
        try:
            for step in self.steps(entry):
                if step == "publish" and not sweep:
                    return
        except ConfigurationError:
            if is_ours:
                raise

    def steps(self, entry: Entry) -> Iterator[str]:
        """Carry a change on, and tell after each step which it was."""
        plan, definition = entry.pending, entry.definition
        assert plan is not None
        # Refuse snapshots older than a new table, and all that there are of one that is dropped.
        # So where a tablet may have lost its safe point.
        refuses = plan["kind"] in ("create", "drop", "mend")
        least = self._client.oracle.timestamp() if refuses else 0
        # The record is read after the entry was written: a later activation finds the entry.
        hows: dict[str, Fencing] = {"create": "found", "mend": "mend"}
        how = hows.get(plan["kind"], "raise")
        fields = () if how == "raise" else self._observer_fields(definition)
        self._fence(entry, self._tags(definition), how, least, fields)
        yield "fence"
        if plan["kind"] == "create":
            self._publish(entry, definition)
            yield "publish"
            return
        self._settle(entry, everywhere=plan["kind"] == "drop" or bool(plan.get("sweep")))
        yield "settle"
        if plan["kind"] == "drop":
            yield from self._dropping(entry)
            return
        if plan["kind"] == "add range":
            try:
                new = self._cut(definition, bytes.fromhex(plan["value"]))
            except ConfigurationError:
                self._publish(entry, definition, entry.sweep)
                raise
            self._seed(entry, new)
            yield "seed"
        else:
            new = from_json(plan["definition"])
            self._watch_new_columns(entry, new)
        swept = (*entry.sweep, *plan.get("sweep", ()))
        held = self._publish(entry, new, swept)
        yield "publish"
        if held is not None and held.sweep and held.pending is None:
            self._sweep(held)
            yield "sweep"

    # Inside.

    def _change(
        self, name: str, what: Sequence[str], plan: Callable[[TableDefinition], _Plan | None]
    ) -> None:
        """Begin a change, and carry it on.

        ``plan`` makes it of the definition, None if there is nothing to do. ``what`` tells it from others:
        who makes a change again that broke off has made it once it is carried on.
        """
        while True:
            entry = self._catalog.entry(name)
            if entry is None or not entry.is_there:
                raise self._unknown(name)
            if entry.definition.index_of:
                raise ConfigurationError(
                    f"{name} is an index: change its table, {entry.definition.index_of!r}"
                )
            if entry.pending is None and entry.sweep:
                self._sweep(entry)
                entry = self._catalog.entry(name) or entry
            held: Entry | None = entry
            if entry.pending is None:
                change = plan(entry.definition)
                if change is None:
                    return
                held = self._begin(entry, {**change, "what": list(what)})
            if held is not None and held.pending is not None:
                is_ours = held.pending.get("what") == list(what)
                self.finish(held, is_ours=is_ours)
                if is_ours:
                    return

    def _begin(self, entry: Entry, plan: _Plan) -> Entry | None:
        """Write a change down; returns the entry with it, None if somebody else was quicker."""
        token = uuid.uuid4().hex
        plan = {**plan, "token": token}
        held = self._catalog.replace(entry, entry.definition, pending=plan, sweep=entry.sweep)
        # A request whose reply was lost is repeated, and refused by itself: then the token is in the entry.
        is_ours = held is not None and held.pending is not None and held.pending.get("token") == token
        return held if is_ours else None

    def _publish(self, entry: Entry, definition: TableDefinition, sweep: Sequence[str] = ()) -> Entry | None:
        """The entry that stands there now: with our definition, unless somebody else was here before."""
        return self._catalog.replace(entry, definition, entry.version, sweep=sweep)

    def _tags(self, definition: TableDefinition) -> list[bytes]:
        tag = self._store.keyspace.tag
        return [tag(definition.name, number) for number in range(definition.tablets)]

    def _all_have(self, entry: Entry, version: bytes) -> bool:
        """Whether all tablets of a table have a version: then not it has changed, but another one beside it.

        To give it a new one all the same would put out others who write to it, who would then do likewise to
        the next table; and an index that is newer than the end of its table is not dropped with it.
        """
        wanted = [(b"HGET", tag + b"meta", b"version") for tag in self._tags(entry.definition)]
        return all((found or b"") == version for found in self._store.call(*wanted))

    def _fence(
        self, entry: Entry, tags: Sequence[bytes], how: Fencing, least: int = 0, fields: Sequence[bytes] = ()
    ) -> None:
        """Give the tablets the entry's version, and a safe point that is not below ``least``.

        ``how`` and ``fields`` are as in fence.lua.
        """
        # Durably: what is published then rests on it. To a new table nobody writes by an earlier definition.
        fences = [calls.fence(tag, entry.version, least, how, fields) for tag in tags]
        self._store.run_all(fences, durably=not entry.is_new)

    def _observer_fields(self, definition: TableDefinition) -> list[bytes]:
        """The fields of a new tablet's meta hash, with the observers that the chain's record has by column.

        So a table is observed from its first write, also if it is made again while workers run.
        """
        fields: list[bytes] = []
        for column, observers in self._observers(definition).items():
            fields += (b"o" + column, observers)
        return fields

    def _observers(self, definition: TableDefinition) -> dict[bytes, bytes]:
        """The observers that the chain's record has, joined by commas, by encoded column."""
        handle = TableHandle(definition, self._store)
        found: dict[bytes, bytes] = {}
        for column, observers in self._client.observed_columns().get(definition.name, {}).items():
            with suppress(UnknownColumn):  # the chain means another definition, and is refused when it starts
                found[handle.encode(column)] = ",".join(observers).encode()
        return found

    def _watch_new_columns(self, entry: Entry, new: TableDefinition) -> None:
        """Register the observers of columns that are added, before anybody can write to them."""
        stored = {column.stored.encode() for column in entry.definition.columns}
        pairs: list[bytes] = []
        for column, observers in self._observers(new).items():
            if column not in stored:
                pairs += (column, observers)
        if pairs:
            tags, version = self._tags(entry.definition), b"%d" % entry.version
            registered = [calls.observe(tag, "add", version, 0, (), pairs) for tag in tags]
            self._store.run_all(registered, durably=True)

    def _settle(self, entry: Entry, *, everywhere: bool) -> None:
        """End, or wait for, what had begun to commit before the fence.

        ``everywhere`` is for a change that removes data: also what has its primary in the table, wherever its
        locks are. Nobody could tell afterwards whether it committed.
        """
        # Locks from before the fence have older starts. If others were quicker, newer ones may stand here.
        upto = self._client.oracle.timestamp()
        name, tags = entry.definition.name, self._tags(entry.definition)
        janitor = Janitor(self._client)
        own = [(name, tag) for tag in tags]
        janitor.settle(lambda lock: lock.start_ts <= upto, own)
        if everywhere:
            mine = set(tags)

            def has_primary_here(lock: FoundLock) -> bool:
                return lock.start_ts <= upto and decode_primary(unpack_lock(lock.packed).primary).tag in mine

            janitor.settle(has_primary_here)
            janitor.raise_durably()

    def _dropping(self, entry: Entry) -> Iterator[str]:
        definition, plan = entry.definition, entry.pending or {}
        # Before the table's own entry goes: nobody would know of them any more.
        for rule in definition.indexes:
            self._drop(rule.table, before=entry.version)
        yield "indexes"
        observers = sorted({*plan["observers"], *self._client.active_observers()})
        for tag in self._tags(definition):
            step = calls.drop_table(tag, entry.version, _AT_ONCE, observers)
            while self._store.run(step):
                pass
        yield "rows"
        self._catalog.replace(entry, None)
        yield "publish"

    def _sweep(self, entry: Entry) -> None:
        # Every snapshot that has the dropped columns lies below this, for no published definition has them.
        # In all tablets before the first cell goes, and durably, lest a failover let such a snapshot go on.
        safe, tags = self._client.oracle.timestamp(), self._tags(entry.definition)
        self._store.run_all([calls.raise_safe_point(tag, safe) for tag in tags], durably=True)
        for tag in tags:
            bound: bytes | None = b"-"
            while bound:
                columns = [name.encode() for name in entry.sweep]
                bound = self._store.run(calls.sweep(tag, entry.version, bound, _AT_ONCE, columns))
                if bound is None:
                    return  # by somebody who finds in the entry what is left to do
        self._catalog.replace(entry, entry.definition, entry.version)

    def _cut(self, definition: TableDefinition, value: bytes) -> TableDefinition:
        """The definition with a split at the value. Raises ConfigurationError if rows would have to move."""
        partition, codec = Partition(definition), KeyCodec(definition)
        below = above = None
        for number in partition.tablets_of_range(value):
            tag = self._store.keyspace.tag(definition.name, number)
            low, high = self._beside(partition, tag, value)
            # A row may have a key without a byte, so these are not asked whether they are true.
            below, above = low if below is None else below, high if above is None else above
        if below is not None and above is not None:
            raise ConfigurationError(
                f"table {definition.name!r}: a split there would move rows, such as {codec.describe(below)} "
                f"below it or {codec.describe(above)} above: add ranges where there are no rows yet; of "
                "deleted rows something is left until garbage is collected"
            )
        return with_range(definition, value, upper_is_new=above is None)

    def _beside(self, partition: Partition, tag: bytes, value: bytes) -> tuple[bytes | None, bytes | None]:
        """A row of the tablet that is below the value, and one that is not."""
        key, most = tag + b"rows", _AT_ONCE
        bound = partition.first_row(value)
        if bound is not None:
            low, high = self._store.call(
                (b"ZRANGEBYLEX", key, b"-", b"(" + bound, b"LIMIT", 0, 1),
                (b"ZRANGEBYLEX", key, b"[" + bound, b"+", b"LIMIT", 0, 1),
            )
            return next(iter(low), None), next(iter(high), None)
        below = above = None
        at: bytes = b"-"
        while at and (below is None or above is None):
            rows = self._store.one((b"ZRANGEBYLEX", key, at, b"+", b"LIMIT", 0, most))
            for row in rows:
                if partition.is_below(row, value):
                    below = row
                else:
                    above = row
            at = b"(" + rows[-1] if len(rows) == most else b""
        return below, above

    def _seed(self, entry: Entry, new: TableDefinition) -> None:
        """Give the new tablets the version, and what an old tablet's meta hash has, before any write to them.

        A concurrent activation loses nothing. If it comes to an old tablet after the fence, the tablet
        refuses and the activation repeats. If it comes before the fence, its observers are copied here.
        """
        old = self._tags(entry.definition)
        flat = self._store.one((b"HGETALL", old[0] + b"meta"))
        pairs = zip(flat[::2], flat[1::2], strict=True)
        fields = [part for pair in pairs if pair[0] != b"version" for part in pair]
        added = self._tags(new)[len(old) :]
        self._fence(entry, added, "found", fields=fields)

    def _refuse_watched(self, definition: TableDefinition, column: str) -> None:
        stored = definition.by_name[column].stored.encode()
        tag = self._store.keyspace.tag(definition.name, 0)
        watching = self._store.one((b"HGET", tag + b"meta", b"o" + stored))
        active = self._client.active_observers()
        names = [name for name in (watching or b"").decode().split(",") if name in active]
        if names:
            raise ConfigurationError(
                f"{definition.name}.{column} is watched by the observer {names[0]!r}: take it out of the "
                "chain and start its workers again first"
            )

    def _indexes(self, definition: TableDefinition) -> Iterator[TableDefinition]:
        for rule in definition.indexes:
            yield index_definition(definition, rule)

    def _unknown(self, name: str) -> UnknownTable:
        namespace = self._store.keyspace.namespace
        return UnknownTable(f"there is no table {name!r} in the namespace {namespace!r}: create it first")


def _plain(kind: str, **more: Any) -> _Plan:
    return {"kind": kind, **more}


def _defining(found: TableDefinition, new: TableDefinition, **more: Any) -> _Plan | None:
    """A change to another definition; None if it is the same."""
    if new == found:
        return None
    check_definition(new)
    return _plain("define", definition=to_json(new), **more)
