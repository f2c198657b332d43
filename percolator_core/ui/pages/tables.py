"""Tables: their sizes, their definitions, and the distribution of rows over tablets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from percolator_core.admin.status import status, tablets
from percolator_core.notation.typedtext import show_typed
from percolator_core.schema.types import column_type
from percolator_core.ui.access import ReadableChain
from percolator_core.ui.declarations import declared
from percolator_core.ui.links import Links, unquoted
from percolator_core.ui.rendering import page
from percolator_core.ui.stores import stores

if TYPE_CHECKING:
    from percolator_core.observers import Chain
    from percolator_core.schema.definitions import Column, TableDefinition

router = APIRouter()


@dataclass(frozen=True, slots=True)
class ListedColumn:
    """A column of a typed table. ``key`` is its place in the key; ``default`` replaces a missing value."""

    column: Column
    key: str
    index: str
    default: str
    observers: tuple[str, ...]


@router.get("/{name}/tables")
def tables(request: Request, chain: ReadableChain) -> Response:
    """Show all tables of the namespace."""
    db = stores.of(chain)
    found = status(db, declared(chain))
    definitions = {one.name: one for one in db.tables()}
    return page(
        request,
        "tables.html",
        chain=chain,
        tab="tables",
        tables=[(definitions[one.name], one) for one in found.tables if one.name in definitions],
        namespace=db.namespace,
        links=Links(request, chain),
    )


@router.get("/{name}/tables/{table}")
def table(request: Request, chain: ReadableChain, table: str) -> Response:
    """Show the columns and the tablets of a table."""
    name = unquoted(table)
    db, definition = stores.table(chain, name)
    known = declared(chain)
    found = tablets(db, name, known)
    return page(
        request,
        "table.html",
        chain=chain,
        tab="tables",
        table=definition,
        columns=[_column(definition, one, known) for one in definition.shown_columns],
        observed=_observed(definition, known),
        partition=partition_lines(definition),
        tablets=found,
        most=max((one.rows for one in found), default=0),
        sums={
            "rows": sum(one.rows for one in found),
            "dirty": sum(one.dirty for one in found),
            "failed": sum(one.failed for one in found),
            "locks": sum(one.locks for one in found),
        },
        links=Links(request, chain, [definition]),
    )


def partition_lines(definition: TableDefinition) -> list[str]:
    """Describe the partitions of a table, one line for each rule."""
    if not definition.is_typed:
        return ["a hash of the row key"]
    lines = [f"hash of {', '.join(rule.columns)} in {rule.buckets}" for rule in definition.hashes]
    if definition.ranges is not None:
        name = definition.ranges.column
        decode = column_type(definition.by_name[name].type).decode
        splits = [show_typed(definition, name, decode(split), 40) for split in definition.ranges.splits]
        more = f" and {len(splits) - 8} more" if len(splits) > 8 else ""
        lines.append(f"ranges of {name}, cut at {', '.join(splits[:8]) or 'no split yet'}{more}")
    return lines or ["nothing: one tablet"]


def _column(definition: TableDefinition, column: Column, chain: Chain) -> ListedColumn:
    key = definition.key
    place = "" if column.name not in key else "key" if len(key) == 1 else f"key {key.index(column.name) + 1}"
    indexes = ["unique" if one.unique else "yes" for one in definition.indexes if one.column == column.name]
    default = ""
    if column.missing is not None:
        value = column_type(column.type).decode(column.missing)
        default = show_typed(definition, column.name, value, 40) or "''"
    observers = chain.observed.get((definition.name, column.name), ())
    return ListedColumn(column, place, ", ".join(indexes), default, tuple(observers))


def _observed(definition: TableDefinition, chain: Chain) -> list[tuple[str, tuple[str, ...]]]:
    """Return the observed columns of a table, with their observers."""
    return [(column, tuple(names)) for (of, column), names in chain.observed.items() if of == definition.name]
