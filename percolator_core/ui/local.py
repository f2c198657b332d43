"""The pages without Airflow: the chains of some folders, for everybody who has the token."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.middleware import Middleware

from percolator_core.store.url import StoreUrl, parse, secret_forms
from percolator_core.ui.app import make_app
from percolator_core.ui.gate import Gate
from percolator_core.ui.host import Action, Host, Schedule, ShownChain

if TYPE_CHECKING:
    from fastapi import FastAPI


@dataclass(frozen=True, slots=True)
class LocalChain(ShownChain):
    """A chain in a folder of this machine, with its store and namespace."""

    url: StoreUrl
    namespace: str

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `percolator_core.connect`."""
        return {"url": self.url, "namespace": self.namespace}

    def redact(self, text: str) -> str:
        """Return the text with asterisks in place of the passwords of the store's URL."""
        address = parse(self.url)
        for secret in (address.password, address.sentinel_password):
            for form in secret_forms(secret):
                text = text.replace(form, "***")
        return text


class LocalViewer:
    """Somebody who has the token. Everything is allowed, except changes if ``read_only``."""

    def __init__(self, chains: Sequence[LocalChain], *, read_only: bool) -> None:
        self._chains = {chain.name: chain for chain in sorted(chains, key=lambda chain: chain.name)}
        self._read_only = read_only

    def chains(self) -> list[ShownChain]:
        """Return all chains."""
        return list(self._chains.values())

    def chain(self, name: str) -> LocalChain | None:
        """Return the chain of that name."""
        return self._chains.get(name)

    def refusal(self, chain: ShownChain, action: Action) -> str | None:  # noqa: ARG002 - of the interface
        """Refuse changes if the pages are read-only."""
        if action == "edit" and self._read_only:
            return "you may not change this: `percolator ui` was started with --read-only"
        return None

    def schedules(self, chain: ShownChain) -> list[Schedule] | None:  # noqa: ARG002 - of the interface
        """Return None: ``percolator ui`` schedules nothing."""
        return None


def make_local_app(
    chains: Sequence[LocalChain],
    token: str,
    port: int,
    *,
    names: Collection[str] = (),
    read_only: bool = False,
) -> FastAPI:
    """Create the application of ``percolator ui``.

    Args:
        chains: the chains, each with another name.
        token: the token that every request needs (`Gate`).
        port: the port of the server.
        names: further host names of the server.
        read_only: refuse all changes.
    """
    user = LocalViewer(chains, read_only=read_only)
    return make_app(
        Host(
            viewer=lambda: user,
            log="the output of `percolator ui`",
            empty="There is no chain: name one with --chain.",
            login=lambda _: None,
            middleware=[Middleware(Gate, token=token, port=port, names=names)],
        )
    )
