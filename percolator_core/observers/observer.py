"""An observer with its imported function, as the worker uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from percolator_core.observers.declaration import EVERY_COLUMN, ObserverDeclaration

if TYPE_CHECKING:
    from pathlib import Path

    from percolator_core.observers.functions import ObserverFunction

_SETTLE: Final = {"strong": 0.0, "weak": 1.0}
"""The defaults of ``settle``. A weak observer waits, because one run of it may cover many notifications."""

Column = tuple[str, str]
"""A table's name and a column's name."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The retries of a cell on which the observer fails.

    The observer runs up to ``attempts`` times (1 to 100) before the cell goes to quarantine. The first wait
    is ``backoff`` seconds, and no wait is longer than ``max_backoff`` seconds.
    """

    attempts: int = 8
    backoff: float = 0.05
    max_backoff: float = 10.0


@dataclass(frozen=True, slots=True)
class Observer:
    """A function, the columns that wake it, and the columns that it reads and writes.

    ``writes`` may contain ``(table, "*")`` for all columns of a table. ``timeout`` is in seconds. A mark
    waits while observers upstream of this observer are running, but at most for ``settle`` seconds. ``order``
    is the order in which its cells run: the oldest first, or first those that its loop notified most often.
    ``revision`` is the revision of its code, 1 or more; acknowledgements record this number. ``file`` is the
    file with the declaration, and ``function_name`` is the ``module:function`` in this file.
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
    settle: float = 0.0
    feedback: bool = False
    order: Literal["oldest", "most_notified"] = "oldest"
    executor: Literal["hub", "threads", "processes"] = "hub"
    revision: int = 1
    description: str = ""

    @classmethod
    def from_declaration(
        cls, declaration: ObserverDeclaration, file: Path, function: ObserverFunction
    ) -> Observer:
        """Return the observer for ``declaration``, which was read from ``file``."""
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
            settle=_SETTLE[declaration.mode] if declaration.settle is None else declaration.settle,
            feedback=declaration.feedback,
            order=declaration.order,
            executor=declaration.executor,
            revision=declaration.revision,
            description=declaration.description,
        )

    def declares(self, table: str, column: str) -> bool:
        """Return True if ``writes`` has this column or ``table.*``."""
        return (table, column) in self.writes or (table, EVERY_COLUMN) in self.writes
