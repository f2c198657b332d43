"""How a worker works, and when it is to end."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict

from percolator_core.errors import ConfigurationError
from percolator_core.observers import Chain

Strategy: TypeAlias = Literal["random", "partitioned"]


class WorkerSettings(TypedDict, total=False):
    """What a worker may be told, as keyword arguments of `percolator_core.Worker`, which has the defaults.

    Plain enough for JSON: they travel from a command line to the processes of a crew.
    """

    threads: int
    width: int
    cpus: int | None
    strategy: Strategy
    rolling: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """How a worker works: how many runs of each executor, whose, and which tablets first.

    ``observers`` are those whose cells it takes. ``own`` is None for a ``partitioned`` worker whose tablets
    depend on how many workers there are.
    """

    places: Mapping[str, int]
    observers: frozenset[str]
    partitioned: bool
    own: frozenset[int] | None


def chosen_observers(chain: Chain, names: Collection[str] | None) -> frozenset[str]:
    """The observers of the chain that are meant; None is all of them.

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
        raise ValueError("observers names none: name some, or leave it out for all of the chain")
    unknown = sorted(chosen - chain.observers.keys())
    if unknown:
        raise ConfigurationError(
            f"the chain {chain.name!r} has no observer {', '.join(map(repr, unknown))}: it has "
            f"{', '.join(sorted(chain.observers))}"
        )
    return chosen


class Stop:
    """Whether and until when a worker is to end; set by any thread, or by a signal handler."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self._until = float("inf")

    def set(self, grace: float) -> None:
        """End, within so many seconds; if that was said before, the earlier end counts."""
        self._until = min(self._until, time.monotonic() + grace)
        self._told.set()

    def clear(self) -> None:
        """Begin anew."""
        self._told.clear()
        self._until = float("inf")

    def is_set(self) -> bool:
        """Whether it is to end."""
        return self._told.is_set()

    @property
    def until(self) -> float:
        """When its grace ends, in monotonic seconds; infinity while it is not to end."""
        return self._until

    def left(self, usual: float) -> float:
        """Seconds of grace that are left: ``usual`` where nobody has told it to end."""
        return max(0.0, self._until - time.monotonic()) if self.is_set() else usual
