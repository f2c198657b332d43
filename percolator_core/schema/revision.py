"""What a definition becomes when a table is changed, and whether that can be."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from percolator_core.errors import ConfigurationError
from percolator_core.layout.keys import MAX_NAME
from percolator_core.schema.definition import Column, HashRule, RangeRule, TableDefinition
from percolator_core.schema.partition import tablets


def with_column(definition: TableDefinition, column: Column) -> TableDefinition:
    """With one more column; the same one if it is there.

    Raises:
        ConfigurationError: the table is raw or has another column of that name; or rows that are there could
        have no value for it.
    """
    where = f"{_typed(definition)}.{column.name}"
    found = definition.by_name.get(column.name)
    if found is not None:
        if (found.type, found.nullable) == (
            column.type,
            column.nullable,
        ) and found.name not in definition.key:
            return definition
        raise ConfigurationError(
            f"{where} is there, as {_kind(found)} and not {_kind(column)}: give the new column another name"
        )
    if column.name in definition.notify_only:
        raise ConfigurationError(f"{where} is there and is notify-only: give the new column another name")
    if column.nullable and column.missing is not None:
        raise ConfigurationError(
            f"{where} may be null, so rows that are there have null in it: give it the default None, or make "
            "it not nullable"
        )
    if not column.nullable and column.missing is None:
        raise ConfigurationError(
            f"{where} cannot be null, and rows that are there have no value for it: give it a default"
        )
    return definition.with_(
        columns=(*definition.columns, replace(column, stored=_unused(definition, column.name)))
    )


def without_column(definition: TableDefinition, name: str) -> TableDefinition:
    """Without a column, whose name in the store is retired.

    Raises:
        UnknownColumn: there is none.
        ConfigurationError: the table is raw, or needs it for its key or an index.
    """
    where = f"{_typed(definition)}.{name}"
    column = definition.column(name)
    if name in definition.key:
        raise ConfigurationError(f"{where} is part of the key, which stays as it is: make another table")
    if any(rule.column == name for rule in definition.indexes):
        raise ConfigurationError(f"{where} has an index, which stays as it is: make another table")
    return definition.with_(
        columns=tuple(one for one in definition.columns if one is not column),
        retired=(*definition.retired, column.stored),
    )


def with_renamed(definition: TableDefinition, old: str, new: str) -> TableDefinition:
    """With another name for a column, wherever it stands; its name in the store stays.

    Raises:
        UnknownColumn: there is none.
        ConfigurationError: the table is raw, or there is one of the new name.
    """
    where = _typed(definition)
    definition.column(old)
    if old == new:
        return definition
    if new in definition.by_name or new in definition.notify_only:
        raise ConfigurationError(f"{where}.{new} is there: rename {old!r} to something else")

    def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new if name == old else name for name in names)

    ranges = definition.ranges
    return definition.with_(
        columns=tuple(replace(one, name=new) if one.name == old else one for one in definition.columns),
        key=renamed(definition.key),
        hashes=tuple(HashRule(renamed(rule.columns), rule.buckets) for rule in definition.hashes),
        ranges=ranges and replace(ranges, column=renamed((ranges.column,))[0]),
        indexes=tuple(replace(rule, column=renamed((rule.column,))[0]) for rule in definition.indexes),
    )


def with_range(definition: TableDefinition, value: bytes, *, upper_is_new: bool) -> TableDefinition:
    """With the range in which the value lies cut there; the same if there is such a split.

    The upper or the lower part gets the new tablets.

    Raises:
        ConfigurationError: the table has no ranges.
    """
    rule = definition.ranges
    if rule is None:
        raise ConfigurationError(
            f"table {definition.name!r} has no Range(…) among its partition rules, so none can be added"
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
    return definition.with_(ranges=ranges, tablets=tablets(definition.hashes, ranges))


def agrees(wanted: TableDefinition, found: TableDefinition) -> bool:
    """Whether a table that is there is the one that somebody would make, later additions aside.

    These are columns and ranges.
    """
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
    # An index is called after its column as that was called when it was made.
    if {(one.column, one.unique) for one in wanted.indexes} != {
        (one.column, one.unique) for one in found.indexes
    }:
        return False
    return wanted == found.with_(columns=wanted.columns, retired=wanted.retired, indexes=wanted.indexes)


def describe(definition: TableDefinition) -> str:
    """A definition in a few words."""
    words = f"{definition.tablets} tablets"
    if definition.is_typed:
        columns = ", ".join(f"{one.name} {_kind(one)}" for one in definition.columns)
        indexes = "".join(
            f", {'a unique' if one.unique else 'an'} index of {one.column}" for one in definition.indexes
        )
        words = f"the columns {columns}, the key {', '.join(definition.key)}{indexes} and {words}"
    notify_only = f" and notify-only {', '.join(definition.notify_only)}" if definition.notify_only else ""
    return words + notify_only


def _typed(definition: TableDefinition) -> str:
    """The table's name."""
    if not definition.is_typed:
        raise ConfigurationError(
            f"table {definition.name!r} is raw and has whatever columns are written: there are none to change"
        )
    return definition.name


def _kind(column: Column | None) -> str:
    return "" if column is None else f"{column.type} or null" if column.nullable else column.type


def _unused(definition: TableDefinition, name: str) -> str:
    """A name in the store that no column has or had: the column's own, or one made of it."""
    used = {*(one.stored for one in definition.columns), *definition.retired, *definition.notify_only}
    number, found = 1, name
    while found in used:
        number += 1
        found = f"{number}.{name}".encode()[:MAX_NAME].decode(errors="ignore")
    return found
