"""The option ``--where``: a filter for rows of typed and raw tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from percolator_core.schema.definitions import TableDefinition
    from percolator_core.schema.expression import RawFilter
    from percolator_core.schema.predicates import Predicate

Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="FILTER",
        help="Only rows that match this filter, such as \"size > 5 and url ^= 'https:'\". In a raw table, "
        "row is the row key and every value is a quoted text. May be repeated: a row must match all.",
    ),
]


def parse_filter(definition: TableDefinition, texts: Sequence[str] | None) -> Predicate | None:
    """Return the filter of a typed table, or None if there are no texts.

    Raises typer.BadParameter for an unreadable text.
    """
    from percolator_core.schema.expression import parse

    found = []
    for text in texts or ():
        with bad_parameter(text):
            found.append(parse(text, definition))
    return reduce(and_, found) if found else None


def parse_raw_filter(definition: TableDefinition, texts: Sequence[str] | None) -> RawFilter:
    """Return the filter of a raw table. Raises typer.BadParameter for an unreadable text."""
    from percolator_core.schema.expression import RawFilter

    for text in texts or ():
        with bad_parameter(text):
            RawFilter.of([text], definition.name)
    return RawFilter.of(texts or (), definition.name)


@contextmanager
def bad_parameter(text: str) -> Iterator[None]:
    """Turn an error of a filter into typer.BadParameter, which quotes the filter."""
    from percolator_core.errors import UnknownColumn

    try:
        yield
    except (ValueError, UnknownColumn) as error:
        # The lines after the first show the position, with a caret.
        sentence = str(error).partition("\n")[0].removesuffix(":")
        raise typer.BadParameter(f"--where {text!r}: {sentence}") from None
