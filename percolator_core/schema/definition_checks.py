"""The checks of a table's definition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from percolator_core.errors import ConfigurationError
from percolator_core.layout.keys import check_name, encode_column
from percolator_core.layout.records import MAX_TABLETS
from percolator_core.schema.definitions import Column, HashRule, RangeRule, TableDefinition, count_tablets
from percolator_core.schema.types import column_type

MOST_COLUMNS: Final = 1000
"""A typed table has at most this many columns, because a row is written and removed as a whole."""


def check_definition(definition: TableDefinition) -> None:
    """Raise ConfigurationError if a table cannot have this definition, TypeError for wrong types."""
    where = f"table {definition.name!r}"
    try:
        check_name("table name", definition.name)
        for name in definition.notify_only:
            encode_column(name)
        for column in definition.columns:
            check_name("typed table's column name", column.name)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    if not isinstance(definition.tablets, int):
        raise TypeError(f"tablets is int, not {type(definition.tablets).__name__}")
    if definition.is_typed:
        _check_columns(definition, where)
        _check_partition(definition, where)
    if not 1 <= definition.tablets <= MAX_TABLETS:
        raise ConfigurationError(f"{where}: tablets is 1 to {MAX_TABLETS}, not {definition.tablets}")


def _check_columns(definition: TableDefinition, where: str) -> None:
    if len(definition.columns) > MOST_COLUMNS:
        raise ConfigurationError(
            f"{where} has {len(definition.columns)} columns, and may have {MOST_COLUMNS}"
        )
    for names in (
        (column.name for column in definition.columns),
        (*(column.stored for column in definition.columns), *definition.retired),
        definition.key,
    ):
        twice = _repeated(names)
        if twice:
            raise ConfigurationError(f"{where} has the column {twice!r} twice: leave one out")
    both = set(definition.by_name) & set(definition.notify_only)
    if both:
        raise ConfigurationError(f"{where}: {min(both)!r} holds data, so it cannot be notify-only")
    if not definition.key:
        raise ConfigurationError(f"{where} has no key: declare a column as PrimaryKey[…]")
    for name in (*definition.key, *(rule.column for rule in definition.indexes)):
        if name not in definition.by_name:
            raise ConfigurationError(
                f"{where} has no column {name!r}: it has {', '.join(definition.by_name)}"
            )
    for column in definition.columns:
        _check_column(definition, column, where)


def _check_column(definition: TableDefinition, column: Column, where: str) -> None:
    try:
        kind = column_type(column.type)
    except ValueError as error:
        raise ConfigurationError(f"{where}, column {column.name!r}: {error}") from None
    if column.name in definition.key and (column.nullable or not kind.has_order):
        why = "may be null" if column.nullable else f"is {kind.name}, which has no order"
        raise ConfigurationError(f"{where}: {column.name!r} {why}, so it cannot be in the key")


def _check_partition(definition: TableDefinition, where: str) -> None:
    hashed = [name for rule in definition.hashes for name in rule.columns]
    ranged = [definition.ranges.column] if definition.ranges else []
    for name in (*hashed, *ranged):
        if name not in definition.key:
            raise ConfigurationError(
                f"{where}: a partition rule uses {name!r}, which is no column of the key: "
                f"the key is {', '.join(definition.key)}"
            )
    for rule in definition.hashes:
        _check_hash(rule, where)
    twice = _repeated(hashed)
    if twice:
        raise ConfigurationError(f"{where}: {twice!r} is hashed twice: name it in one Hash(…)")
    if definition.ranges is not None:
        _check_range(definition.ranges, where)
    if not definition.hashes and definition.ranges is None:
        raise ConfigurationError(f"{where} has no partition rule: give it a Hash(…) or a Range(…)")
    made = count_tablets(definition.hashes, definition.ranges)
    if definition.tablets != made:
        raise ConfigurationError(f"{where}: the rules make {made} tablets, not {definition.tablets}")


def _check_hash(rule: HashRule, where: str) -> None:
    if not rule.columns:
        raise ConfigurationError(f"{where}: a Hash(…) names no column: name columns of the key")
    if isinstance(rule.buckets, bool) or not isinstance(rule.buckets, int):
        raise TypeError(f"buckets is int, not {type(rule.buckets).__name__}")
    if not 1 <= rule.buckets <= MAX_TABLETS:
        raise ConfigurationError(f"{where}: buckets is 1 to {MAX_TABLETS}, not {rule.buckets}")


def _check_range(rule: RangeRule, where: str) -> None:
    if list(rule.splits) != sorted(set(rule.splits)):
        raise ConfigurationError(
            f"{where}: the splits of Range({rule.column!r}) do not ascend: put them in order, each once"
        )
    if sorted(rule.numbers) != list(range(len(rule.splits) + 1)):
        raise ConfigurationError(
            f"{where}: the ranges of {rule.column!r} must have the numbers 0 to {len(rule.splits)}, each once"
        )


def _repeated(names: Iterable[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)
