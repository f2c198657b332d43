"""The ``airflow:`` block of a chain, overridden by the arguments of a DAG file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from percolator_airflow.names import PARTS
from percolator_core.observers import Chain
from percolator_core.observers.explain import validate
from percolator_core.observers.rules import Declaration
from percolator_core.observers.scheduling import Scheduling, unknown_names
from percolator_core.observers.yaml_file import Problems, YamlFile

CALL: Final = "chain_dags(…)"
"""A message about an argument of a DAG file has this text in the place of a YAML file's name."""

AnyDeclaration = TypeVar("AnyDeclaration", bound=Declaration)


def merged(chain: Chain, given: Mapping[str, Any]) -> Scheduling:
    """Return the chain's block, overridden by the keys of ``given``.

    Args:
        chain: the chain.
        given: keys and values as in the block; durations may be timedeltas, paths may be path objects.
            A part that is False has no DAG. None overrides nothing.

    Raises:
        ConfigurationError: ``given`` is invalid, with one line for each mistake.
    """
    given = {name: value for name, value in given.items() if value is not None}
    for part in PARTS:
        if given.get(part) is False:
            given[part] = {"enabled": False}
        elif isinstance(given.get(part), Mapping):
            given[part] = dict(given[part])
    problems = Problems()
    arguments = YamlFile.of_arguments(CALL, given)
    override = validate(Scheduling, arguments, problems)
    problems.raise_if_any()
    assert override is not None, "raise_if_any has raised for an invalid argument"
    # The names of typed tables are unknown without the chain's code; a task reports a wrong name.
    tables = None if chain.schemas else [table.name for table in chain.tables]
    for place, what in unknown_names(override, tables, chain.observers):
        problems.add(arguments.problem(place, what))
    problems.raise_if_any()
    return overridden(chain.scheduling, override)


def overridden(base: AnyDeclaration, override: AnyDeclaration) -> AnyDeclaration:
    """Return ``base`` with the fields that are set in ``override``; nested declarations merge likewise."""
    changed: dict[str, Any] = {}
    for name in override.model_fields_set:
        before, value = getattr(base, name), getattr(override, name)
        if isinstance(value, Declaration):
            value = overridden(before, value)
        elif isinstance(value, dict):
            value = before | {
                key: overridden(before[key], one) if isinstance(one, Declaration) and key in before else one
                for key, one in value.items()
            }
        changed[name] = value
    return base.model_copy(update=changed)
