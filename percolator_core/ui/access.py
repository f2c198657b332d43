"""Access control: the user of a request, and the chain that its URL names.

The program that serves the pages decides what a user may do (`percolator_core.ui.host.Viewer`). A change
needs a header, which a form or another site cannot send.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends, HTTPException, Request, status

from percolator_core.ui.host import Action, ShownChain, Viewer

WRITE_HEADER: Final = "x-percolator"
"""The header that every changing request needs. Before a page of another site can send this header, the
browser asks the server for permission, and the server refuses."""


def viewer() -> Viewer:
    """Return the user of the request. `make_app` puts the host's dependency in place of this function."""
    raise NotImplementedError


CurrentViewer = Annotated[Viewer, Depends(viewer)]


def readable_chain(request: Request, name: str, user: CurrentViewer) -> ShownChain:
    """Return the chain that the URL names. A chain that the user may not see counts as missing."""
    chain = user.chain(name)
    if chain is None:
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"there is no chain {name!r} that you may see")
    request.state.chain = chain
    return chain


ReadableChain = Annotated[ShownChain, Depends(readable_chain)]


def chain_with_data(chain: ReadableChain, user: CurrentViewer) -> ShownChain:
    """Return the chain that the URL names, for a page of cells."""
    return _allowed(user, chain, "data")


def chain_with_logs(chain: ReadableChain, user: CurrentViewer) -> ShownChain:
    """Return the chain that the URL names, for a page of log lines."""
    return _allowed(user, chain, "logs")


def editable_chain(request: Request, chain: ReadableChain, user: CurrentViewer) -> ShownChain:
    """Return the chain that the URL names, for a request that changes something."""
    if WRITE_HEADER not in request.headers or request.headers.get("sec-fetch-site") not in {
        None,
        "same-origin",
        "none",
    }:
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            f"a change must come from these pages, or from a program that sends the header {WRITE_HEADER}: 1",
        )
    return _allowed(user, chain, "edit")


def may_edit(chain: ReadableChain, user: CurrentViewer) -> bool:
    """Return True if the user may change the chain."""
    return user.refusal(chain, "edit") is None


def _allowed(user: Viewer, chain: ShownChain, action: Action) -> ShownChain:
    refused = user.refusal(chain, action)
    if refused is not None:
        raise HTTPException(status.HTTP_403_FORBIDDEN, refused)
    return chain


ChainWithData = Annotated[ShownChain, Depends(chain_with_data)]
ChainWithLogs = Annotated[ShownChain, Depends(chain_with_logs)]
EditableChain = Annotated[ShownChain, Depends(editable_chain)]
MayEdit = Annotated[bool, Depends(may_edit)]
