"""The interface between the pages and the program that serves them.

The program knows the chains, their stores and the permissions of its users. Two programs serve the pages:
``percolator ui`` (`percolator_core.ui.local`), and Airflow's API server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from fastapi import Request
    from starlette.middleware import Middleware

Action = Literal["data", "code", "logs", "edit"]
"""To see the data of a chain (rows, locks, errors), the code of its observers, or the log files of workers on
this machine; or to change its quarantine and locks."""


@dataclass(frozen=True, slots=True)
class ShownChain(ABC):
    """A chain on the pages: its name, and the folder of its declarations."""

    name: str
    path: Path

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `percolator_core.connect`.

        Raises:
            ConfigurationError: the address of the store is missing or invalid.
        """

    @abstractmethod
    def redact(self, text: str) -> str:
        """Return the text of an error with asterisks in place of passwords."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A scheduled job of a chain, such as a DAG of Airflow.

    ``part`` is load, observe, monitor or maintain. ``url`` is the address of the job's own page.
    """

    part: str
    name: str
    url: str
    paused: bool


class Viewer(Protocol):
    """The user of one request."""

    def chains(self) -> list[ShownChain]:
        """Return the chains that the user may see, by name."""

    def chain(self, name: str) -> ShownChain | None:
        """Return the chain of that name; None if there is none, or if the user may not see it."""

    def refusal(self, chain: ShownChain, action: Action) -> str | None:
        """Return the reason why the user may not do that to the chain, in a sentence; or None."""

    def schedules(self, chain: ShownChain) -> list[Schedule] | None:
        """Return the scheduled jobs of the chain; None if the program schedules nothing for any chain."""


@dataclass(frozen=True, slots=True)
class Host:
    """The program that serves the pages.

    ``viewer`` is a dependency of FastAPI that returns the user of a request, or raises HTTPException.
    ``log`` is the name of the program's log, for the end of the sentence "see …". ``empty`` is the sentence
    on the overview if the user may see no chain. ``login`` returns the URL of the login page, or None if
    there is none. ``middleware`` runs before every request.
    """

    viewer: Callable[..., Viewer]
    log: str
    empty: str
    login: Callable[[Request], str | None]
    middleware: Sequence[Middleware] = ()
