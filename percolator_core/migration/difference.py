"""A difference between a declared table and the table in the catalog."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, Protocol, TypeAlias

from percolator_core.schema.definitions import BaseRule, TableDefinition
from percolator_core.tables.model import Table
from percolator_core.tables.verify import Repairable

DifferenceKind: TypeAlias = Literal[
    "create table",
    "drop table",
    "add column",
    "rename column",
    "drop column",
    "change type",
    "add range",
    "add index",
    "drop index",
    "add notify-only column",
    "set base",
    "other",
]
"""The kinds of differences; ``other`` has no online change, so it is always refused."""


class Online(Repairable, Protocol):
    """The methods of a database that a migration calls."""

    def set_base(
        self, table: str, location: str | None, cold_after: timedelta | None, memory: int | None, /
    ) -> None:
        """Give a table a base, or change its base."""


def give_base(db: Online, table: str, rule: BaseRule) -> None:
    """Give a table the base of a rule, in a folder of the table's own. Raises as `Database.set_base`."""
    cold_after = None if rule.cold_after is None else timedelta(microseconds=rule.cold_after)
    db.set_base(table, rule.location, cold_after, rule.memory)


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between a declared table and the table in the catalog.

    ``name`` is the column, or an empty text. ``change`` describes the online change that ends the difference.
    ``refusal`` is an empty text, or says why the change is not made, and what to do.
    """

    kind: DifferenceKind
    table: str
    change: str
    name: str = ""
    refusal: str = ""
    make: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.change}: refused: {self.refusal}" if self.refusal else self.change


@dataclass(frozen=True, slots=True)
class Wanted:
    """A declared table; ``model`` is the model of a typed table. A base of None leaves a base as it is."""

    definition: TableDefinition
    model: type[Table] | None = None


@dataclass(frozen=True, slots=True)
class Allowed:
    """The tables and columns that may be dropped, and the columns whose type may be narrowed.

    A column is named ``table.column``.
    """

    drop: Collection[str] = ()
    narrowing: Collection[str] = ()
