"""Access control: Airflow's login, and the permissions on the chain's DAG.

A user who may read the DAG ``<chain>_observe`` may see the chain, and a user who may edit that DAG may change
the chain. A change needs a header, which a form or another site cannot send.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, Request, status

from percolator_airflow.ui.chains import KnownChain, known_chain, known_chains

WRITE_HEADER: Final = "x-percolator"
"""The header that every changing request needs. Before a page of another site can send this header, the
browser asks Airflow for permission, and Airflow refuses."""

Method = Literal["GET", "PUT"]


def may(user: Any, method: Method, dag_id: str, entity: DagAccessEntity | None = None) -> bool:
    """Return True if the user may read ("GET") or edit ("PUT") the DAG, or a part of it."""
    return bool(
        get_auth_manager().is_authorized_dag(
            method=method,
            access_entity=entity,
            details=DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id)),
            user=user,
        )
    )


def readable_chains(user: GetUserDep, session: SessionDep) -> list[KnownChain]:
    """Return the chains that the user may see."""
    return [chain for chain in known_chains(session) if may(user, "GET", chain.dag_id)]


def readable_chain(request: Request, name: str, user: GetUserDep, session: SessionDep) -> KnownChain:
    """Return the chain that the URL names. A chain that the user may not see counts as missing."""
    chain = known_chain(session, name)
    if chain is None or not may(user, "GET", chain.dag_id):
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"there is no chain {name!r} that you may see")
    request.state.chain = chain
    return chain


def chain_with_data(chain: Annotated[KnownChain, Depends(readable_chain)], user: GetUserDep) -> KnownChain:
    """Return the chain that the URL names, for a page of cells; this needs permission on XComs, too."""
    if not may(user, "GET", chain.dag_id, DagAccessEntity.XCOM):
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            f"you may not see the data of {chain.name!r}: that needs permission to read the XComs of "
            f"{chain.dag_id}",
        )
    return chain


def editable_chain(
    request: Request, chain: Annotated[KnownChain, Depends(readable_chain)], user: GetUserDep
) -> KnownChain:
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
    if not may(user, "PUT", chain.dag_id):
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            f"you may not change this: that needs permission to edit {chain.dag_id}",
        )
    return chain


def may_edit(chain: Annotated[KnownChain, Depends(readable_chain)], user: GetUserDep) -> bool:
    """Return True if the user may change the chain."""
    return may(user, "PUT", chain.dag_id)


ReadableChains = Annotated[list[KnownChain], Depends(readable_chains)]
ReadableChain = Annotated[KnownChain, Depends(readable_chain)]
ChainWithData = Annotated[KnownChain, Depends(chain_with_data)]
EditableChain = Annotated[KnownChain, Depends(editable_chain)]
MayEdit = Annotated[bool, Depends(may_edit)]
