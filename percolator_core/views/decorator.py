"""``@view_function``: declare a Python function that views may call. The parser of SQL is not imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from percolator_core.errors import ConfigurationError

_MARK: Final = "__percolator_view_function__"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class MarkedFunction:
    """The declaration that a function carries, with its file and line."""

    revision: int
    path: str
    line: int


def view_function(*, revision: int = 1) -> Callable[[F], F]:
    """Declare that views may call a function by its name: ``@view_function(revision=2)``.

    The function stays as it is. A chain finds it by ``views: MODULE`` in ``chain.yaml``. Its arguments and
    its result need annotations with types of columns, such as ``def brand(title: str) -> str | None``. If an
    argument is null and its annotation does not allow None, the result is null without a call.

    The function must give the same result for the same arguments, always: no clock, no random numbers, no
    state. If it raises an error for a row, the change of the row goes to the quarantine, and the view keeps
    what the row gave before.

    Args:
        revision: an int from 1 on. Raise it whenever the function gives other results: views that call it
            then count as changed.

    Raises:
        ConfigurationError: the function has a declaration already.
    """

    def declare(function: F) -> F:
        if hasattr(function, _MARK):
            raise ConfigurationError(f"{function.__qualname__} is declared as a function of views twice")
        code: Any = getattr(function, "__code__", None)
        path, line = (function.__module__, 0) if code is None else (code.co_filename, code.co_firstlineno)
        setattr(function, _MARK, MarkedFunction(revision, path, line))
        return function

    return declare


def marked_function(value: object) -> MarkedFunction | None:
    """Return the declaration of a function, None if it has none."""
    found = getattr(value, "__dict__", {}).get(_MARK) if callable(value) else None
    return found if isinstance(found, MarkedFunction) else None
