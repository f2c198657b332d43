"""The problems of a view's SQL, each with its line and column."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from percolator_core.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlglot.expressions import Expr
    from sqlglot.tokenizer_core import Token


@dataclass(frozen=True, order=True, slots=True)
class Problem:
    """A place in the SQL, counted from 1, and a sentence that ends with the remedy."""

    line: int
    column: int
    what: str

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.what}"


class ViewRefused(ConfigurationError):
    """The SQL cannot be an incremental view. ``problems`` has at least one element, in order of the text."""

    def __init__(self, label: str, problems: list[Problem]) -> None:
        super().__init__("\n".join(f"{label}:{one}" for one in problems))
        self.label = label
        self.problems = problems

    def __reduce__(self) -> tuple[type[ViewRefused], tuple[str, list[Problem]]]:
        return type(self), (self.label, self.problems)


class Refusal(Exception):
    """One problem, on its way to the list of problems."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class Stopped(Exception):
    """The problems that were found make further checks useless."""


class Positions:
    """Finds the places of parsed expressions. The parser knows those of names and of most functions."""

    def __init__(self, sql: str, tokens: list[Token]) -> None:
        self._sql = sql
        self._tokens = tokens

    def of(self, node: Expr, word: str = "") -> tuple[int, int]:
        """Return line and column of the word that is nearest to the node, or of the node itself."""
        start = self._offset(node) or 0
        if word:
            words = [one.start for one in self._tokens if one.text.lower() == word.lower()]
            start = min(words, key=lambda one: abs(one - start), default=start)
        return self.at(start)

    def at(self, offset: int) -> tuple[int, int]:
        """Return line and column of a character."""
        return self._sql.count("\n", 0, offset) + 1, offset - self._sql.rfind("\n", 0, offset)

    @staticmethod
    def _offset(node: Expr) -> int | None:
        one: Expr | None = node
        while one is not None:
            found = [part.meta["start"] for part in one.walk() if "start" in part.meta]
            if found:
                return int(min(found))
            one = one.parent
        return None


class Report:
    """Collects the problems of one view."""

    def __init__(self, positions: Positions) -> None:
        self.positions = positions
        self.problems: list[Problem] = []

    def refuse(self, node: Expr, what: str, word: str = "") -> NoReturn:
        """Raise `Refusal` with the place of the node, or of the word in it."""
        raise Refusal(Problem(*self.positions.of(node, word), what))

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Add a refusal to the problems and go on after the block."""
        try:
            yield
        except Refusal as refusal:
            if refusal.problem not in self.problems:
                self.problems.append(refusal.problem)

    def stop_if_any(self) -> None:
        """Raise `Stopped` if there is a problem."""
        if self.problems:
            raise Stopped

    def raise_if_any(self, label: str) -> None:
        """Raise `ViewRefused` with all problems."""
        if self.problems:
            raise ViewRefused(label, sorted(self.problems))
