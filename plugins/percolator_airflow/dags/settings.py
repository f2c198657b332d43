"""The ``airflow:`` block of a chain, with what a DAG file says in Python laid over it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from percolator_airflow.names import PARTS
from percolator_core.errors import ConfigurationError
from percolator_core.observers import Chain
from percolator_core.observers.explain import validate
from percolator_core.observers.rules import Declaration
from percolator_core.observers.scheduling import Scheduling, unknown_names
from percolator_core.observers.yaml_file import Problems, YamlFile

AnyDeclaration = TypeVar("AnyDeclaration", bound=Declaration)


def merged(chain: Chain, given: Mapping[str, Any]) -> Scheduling:
    """The chain's block with what is ``given`` laid over it, key by key.

    Args:
        chain: the chain.
        given: keys and values as in the block; durations may be timedeltas, paths may be paths, and False in
            place of a part leaves that DAG out. None is nothing said.

    Raises:
        ConfigurationError: with one line for each thing that is wrong in ``given``.
    """
    said = {name: value for name, value in given.items() if value is not None}
    for part in PARTS:
        if said.get(part) is False:
            said[part] = {"enabled": False}
        elif isinstance(said.get(part), Mapping):
            said[part] = dict(said[part])
    problems = Problems()
    arguments = YamlFile.of_arguments("chain_dags(…)", said)
    over = validate(Scheduling, arguments, problems)
    problems.raise_if_any()
    assert over is not None, "what could not be read is a problem, raised above"
    # Of typed tables nothing is known here: a task finds them missing.
    tables = None if chain.schemas else [table.name for table in chain.tables]
    for place, what in unknown_names(over, tables, chain.observers):
        problems.add(arguments.problem(place, what))
    problems.raise_if_any()
    return laid_over(chain.scheduling, over)


def laid_over(base: AnyDeclaration, over: AnyDeclaration) -> AnyDeclaration:
    """``base`` with the fields that are set in ``over``; of parts of theirs only those that are set there."""
    changed: dict[str, Any] = {}
    for name in over.model_fields_set:
        before, value = getattr(base, name), getattr(over, name)
        if isinstance(value, Declaration):
            value = laid_over(before, value)
        elif isinstance(value, dict):
            value = before | {
                key: laid_over(before[key], one) if isinstance(one, Declaration) and key in before else one
                for key, one in value.items()
            }
        changed[name] = value
    return base.model_copy(update=changed)


def refuse(problem: str) -> ConfigurationError:
    """The error for an argument that no model reads."""
    return ConfigurationError(f"chain_dags(…): {problem}")
