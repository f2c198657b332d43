"""Create, change and drop tables while other clients use them.

The table's entry in the catalog first gets the schema change as ``pending``. Then the change proceeds in
steps that can be repeated. Any client that meets a pending change finishes the change, even if the client
that began it has died:

1. *begin*: the entry gets the pending change and a new version.
2. *fence*: every tablet gets that version. From now on tablets refuse writes that use the old
   definition.
3. *settle*: the client waits for the transactions with locks from before the fence, or ends them. Now no
   write that uses the old definition is in flight.
4. *publish*: the entry gets the new definition, and writers use this definition.
5. *sweep*: data of dropped columns is removed. If the table has a previous base, its files are moved to the
   new base. Without a new base, its rows are moved into the store.

If the change proves impossible, the old definition is published.

Readers do not wait. The timestamp of a snapshot comes with the catalog's epoch, so a snapshot always uses the
definitions of its timestamp. This stays correct during a change: no row moves, no stored name is used again,
and every commit to a new tablet is newer than the snapshot. A change that removes data first raises the safe
point above every snapshot that uses the old definition, so that these snapshots are refused.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from percolator_core.catalog.catalog import Entry
from percolator_core.catalog.column_changes import ColumnChanges, Pending, to_definition
from percolator_core.catalog.schema_change_steps import (
    BaseSettler,
    Client,
    LockSettler,
    PendingChange,
    split_range,
)
from percolator_core.errors import ConfigurationError
from percolator_core.schema.definition_changes import agrees, describe, with_range
from percolator_core.schema.definition_checks import check_definition
from percolator_core.schema.definitions import (
    DROPPED,
    BaseRule,
    TableDefinition,
    from_json,
    index_definition,
    to_json,
)
from percolator_core.store import FORMAT


class SchemaChanges(ColumnChanges):
    """The schema changes of one namespace; `Database` documents what each public change raises."""

    def __init__(self, client: Client, locks: LockSettler, bases: BaseSettler) -> None:
        self._client = client
        self._store = client.store
        self._catalog = client.catalog
        self._locks = locks
        self._bases = bases

    def create(self, definition: TableDefinition) -> None:
        """Create a table and its indexes, unless the table exists; see `Database.create_table`."""
        check_definition(definition)
        while True:
            entry = self._catalog.entry(definition.name)
            if entry is None:
                # Create the indexes first: a client that finds the table has to find them, too.
                for rule in definition.indexes:
                    self.create(index_definition(definition, rule))
                format_, entry = self._catalog.add(definition, {"kind": "create"}, FORMAT)
                self._store.check_format(format_)
            if entry.pending is None:
                break
            self.finish(entry)
        if not agrees(definition, entry.definition):
            raise ConfigurationError(
                f"table {definition.name!r} exists with {describe(entry.definition)}, not "
                f"{describe(definition)}: `percolator migrate` changes it; `percolator migrate --dry-run` "
                "shows how"
            )

    def drop(self, name: str, *, of_view: bool = False) -> None:
        """Drop a table, its rows and its indexes in bounded steps; see `Database.drop_table`.

        ``of_view`` allows a table that belongs to a view.
        """
        entry = self._catalog.entry(name)
        if entry is None:
            raise self._catalog.unknown_table(name)
        table = entry.definition.index_of
        # A client that dies during a creation may leave an index without its table.
        if table and self._catalog.entry(table) is not None:
            raise ConfigurationError(f"{name} is an index: drop its table, {table!r}")
        view = entry.definition.view
        if view is not None and not of_view:
            raise ConfigurationError(
                f"{name} belongs to the view {view.view}: drop it by `percolator views --drop {view.view}`"
            )
        self._drop(name)

    def _drop(self, name: str, before: float = math.inf) -> None:
        """Drop a table if its version is less than ``before``; so a table that was created later is kept."""
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
                drop = {"kind": "drop", "observers": observers}
                held = self._catalog.replace(entry, entry.definition, pending=drop)
            if held is not None and not held.is_there:
                self.finish(held)
                return

    def add_range(self, name: str, value: bytes) -> None:
        """Split the range that contains an encoded value; see `Database.add_range`.

        No row moves: the part without rows gets the new tablets.
        """

        def plan(found: TableDefinition) -> Pending | None:
            wanted = with_range(found, value, upper_is_new=True)
            if wanted == found:
                return None
            check_definition(wanted)
            # Most impossible splits are refused here, before the fence.
            split_range(self._store, self._bases, found, value)
            return {"kind": "add range", "value": value.hex()}

        self._change(name, ["add range", value.hex()], plan)

    def range_refusal(self, name: str, value: bytes) -> str:
        """Return "" if a range can be split at an encoded value, else why it cannot, and what to do."""
        entry = self._catalog.entry(name)
        try:
            if entry is not None:
                split_range(self._store, self._bases, entry.definition, value)
        except ConfigurationError as error:
            return str(error)
        return ""

    def set_base(self, name: str, rule: BaseRule | None) -> None:
        """Give a table a base, change the base, or take the base away; see `Database.set_base`.

        If the location stays the same, the table keeps its folder, and the folder of ``rule`` is ignored.
        """

        def plan(found: TableDefinition) -> Pending | None:
            old, new = found.base, rule
            if old is not None and new is not None and old.location == new.location:
                new = replace(new, folder=old.folder)
            left = [] if old is None or (new is not None and new.place == old.place) else [old.place]
            return to_definition(found, found.with_(base=new), left=left)

        what = ["set base", "" if rule is None else repr(replace(rule, folder=""))]
        self._change(name, what, plan, of_index=True)
        self.settle_bases(name)

    def close(self, name: str) -> None:
        """Refuse all further writes to a table of a view, and end those that are under way."""

        def plan(found: TableDefinition) -> Pending | None:
            return to_definition(found, found.with_(view=found.view and replace(found.view, state=DROPPED)))

        self._change(name, ["close"], plan, of_index=True)

    def remove_acknowledgements(self, name: str, column: bytes) -> None:
        """Remove the acknowledgements of an observer from all rows of a table. No run may write more.

        A table that does not exist has none.
        """
        while (entry := self._catalog.entry(name)) is not None and entry.is_there:
            if self._pending(entry).remove_cells([column]):
                return
            self.finish_or_repair(name, entry.writers_version)

    def settle_bases(self, name: str) -> bool:
        """Move everything out of the previous bases of a table; return False if there are none."""
        entry = self._catalog.entry(name)
        if entry is None or not entry.left:
            return False
        if entry.pending is None:
            self._pending(entry).settle_bases()
        return True

    def finish_or_repair(self, name: str, version: bytes) -> None:
        """Finish or repair the pending schema change after a tablet refused ``version``; the caller retries.

        Raises LockTimeout if a transaction is still committing.
        """
        entry = self._catalog.entry(name)
        if entry is None or not entry.is_there:
            return
        if entry.pending is not None:
            self.finish(entry, sweep=False)
        elif entry.writers_version == version and not self._pending(entry).tablets_have(version):
            # Entry and tablets disagree without a pending change: a failover has lost a write. If the tablets
            # have the version, another table of the transaction caused the refusal. Then this table must not
            # get a new version: its other writers would be refused, and would repair further tables. And if
            # this table is an index whose main table is being dropped, the drop would keep the newer version.
            held = self.begin(entry, {"kind": "mend", "definition": to_json(entry.definition)})
            if held is not None:
                self.finish(held, sweep=False)

    def finish_all(self) -> None:
        """Finish all pending changes and sweeps. Raises LockTimeout if a transaction is still committing."""
        for entry in self._catalog.entries():
            if entry.pending is not None:
                self.finish(entry)
            elif entry.sweep:
                self._pending(entry).sweep()
        self.drop_unused_indexes()

    def drop_unused_indexes(self, name: str | None = None) -> None:
        """Drop the tables of indexes that the table ``name`` has no more; None means every table.

        The name of an index that was added later is never used again, so an unused index stays unused.
        """
        entries = {entry.definition.name: entry for entry in self._catalog.entries()}
        for entry in entries.values():
            main = entries.get(entry.definition.index_of)
            if main is None or name not in {None, main.definition.name} or main.is_new:
                continue
            pending = (main.pending or {}).get("definition", {}).get("indexes", ())
            used = {rule.table for rule in main.definition.indexes} | {rule["table"] for rule in pending}
            if entry.definition.name not in used:
                self._drop(entry.definition.name, before=entry.version + 1)

    def finish(self, entry: Entry, *, sweep: bool = True, is_ours: bool = False) -> None:
        """Finish a pending change, without the sweep if ``sweep`` is False.

        Raises ConfigurationError if we began it (``is_ours``) and it is impossible. If a transaction is still
        committing, raises LockTimeout, and the change remains pending.
        """
        try:
            for step in self.steps(entry):
                if step == "publish" and not sweep:
                    return
        except ConfigurationError:
            if is_ours:
                raise

    def steps(self, entry: Entry) -> Iterator[str]:
        """Finish a pending change; yield the name of each step when the step is done."""
        change, plan = self._pending(entry), entry.pending
        assert plan is not None
        if plan["kind"] == "define":
            # Create the added indexes first: a client that finds the new definition has to find them, too.
            new, old = from_json(plan["definition"]), set(entry.definition.indexes)
            for rule in new.indexes:
                if rule.complete_from is None and rule not in old:
                    self.create(index_definition(new, rule))
        change.fence()
        yield "fence"
        if plan["kind"] == "create":
            change.publish(entry.definition)
            yield "publish"
            return
        change.settle()
        yield "settle"
        if plan["kind"] == "drop":
            # Drop the indexes first: without the table's entry no client could find them.
            for rule in entry.definition.indexes:
                self._drop(rule.table, before=entry.version)
            yield "indexes"
            change.drop_rows()
            yield "rows"
            change.remove_entry()
            yield "publish"
            return
        if plan["kind"] == "add range":
            try:
                new = change.split_range()
            except ConfigurationError:
                change.publish(entry.definition, entry.sweep)
                raise
            change.seed(new)
            yield "seed"
        else:
            new = from_json(plan["definition"])
            change.observe_new_columns(new)
        left = tuple((location, folder) for location, folder in plan.get("left", ()))
        held = change.publish(new, (*entry.sweep, *plan.get("sweep", ())), (*entry.left, *left))
        yield "publish"
        if held is not None and held.sweep and held.pending is None:
            self._pending(held).sweep()
            yield "sweep"

    def begin(self, entry: Entry, plan: Pending) -> Entry | None:
        """Write a pending change into the entry. Return the new entry, or None after a concurrent change."""
        token = uuid.uuid4().hex
        pending = {**plan, "token": token}
        held = self._catalog.replace(entry, entry.definition, pending=pending, sweep=entry.sweep)
        # After a lost reply the request is repeated. If the first request succeeded, the second one is
        # refused, and the entry has our token.
        is_ours = held is not None and held.pending is not None and held.pending.get("token") == token
        return held if is_ours else None

    def _change(
        self,
        name: str,
        what: Sequence[str],
        plan: Callable[[TableDefinition], Pending | None],
        *,
        of_index: bool = False,
    ) -> None:
        """Begin a change and finish it; ``of_index`` allows the change of an index or a view's table.

        ``plan`` returns None if there is nothing to do. ``what`` identifies the change, so that a client that
        repeats an interrupted change only finishes the pending one.
        """
        while True:
            entry = self._catalog.entry(name)
            if entry is None or not entry.is_there:
                raise self._catalog.unknown_table(name)
            if entry.definition.index_of and not of_index:
                raise ConfigurationError(
                    f"{name} is an index: change its table, {entry.definition.index_of!r}"
                )
            if not of_index:
                entry.definition.refuse_of_view()
            if entry.pending is None and entry.sweep:
                self._pending(entry).sweep()
                entry = self._catalog.entry(name) or entry
            held: Entry | None = entry
            if entry.pending is None:
                change = plan(entry.definition)
                if change is None:
                    return
                held = self.begin(entry, {**change, "what": list(what)})
            if held is not None and held.pending is not None:
                is_ours = held.pending.get("what") == list(what)
                self.finish(held, is_ours=is_ours)
                if is_ours:
                    return

    def _pending(self, entry: Entry) -> PendingChange:
        return PendingChange(self._client, self._locks, self._bases, entry)
