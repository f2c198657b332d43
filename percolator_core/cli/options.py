"""Options that many commands share, and the way from them to a chain and a database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from percolator_core.notation.error import NotationError

if TYPE_CHECKING:
    from percolator_core.database import Database
    from percolator_core.observers import Chain

T = TypeVar("T")

DEFAULT_URL: Final = "embedded:.percolator"

_PATIENCE: Final = 3.0
"""Seconds after which somebody who looks is told that the store does not answer."""

Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="PERCOLATOR_URL",
        help="The store: embedded:FOLDER, redis://HOST:PORT/N, rediss:// or unix://.",
        rich_help_panel="Store",
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        envvar="PERCOLATOR_NAMESPACE",
        help="The namespace. Default: the chain's name; without a chain, the only one in the store.",
        rich_help_panel="Store",
        show_default=False,
    ),
]
ChainPath = Annotated[
    Path, typer.Argument(metavar="PATH", help="The chain: the folder with chain.yaml.", show_default=False)
]
Width = Annotated[int, typer.Option(min=1, help="Runs that are under way at a time.")]
Threads = Annotated[int, typer.Option(min=1, help="Runs of observers with executor: threads at a time.")]
OptionalChainPath = Annotated[
    Path | None,
    typer.Argument(metavar="[PATH]", help="The chain: the folder with chain.yaml.", show_default=False),
]


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A parser of arguments that says why, where typer would only say that a value is invalid."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except NotationError as error:
            raise typer.BadParameter(str(error)) from None

    return parsed


def load_chain(path: Path, *, import_functions: bool = True) -> Chain:
    """The chain in the folder; raises ConfigurationError with a line for each thing that is wrong."""
    from percolator_core.observers import Chain

    return Chain.load(path, import_functions=import_functions)


def connect_to_chain(url: str, namespace: str | None, chain: Chain) -> Database:
    """The chain's database, made when it is not there. Close it, or use it as a context manager."""
    from percolator_core.database import connect

    return connect(url, namespace or chain.name)


def connect_to_existing(url: str, namespace: str | None, chain: Chain | None = None) -> Database:
    """A database that is there already, for commands that look into it.

    Raises:
        StoreUnavailable: an embedded store's folder is missing; it is not made just for a look.
        ConfigurationError: the store lacks the namespace; or none is named, and it has none or several.
    """
    from percolator_core.cli.namespaces import existing_store, only_namespace, refuse_unknown
    from percolator_core.database import connect

    with existing_store(url):
        if not namespace:
            namespace = chain.name if chain is not None else only_namespace(url)
        refuse_unknown(url, namespace)
        return connect(url, namespace, patience=_PATIENCE)
