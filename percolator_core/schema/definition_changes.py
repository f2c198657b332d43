"""The new definition of a table for each schema change; the same definition if nothing changes.

The functions raise UnknownColumn if the table has no such column, and ConfigurationError if the table is raw
or the change is impossible.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from percolator_core.errors import ConfigurationError
from percolator_core.layout.keys import MAX_NAME
from percolator_core.schema.conversions import conversion, is_convertible
from percolator_core.schema.definitions import (
    Column,
    Copy,
    HashRule,
    IndexRule,
    RangeRule,
    TableDefinition,
    count_tablets,
)
from percolator_core.schema.types import column_type


def with_column(definition: TableDefinition, column: Column) -> TableDefinition:
    """Add a column. Existing rows must get a value for it, which may be null."""
    where = f"{_name_of_typed(definition)}.{column.name}"
    found = definition.by_name.get(column.name)
    if found is not None:
        if kind_of(found) == kind_of(column) and found.name not in definition.key:
            return definition
        raise ConfigurationError(
            f"{where} exists as {kind_of(found)}, not {kind_of(column)}: give the new column another name"
        )
    if column.name in definition.notify_only:
        raise ConfigurationError(f"{where} exists and is notify-only: give the new column another name")
    if column.nullable and column.missing is not None:
        raise ConfigurationError(
            f"{where} may be null, so existing rows have null: give the column the default None, or make it "
            "not nullable"
        )
    if not column.nullable and column.missing is None:
        raise ConfigurationError(
            f"{where} cannot be null, and existing rows have no value: give the column a default"
        )
    stored = _unused_name(definition, column.name)
    return definition.with_(columns=(*definition.columns, replace(column, stored=stored)))


def without_column(definition: TableDefinition, name: str) -> TableDefinition:
    """Remove a column that neither the key nor an index uses, and retire its stored name."""
    where = f"{_name_of_typed(definition)}.{name}"
    column = definition.column(name)
    if name in definition.key:
        raise ConfigurationError(f"{where} is part of the key, which cannot change: create another table")
    if any(rule.column == name for rule in definition.indexes):
        raise ConfigurationError(f"{where} has an index: drop the index first, with Database.drop_index")
    if copy_of(definition, name) is not None:
        raise ConfigurationError(
            f"the type of {where} is being changed: finish the change with `percolator migrate`, or end it "
            "with Database.change_type to the old type"
        )
    return removed(definition, column)


def with_renamed(definition: TableDefinition, old: str, new: str) -> TableDefinition:
    """Rename a column in the columns, the key and all rules, and keep its stored name."""
    where = _name_of_typed(definition)
    definition.column(old)
    if old == new:
        return definition
    if new in definition.by_name or new in definition.notify_only:
        raise ConfigurationError(f"{where}.{new} exists: give {old!r} another name")

    def renamed(name: str) -> str:
        return new if name == old else name

    ranges = definition.ranges
    return definition.with_(
        columns=tuple(
            replace(
                one,
                name=renamed(one.name),
                copy=one.copy and replace(one.copy, source=renamed(one.copy.source)),
            )
            for one in definition.columns
        ),
        key=tuple(map(renamed, definition.key)),
        hashes=tuple(HashRule(tuple(map(renamed, rule.columns)), rule.buckets) for rule in definition.hashes),
        ranges=ranges and replace(ranges, column=renamed(ranges.column)),
        indexes=tuple(replace(rule, column=renamed(rule.column)) for rule in definition.indexes),
    )


def with_index(definition: TableDefinition, name: str, *, unique: bool, table: str) -> TableDefinition:
    """Add an index that is still to be built, in the table ``table``.

    Rows without a cell must not have a default in the column, because the index would have no entry for them.
    """
    where = f"{_name_of_typed(definition)}.{name}"
    column = definition.column(name)
    found = index_of(definition, name)
    if found is not None:
        if found.unique == unique:
            return definition
        kind = "a unique index" if found.unique else "an index that is not unique"
        raise ConfigurationError(f"{where} has {kind}: drop it first, with Database.drop_index")
    if column.missing is not None:
        raise ConfigurationError(f"{where} has rows without a cell: copy the column first")
    return definition.with_(indexes=(*definition.indexes, IndexRule(name, unique, table, None)))


def with_complete_index(definition: TableDefinition, table: str, timestamp: int) -> TableDefinition:
    """Let selects of snapshots from ``timestamp`` on use an index, unless it is complete or dropped."""
    return definition.with_(
        indexes=tuple(
            replace(rule, complete_from=timestamp)
            if rule.table == table and rule.complete_from is None
            else rule
            for rule in definition.indexes
        )
    )


def without_index(definition: TableDefinition, name: str) -> TableDefinition:
    """Remove the index of a column, if it has one."""
    _name_of_typed(definition)
    copy = copy_of(definition, name)
    names = {name, "" if copy is None else copy.name}
    return definition.with_(indexes=tuple(rule for rule in definition.indexes if rule.column not in names))


def with_notify_only(definition: TableDefinition, name: str) -> TableDefinition:
    """Add a notify-only column. No column of that name may hold data."""
    if name in definition.notify_only:
        return definition
    stored = {*(one.stored for one in definition.columns), *definition.retired}
    if name in definition.by_name or name in stored:
        raise ConfigurationError(
            f"{definition.name}.{name} holds or held data: give the notify-only column another name"
        )
    return definition.with_(notify_only=tuple(sorted((*definition.notify_only, name))))


def with_null(definition: TableDefinition, name: str) -> TableDefinition:
    """Let a column be null. Rows without a cell must not have a default in it, because they would lose it."""
    column = definition.column(name)
    assert column.missing is None, "copy the column instead"
    return definition.with_(
        columns=tuple(replace(one, nullable=True) if one is column else one for one in definition.columns)
    )


def with_copy(
    definition: TableDefinition, wanted: Column, if_null: bytes | None, index_table: str = ""
) -> TableDefinition:
    """Add an internal column that will replace the column ``wanted.name``, if there is none and it is needed.

    The internal column has the type of ``wanted``, and becomes as nullable as ``wanted``. If it may not be
    null, ``if_null`` is the encoded value that replaces null; None refuses null. If the column has an index,
    the internal column gets one, too, in the table ``index_table``; it is still to be built.
    """
    where = f"{_name_of_typed(definition)}.{wanted.name}"
    column = definition.column(wanted.name)
    if wanted.name in definition.key:
        raise ConfigurationError(
            f"{where} is part of the key, whose types cannot change: create another table, and copy the rows"
        )
    if not is_convertible(column.type, wanted.type):
        raise ConfigurationError(
            f"{where} is {column.type}, and there is no conversion to {wanted.type}: add another column, and "
            "fill it with a program"
        )
    copy = Copy(wanted.name, wanted.nullable, None if wanted.nullable else if_null)
    default = column.missing if column.default is None else column.default
    if copy.if_null is None and not wanted.nullable and default is not None:
        # A program that does not know the column keeps adding rows with the default that it has now.
        with suppress(ValueError):
            copy = replace(copy, if_null=conversion(column.type, wanted.type)(default))
    found = copy_of(definition, wanted.name)
    if found is not None:
        if (found.type, found.copy) == (wanted.type, copy):
            return definition
        raise ConfigurationError(f"the type of {where} is being changed to {found.type}: finish that first")
    if kind_of(column) == kind_of(wanted) and column.missing is None:
        return definition  # another client has replaced the column, and each row has a cell
    stored = _unused_name(definition, wanted.name, definition.by_name)
    added = Column(stored, wanted.type, nullable=True, stored=stored, copy=copy)
    rule = index_of(definition, wanted.name)
    if rule is None:
        return definition.with_(columns=(*definition.columns, added))
    if not column_type(wanted.type).has_order:
        raise ConfigurationError(
            f"{where} has an index, and {wanted.type} has no order: drop the index first, with "
            "Database.drop_index"
        )
    built = IndexRule(stored, rule.unique, index_table, None)
    return definition.with_(columns=(*definition.columns, added), indexes=(*definition.indexes, built))


def with_copied(definition: TableDefinition, copy: Column, index_table: str) -> TableDefinition:
    """Replace a column and its index by its internal column and that one's; retire the replaced stored name.

    If only the column has an index, added later, it is still to be built, in the table ``index_table``.
    """
    assert copy.copy is not None
    source, built = definition.column(copy.copy.source), index_of(definition, copy.name)
    new = Column(source.name, copy.type, copy.copy.nullable, copy.stored, default=copy.copy.if_null)
    return definition.with_(
        columns=tuple(new if one is source else one for one in definition.columns if one is not copy),
        retired=(*definition.retired, source.stored),
        indexes=tuple(
            replace(built or IndexRule("", rule.unique, index_table, None), column=source.name)
            if rule.column == source.name
            else rule
            for rule in definition.indexes
            if rule is not built
        ),
    )


def copy_of(definition: TableDefinition, name: str) -> Column | None:
    """Return the internal column that is to replace a column, or None."""
    return next((one for one in definition.copies if one.copy is not None and one.copy.source == name), None)


def index_of(definition: TableDefinition, name: str) -> IndexRule | None:
    """Return the index of a column, or None."""
    return next((rule for rule in definition.indexes if rule.column == name), None)


def removed(definition: TableDefinition, column: Column) -> TableDefinition:
    """Remove a column that may be internal, and its index; retire its stored name."""
    return definition.with_(
        columns=tuple(one for one in definition.columns if one is not column),
        retired=(*definition.retired, column.stored),
        indexes=tuple(rule for rule in definition.indexes if rule.column != column.name),
    )


def with_range(definition: TableDefinition, value: bytes, *, upper_is_new: bool) -> TableDefinition:
    """Split the range that contains ``value``; the upper or the lower part gets the new tablets."""
    rule = definition.ranges
    if rule is None:
        raise ConfigurationError(
            f"table {definition.name!r} has no Range(…) in its partition rules, so no range can be added"
        )
    if value in rule.splits:
        return definition
    at = bisect_right(rule.splits, value)
    new, old = len(rule.numbers), rule.numbers[at]
    parts = (old, new) if upper_is_new else (new, old)
    ranges = RangeRule(
        rule.column,
        (*rule.splits[:at], value, *rule.splits[at:]),
        (*rule.numbers[:at], *parts, *rule.numbers[at + 1 :]),
    )
    return definition.with_(ranges=ranges, tablets=count_tablets(definition.hashes, ranges))


def agrees(wanted: TableDefinition, found: TableDefinition) -> bool:
    """Return True if ``found`` equals ``wanted``, except for columns, ranges and a base added later.

    A model does not say whether its table belongs to a view. The state of a view does not matter.
    """
    if wanted.base is None:
        found = found.with_(base=None)
    if wanted.view is None:
        found = found.with_(view=None)
    elif found.view is not None:
        found = found.with_(view=replace(found.view, shown=wanted.view.shown, state=wanted.view.state))
    if not (wanted.is_typed and found.is_typed):
        return wanted == found
    if any(kind_of(one) != kind_of(found.by_name.get(one.name)) for one in wanted.columns):
        return False
    added = [one for one in found.shown_columns if one.name not in wanted.by_name]
    if any(not one.nullable and one.missing is None and one.default is None for one in added):
        return False
    ours, theirs = wanted.ranges, found.ranges
    if ours is not None and theirs is not None:
        if not set(ours.splits) <= set(theirs.splits):
            return False
        wanted = wanted.with_(ranges=replace(theirs, column=ours.column), tablets=found.tablets)
    # The table of an index keeps its name when the indexed column is renamed.
    if {(one.column, one.unique) for one in wanted.indexes} != {
        (one.column, one.unique) for one in found.shown_indexes
    }:
        return False
    return wanted == found.with_(columns=wanted.columns, retired=wanted.retired, indexes=wanted.indexes)


def describe(definition: TableDefinition) -> str:
    """Describe a definition in a few words."""
    words = f"{definition.tablets} tablets"
    if definition.view is not None:
        words += f" of the view {definition.view.view}"
    if definition.is_typed:
        columns = ", ".join(f"{one.name} {kind_of(one)}" for one in definition.shown_columns)
        indexes = "".join(
            f", {'a unique' if one.unique else 'an'} index of {one.column}"
            for one in definition.shown_indexes
        )
        words = f"the columns {columns}, the key {', '.join(definition.key)}{indexes} and {words}"
    notify_only = f" and notify-only {', '.join(definition.notify_only)}" if definition.notify_only else ""
    return words + notify_only


def _name_of_typed(definition: TableDefinition) -> str:
    if not definition.is_typed:
        raise ConfigurationError(f"table {definition.name!r} is raw, so it has no declared columns to change")
    return definition.name


def kind_of(column: Column | None) -> str:
    """Return the type of a column as text: ``int``, or ``int or null``. None gives an empty text."""
    return "" if column is None else f"{column.type} or null" if column.nullable else column.type


def _unused_name(definition: TableDefinition, name: str, others: Iterable[str] = ()) -> str:
    """Return a stored name that is new in the table and none of ``others``: ``name``, or a number and it."""
    stored = (one.stored for one in definition.columns)
    used = {*others, *stored, *definition.retired, *definition.notify_only}
    number, found = 1, name
    while found in used:
        number += 1
        found = f"{number}.{name}".encode()[:MAX_NAME].decode(errors="ignore")
    return found
