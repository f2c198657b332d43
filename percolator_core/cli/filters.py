"""``--where``: which rows are wanted, of typed tables and of raw ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Annotated

import typer

from percolator_core.notation.bytestext import parse_bytes

if TYPE_CHECKING:
    from percolator_core.admin.condition import Condition
    from percolator_core.schema.definitions import TableDefinition
    from percolator_core.schema.predicates import Predicate

Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="FILTER",
        help="Only rows for which it is true, such as \"size > 5 and url ^= 'https:'\"; of raw tables one "
        "comparison of bytes, such as 'size=5' or 'row^=https:'. May be repeated: all must be true.",
        show_default=False,
    ),
]


def parse_filter(definition: TableDefinition, texts: Sequence[str] | None) -> Predicate | None:
    """What a typed table is asked for; raises typer.BadParameter for what cannot be read."""
    from percolator_core.errors import UnknownColumn
    from percolator_core.schema.expression import parse

    found = []
    for text in texts or ():
        try:
            found.append(parse(text, definition))
        except (ValueError, UnknownColumn) as error:
            # The lines behind the first one show the place, with a caret.
            sentence = str(error).partition("\n")[0].removesuffix(":")
            raise typer.BadParameter(f"--where {text!r}: {sentence}") from None
    return reduce(and_, found) if found else None


def parse_conditions(texts: Sequence[str] | None) -> list[Condition]:
    """What rows of a raw table must meet; raises typer.BadParameter for what cannot be read."""
    from percolator_core.admin.condition import Condition

    try:
        found = [Condition.parse(text, parse_bytes) for text in texts or ()]
    except ValueError as error:
        raise typer.BadParameter(f"--where {error}") from None
    # A column may be called `revision`, too: here there is no other.
    return [
        replace(one, value=str(one.value).encode()) if isinstance(one.value, int) else one for one in found
    ]


def columns_asked(conditions: Sequence[Condition]) -> list[str]:
    """The columns that conditions ask for."""
    from percolator_core.admin.condition import ROW

    return [one.name for one in conditions if one.name != ROW]


def met_by(conditions: Sequence[Condition]) -> Callable[[bytes, Mapping[str, bytes]], bool]:
    """Whether a raw row meets all conditions."""
    from percolator_core.admin.condition import ROW

    def is_met(row: bytes, cells: Mapping[str, bytes]) -> bool:
        return all(one.holds(row if one.name == ROW else cells.get(one.name)) for one in conditions)

    return is_met
