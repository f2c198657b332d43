"""Import the typed tables of a chain: the models in the modules under ``schemas``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import PydanticUserError

from percolator_core.errors import ConfigurationError
from percolator_core.observers.functions import import_module
from percolator_core.observers.yaml_file import quoted
from percolator_core.tables.model import Table, definition_of, is_table

if TYPE_CHECKING:
    from types import ModuleType

Models = dict[str, type[Table]]
"""Models by table name."""


def import_models(name: str) -> Models:
    """Return the models in a module, also the models that the module imports.

    Raises:
        ValueError: the module cannot be imported or has no table, two of its models have the same table, or a
            model is invalid.
    """
    module = import_module(name)
    found: Models = {}
    for model in _tables(module):
        try:
            table = definition_of(model).name
        except (ConfigurationError, PydanticUserError, NameError) as error:
            # The first line of a pydantic error states the problem.
            why = str(error).partition("\n")[0]
            raise ValueError(f"{model.__name__} of {quoted(name)}: {why}; fix that model") from None
        if "." in table:
            raise ValueError(
                f"{model.__name__} of {quoted(name)} is the table {quoted(table)}, which has a dot, so no "
                f"observer could name it; rename it, for instance to {quoted(table.replace('.', '_'))}"
            )
        first = found.setdefault(table, model)
        if first is not model:
            raise ValueError(
                f"{first.__name__} and {model.__name__} of {quoted(name)} are both the table "
                f"{quoted(table)}; give one of them another name"
            )
    if not found:
        raise ValueError(
            f"module {quoted(name)} has no table; write one, such as "
            "'class Document(Table, name=\"documents\")', or import it there"
        )
    return found


def _tables(module: ModuleType) -> list[type[Table]]:
    """Return the named subclasses of Table among the module's attributes, each once."""
    classes = (value for value in vars(module).values() if isinstance(value, type))
    return list(dict.fromkeys(one for one in classes if is_table(one)))
