"""``ui``: the pages in a browser, without Airflow."""

from __future__ import annotations

import importlib.util
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.options import StoreOptions, chain_folders, load_chain
from percolator_core.cli.signals import stopping
from percolator_core.errors import ConfigurationError
from percolator_core.runtime.log import Log

if TYPE_CHECKING:
    from socket import socket

    from percolator_core.ui.local import LocalChain

_NEEDED: Final = ("fastapi", "jinja2", "uvicorn")

log = Log("percolator.ui")

Chains = Annotated[
    list[Path] | None,
    typer.Option(
        "--chain",
        metavar="FOLDER",
        help="A chain: the folder with chain.yaml. Repeat the option for several chains. "
        "Default: the current folder, or the chains of the project in it.",
        show_default=False,
    ),
]
Host = Annotated[
    str, typer.Option(metavar="HOST", help="Listen on this address. Other machines reach only theirs.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Listen on this port; 0 takes a free one.")]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="PERCOLATOR_UI_TOKEN",
        metavar="TOKEN",
        help="The token, of 16 characters or more. Everybody on this machine can read command lines, so put "
        "it into the variable. Default: a new random one.",
        show_default=False,
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="A host name under which browsers reach the server.",
        show_default=False,
    ),
]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Refuse all changes.")]


def ui(
    *,
    chain: Chains = None,
    host: Host = "127.0.0.1",
    port: Port = 0,
    token: Token = None,
    name: Names = None,
    read_only: ReadOnly = False,
    store: StoreOptions,
) -> None:
    """Serve the pages of chains for a browser until SIGINT or SIGTERM, without Airflow.

    The command prints a URL with a token. Open it in a browser. Everybody who has the token may see and
    change everything. While the command runs, it records the history that the plots show.
    """
    missing = [one for one in _NEEDED if importlib.util.find_spec(one) is None]
    if missing:
        raise ConfigurationError(f"the pages need {', '.join(missing)}: pip install 'percolator-core[ui]'")
    from percolator_core.cli.namespaces import existing_store
    from percolator_core.ui.gate import SHORTEST_TOKEN, new_token
    from percolator_core.ui.serving import is_loopback, listen

    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise typer.BadParameter(
            f"the token must have {SHORTEST_TOKEN} or more printable ASCII characters: leave it out for a "
            "random one",
            param_hint="'--token'",
        )
    chains = _chains(chain or _found(), store)
    with existing_store(store.url), listen(host, port) as listener:
        bound = listener.getsockname()[1]
        if not is_loopback(host):
            log.warning(
                "other machines can reach the pages, and the token crosses the network unencrypted: let only "
                "a proxy with TLS reach the port",
                host=host,
            )
        _serve(chains, listener, bound, token or new_token(), host, name or [], read_only=read_only)


def _serve(  # noqa: PLR0917
    chains: list[LocalChain],
    listener: socket,
    port: int,
    token: str,
    host: str,
    names: list[str],
    *,
    read_only: bool,
) -> None:
    from percolator_core.ui.local import make_local_app
    from percolator_core.ui.recorder import recording
    from percolator_core.ui.serving import PagesServer
    from percolator_core.ui.stores import stores

    output = outputs.current()
    output.carry_on = "the pages change nothing by themselves"
    app = make_local_app(chains, token, port, names=names, read_only=read_only)
    server = PagesServer(app, app.state.streams.close)
    shown = next(iter(names), "127.0.0.1" if host in {"0.0.0.0", "::"} else host)  # noqa: S104 - compared only
    url = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"
    output.result({"url": f"{url}?token={token}"}, f"{url}?token={token}")
    output.note("open this URL in a browser; Ctrl-C stops the pages")
    try:
        with stopping(server.stop) as received, recording(chains):
            server.run(sockets=[listener])
    finally:
        stores.close()
    if received.number == signal.SIGINT:
        raise KeyboardInterrupt


def _chains(folders: list[Path], store: StoreOptions) -> list[LocalChain]:
    """Return the chains of the folders. Raises ConfigurationError if a folder has no valid chain."""
    from percolator_core.store.url import StoreUrl, absolute
    from percolator_core.ui.local import LocalChain

    loaded = [(load_chain(folder, import_functions=False), folder) for folder in folders]
    names = [chain.name for chain, _ in loaded]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"two folders declare the chain {twice[0]!r}: name only one of them")
    if store.namespace and len(loaded) > 1:
        raise ConfigurationError("--namespace is for one chain: name that chain with --chain")
    url = StoreUrl(absolute(store.url))
    return [
        LocalChain(chain.name, folder.absolute(), url, store.namespace or chain.name)
        for chain, folder in loaded
    ]


def _found() -> list[Path]:
    here = Path()
    return [here] if (here / "chain.yaml").is_file() else chain_folders(here, "name a chain with --chain")
