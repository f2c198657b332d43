"""The new definition of a table for each schema change; impossible changes are refused."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from percolator_core.errors import ConfigurationError
from percolator_core.layout.keys import MAX_NAME
from percolator_core.schema.definitions import Column, HashRule, RangeRule, TableDefinition, count_tablets


def with_column(definition: TableDefinition, column: Column) -> TableDefinition:
    """Add a column; return the same definition if the table has the column already.

    Raises:
        ConfigurationError: the table is raw or has another column of that name, or existing rows would have
        no value for the column.
    """
    where = f"{_name_of_typed(definition)}.{column.name}"
    found = definition.by_name.get(column.name)
    if found is not None:
        if _kind(found) == _kind(column) and found.name not in definition.key:
            return definition
        raise ConfigurationError(
            f"{where} exists as {_kind(found)}, not {_kind(column)}: give the new column another name"
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
    """Remove a column and retire its stored name.

    Raises:
        UnknownColumn: the table has no such column.
        ConfigurationError: the table is raw, or its key or an index uses the column.
    """
    where = f"{_name_of_typed(definition)}.{name}"
    column = definition.column(name)
    if name in definition.key:
        raise ConfigurationError(f"{where} is part of the key, which cannot change: create another table")
    if any(rule.column == name for rule in definition.indexes):
        raise ConfigurationError(f"{where} has an index, which cannot change: create another table")
    return definition.with_(
        columns=tuple(one for one in definition.columns if one is not column),
        retired=(*definition.retired, column.stored),
    )


def with_renamed(definition: TableDefinition, old: str, new: str) -> TableDefinition:
    """Rename a column in the columns, the key and all rules, and keep its stored name.

    Raises:
        UnknownColumn: the table has no column ``old``.
        ConfigurationError: the table is raw, or has a column ``new``.
    """
    where = _name_of_typed(definition)
    definition.column(old)
    if old == new:
        return definition
    if new in definition.by_name or new in definition.notify_only:
        raise ConfigurationError(f"{where}.{new} exists: give {old!r} another name")

    def renamed(name: str) -> str:
        return new if name == old else name

    def all_renamed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(renamed, names))

    ranges = definition.ranges
    return definition.with_(
        columns=tuple(replace(one, name=renamed(one.name)) for one in definition.columns),
        key=all_renamed(definition.key),
        hashes=tuple(HashRule(all_renamed(rule.columns), rule.buckets) for rule in definition.hashes),
        ranges=ranges and replace(ranges, column=renamed(ranges.column)),
        indexes=tuple(replace(rule, column=renamed(rule.column)) for rule in definition.indexes),
    )


def with_range(definition: TableDefinition, value: bytes, *, upper_is_new: bool) -> TableDefinition:
    """Split the range that contains ``value``; return the same definition if ``value`` is a split already.

    If ``upper_is_new``, the upper part gets the new tablets. Otherwise the lower part gets them.

    Raises:
        ConfigurationError: the table has no ranges.
    """
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
    """Return True if ``found`` equals ``wanted``, except for columns, ranges and a base added later."""
    if wanted.base is None:
        found = found.with_(base=None)
    if not (wanted.is_typed and found.is_typed):
        return wanted == found
    if any(_kind(one) != _kind(found.by_name.get(one.name)) for one in wanted.columns):
        return False
    added = [one for one in found.columns if one.name not in wanted.by_name]
    if any(not one.nullable and one.missing is None for one in added):
        return False
    ours, theirs = wanted.ranges, found.ranges
    if ours is not None and theirs is not None:
        if not set(ours.splits) <= set(theirs.splits):
            return False
        wanted = wanted.with_(ranges=replace(theirs, column=ours.column), tablets=found.tablets)
    # The table of an index keeps its name when the indexed column is renamed.
    if {(one.column, one.unique) for one in wanted.indexes} != {
        (one.column, one.unique) for one in found.indexes
    }:
        return False
    return wanted == found.with_(columns=wanted.columns, retired=wanted.retired, indexes=wanted.indexes)


def describe(definition: TableDefinition) -> str:
    """Describe a definition in a few words."""
    words = f"{definition.tablets} tablets"
    if definition.is_typed:
        columns = ", ".join(f"{one.name} {_kind(one)}" for one in definition.columns)
        indexes = "".join(
            f", {'a unique' if one.unique else 'an'} index of {one.column}" for one in definition.indexes
        )
        words = f"the columns {columns}, the key {', '.join(definition.key)}{indexes} and {words}"
    notify_only = f" and notify-only {', '.join(definition.notify_only)}" if definition.notify_only else ""
    return words + notify_only


def _name_of_typed(definition: TableDefinition) -> str:
    if not definition.is_typed:
        raise ConfigurationError(f"table {definition.name!r} is raw, so it has no declared columns to change")
    return definition.name


def _kind(column: Column | None) -> str:
    return "" if column is None else f"{column.type} or null" if column.nullable else column.type


def _unused_name(definition: TableDefinition, name: str) -> str:
    """Return a stored name that was never used in the table: ``name``, or a number and ``name``."""
    used = {*(one.stored for one in definition.columns), *definition.retired, *definition.notify_only}
    number, found = 1, name
    while found in used:
        number += 1
        found = f"{number}.{name}".encode()[:MAX_NAME].decode(errors="ignore")
    return found
