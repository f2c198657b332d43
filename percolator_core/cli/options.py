"""The options that commands share, and functions that open a chain and a database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import typer

from percolator_core.errors import ConfigurationError
from percolator_core.notation.error import NotationError

if TYPE_CHECKING:
    from percolator_core.database import Database
    from percolator_core.observers import Chain, Observer

T = TypeVar("T")

_PATIENCE: Final = 3.0
"""Seconds until a reading command reports that the store does not answer."""

_Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="PERCOLATOR_URL",
        help="The store: embedded:FOLDER, redis://HOST:PORT/N, rediss:// or unix://.",
        rich_help_panel="Store",
    ),
]
_Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        envvar="PERCOLATOR_NAMESPACE",
        help="The namespace. Default: the chain's name; without a chain, the only one in the store.",
        rich_help_panel="Store",
    ),
]
STORE_OPTIONS: Final[Mapping[str, tuple[Any, str | None]]] = {
    "url": (_Url, "embedded:.percolator"),
    "namespace": (_Namespace, None),
}
"""The options that a parameter of the type `StoreOptions` adds to a command, with their defaults."""

ChainPath = Annotated[Path, typer.Argument(metavar="PATH", help="The chain: the folder with chain.yaml.")]
Width = Annotated[int, typer.Option(min=1, help="Concurrent runs.")]
Threads = Annotated[int, typer.Option(min=1, help="Concurrent runs with 'executor: threads'.")]
Timeout = Annotated[
    float | None,
    typer.Option(min=0, metavar="SECONDS", help="Stop after this many seconds, with exit code 4."),
]
OptionalChainPath = Annotated[
    Path | None, typer.Argument(metavar="[PATH]", help="The chain: the folder with chain.yaml.")
]
ChainFirst = Annotated[
    Path | None,
    typer.Option(
        "--chain", metavar="FOLDER", help="First create this chain's tables and activate its observers."
    ),
]
SourcePatience = Annotated[
    float,
    typer.Option(min=0.001, metavar="SECONDS", help="Try again for so long while a server does not answer."),
]


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return a parser that reports its own error messages. typer would only say that a value is invalid."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except NotationError as error:
            raise typer.BadParameter(str(error)) from None

    return parsed


def load_chain(path: Path, *, import_functions: bool = True) -> Chain:
    """Load the chain in the folder. Raises ConfigurationError with one line per problem."""
    from percolator_core.observers import Chain

    return Chain.load(path, import_functions=import_functions)


def chain_folders(project: Path, mend: str) -> list[Path]:
    """Return the folders of a project's chains: NAME or observers/NAME, with a ``chain.yaml``.

    ``mend`` is the end of the error message: how to name another folder.

    Raises:
        ConfigurationError: there is no chain.
    """
    places = ("*/chain.yaml", "observers/*/chain.yaml")
    found = sorted(file.parent for place in places for file in project.glob(place))
    if not found:
        raise ConfigurationError(
            f"{project.absolute()} has no chain in NAME/chain.yaml or observers/NAME/chain.yaml: {mend}, or "
            "create a project with `percolator init DIR`"
        )
    return found


def observer_of(chain: Chain, name: str) -> Observer:
    """Return the observer of that name. Raises typer.BadParameter if the chain has none."""
    found = chain.observers.get(name)
    if found is None:
        raise typer.BadParameter(
            f"{chain.name} has no observer {name!r}: it has {', '.join(chain.observers)}"
        )
    return found


class StoreOptions(NamedTuple):
    """The values of ``--url`` and ``--namespace``."""

    url: str
    namespace: str | None

    def of_chain(self, chain: Chain) -> Database:
        """Open the chain's database, and create it if it is missing."""
        from percolator_core.database import connect

        return connect(self.url, self.namespace or chain.name)

    def existing(self, chain: Chain | None = None) -> Database:
        """Open an existing database.

        Raises:
            StoreUnavailable: the folder of an embedded store is missing; it is not created.
            ConfigurationError: the store does not have the namespace. Or neither a namespace nor a chain is
                given, and the store does not have exactly one namespace.
        """
        from percolator_core.cli.namespaces import existing_store, only_namespace, refuse_unknown
        from percolator_core.database import connect

        with existing_store(self.url):
            namespace = self.namespace or (only_namespace(self.url) if chain is None else chain.name)
            refuse_unknown(self.url, namespace)
            return connect(self.url, namespace, patience=_PATIENCE)
