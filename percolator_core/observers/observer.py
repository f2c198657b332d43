"""An observer with its imported function, as the worker uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from percolator_core.layout.keys import EVERY_COLUMN
from percolator_core.observers.declaration import ObserverDeclaration

if TYPE_CHECKING:
    from pathlib import Path

    from percolator_core.observers.imports import ObserverFunction
    from percolator_core.views.runs import ViewRuns

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

    `percolator_core.observers.declaration.ObserverDeclaration` describes most fields. ``timeout`` and
    ``settle`` are in seconds. Acknowledgements record ``revision``. ``view`` is set if the observer belongs
    to a view. ``file`` is the file with the declaration, and ``function_name`` the ``module:function`` in
    this file.
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
    view: ViewRuns | None = None

    @classmethod
    def from_declaration(
        cls, declaration: ObserverDeclaration, file: Path, function: ObserverFunction
    ) -> Observer:
        """Return the observer for ``declaration``, which was read from ``file``."""
        return cls(
            name=declaration.observer,
            file=file,
            function=function,
            function_name=declaration.function,
            observe=declaration.observe,
            mode=declaration.mode,
            reads=declaration.reads,
            writes=declaration.writes,
            retry=Retry(**dict(declaration.retry)),
            timeout=declaration.timeout,
            settle=_SETTLE[declaration.mode] if declaration.settle is None else declaration.settle,
            feedback=declaration.feedback,
            order=declaration.order,
            executor=declaration.executor,
            revision=declaration.revision,
            description=declaration.description,
        )

    def declares(self, table: str, column: str, *, notify_only: bool) -> bool:
        """Return True if ``writes`` has this column or, unless the column is notify-only, ``table.*``."""
        return (table, column) in self.writes or (not notify_only and (table, EVERY_COLUMN) in self.writes)
