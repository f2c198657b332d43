"""An observer as the worker uses it: slotted, frozen, with its function found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from percolator_core.observers.declaration import EVERY_COLUMN, ObserverDeclaration

if TYPE_CHECKING:
    from pathlib import Path

    from percolator_core.observers.functions import ObserverFunction

Column = tuple[str, str]
"""A table's name and a column's name."""


@dataclass(frozen=True, slots=True)
class Retry:
    """What happens to a cell on which the observer fails.

    It runs up to ``attempts`` times (1 to 100) before the cell goes to quarantine; the first wait is
    ``backoff`` seconds, and no wait is longer than ``max_backoff`` seconds.
    """

    attempts: int = 8
    backoff: float = 0.05
    max_backoff: float = 10.0


@dataclass(frozen=True, slots=True)
class Observer:
    """A function, the columns that wake it, and what it may touch.

    ``writes`` may hold ``(table, "*")`` for all columns of a table. ``timeout`` is in seconds.
    ``revision`` is that of its code, 1 or more: acknowledgements tell by which one a run was made. ``file``
    is where it was declared, and ``function_name`` is the ``module:function`` written there.
    """

    name: str
    file: Path
    function: ObserverFunction
    function_name: str
    observe: tuple[Column, ...]
    mode: Literal["strong", "weak"] = "strong"
    reads: tuple[Column, ...] = ()
    writes: tuple[Column, ...] = ()
    retry: Retry = Retry()
    timeout: float = 60.0
    feedback: bool = False
    executor: Literal["hub", "threads", "processes"] = "hub"
    revision: int = 1
    description: str = ""

    @classmethod
    def from_declaration(
        cls, declaration: ObserverDeclaration, file: Path, function: ObserverFunction
    ) -> Observer:
        """The observer that ``declaration``, read from ``file``, describes."""
        retry = declaration.retry
        return cls(
            name=declaration.observer,
            file=file,
            function=function,
            function_name=declaration.function,
            observe=declaration.observe,
            mode=declaration.mode,
            reads=declaration.reads,
            writes=declaration.writes,
            retry=Retry(retry.attempts, retry.backoff, retry.max_backoff),
            timeout=declaration.timeout,
            feedback=declaration.feedback,
            executor=declaration.executor,
            revision=declaration.revision,
            description=declaration.description,
        )

    def declares(self, table: str, column: str) -> bool:
        """Whether ``writes`` names this column, by itself or as ``table.*``."""
        return (table, column) in self.writes or (table, EVERY_COLUMN) in self.writes
