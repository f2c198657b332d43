"""The settings of a worker."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict

from percolator_core.errors import ConfigurationError
from percolator_core.observers import Chain

Strategy: TypeAlias = Literal["random", "partitioned"]


class WorkerSettings(TypedDict, total=False):
    """The arguments of `percolator_core.Worker` that a command line passes to the processes of a crew."""

    threads: int
    width: int
    cpus: int | None
    strategy: Strategy
    rolling: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The slots of each executor, the observers whose cells a worker takes, and the tablets it prefers.

    ``own`` is None for a ``partitioned`` worker whose tablets depend on the number of workers.
    """

    slots: Mapping[str, int]
    observers: frozenset[str]
    partitioned: bool
    own: frozenset[int] | None


def chosen_observers(chain: Chain, names: Collection[str] | None) -> frozenset[str]:
    """Return the observers of the chain with these names; None means all.

    Raises:
        ConfigurationError: the chain has no observer of such a name.
        ValueError: no names, or a string instead of a list of them.
    """
    if names is None:
        return frozenset(chain.observers)
    if isinstance(names, str):
        raise ValueError(f"observers is a list of names: [{names!r}], not {names!r}")
    chosen = frozenset(names)
    if not chosen:
        raise ValueError("observers is empty: name at least one, or leave it out to run all of the chain")
    unknown = sorted(chosen - chain.observers.keys())
    if unknown:
        raise ConfigurationError(
            f"the chain {chain.name!r} has no observer {', '.join(map(repr, unknown))}: it has "
            f"{', '.join(sorted(chain.observers))}"
        )
    return chosen
