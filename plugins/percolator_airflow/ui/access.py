"""Who may see and do what: Airflow's login, and the permissions on the chain's DAG.

To see a chain is to read its DAG ``<chain>_observe``; to act on it is to edit that DAG. A write has to come
from our own pages or from a program: it needs a header that no form and no other site can send.
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
"""What a request that changes something carries. A page of another site cannot set it without being asked
first by the browser, which Airflow does not allow."""

Method = Literal["GET", "PUT"]


def may(user: Any, method: Method, dag_id: str, entity: DagAccessEntity | None = None) -> bool:
    """Whether the user may read ("GET") or edit ("PUT") the DAG, or a part of it."""
    return bool(
        get_auth_manager().is_authorized_dag(
            method=method,
            access_entity=entity,
            details=DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id)),
            user=user,
        )
    )


def readable_chains(user: GetUserDep, session: SessionDep) -> list[KnownChain]:
    """The chains that the user may see."""
    return [chain for chain in known_chains(session) if may(user, "GET", chain.dag_id)]


def readable_chain(request: Request, name: str, user: GetUserDep, session: SessionDep) -> KnownChain:
    """The chain of the path. One that the user may not see does not exist for him."""
    chain = known_chain(session, name)
    if chain is None or not may(user, "GET", chain.dag_id):
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"there is no chain {name!r} that you may see")
    request.state.chain = chain
    return chain


def chain_with_data(chain: Annotated[KnownChain, Depends(readable_chain)], user: GetUserDep) -> KnownChain:
    """The chain of the path, for pages that show cells: they need what XComs need, too."""
    if not may(user, "GET", chain.dag_id, DagAccessEntity.XCOM):
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            f"the data of {chain.name!r} is for those who may read the XComs of {chain.dag_id}",
        )
    return chain


def editable_chain(
    request: Request, chain: Annotated[KnownChain, Depends(readable_chain)], user: GetUserDep
) -> KnownChain:
    """The chain of the path, for a request that changes something."""
    if WRITE_HEADER not in request.headers or request.headers.get("sec-fetch-site") not in {
        None,
        "same-origin",
        "none",
    }:
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            "a change is asked for by our own pages, or by a program that sends the header "
            f"{WRITE_HEADER}: 1",
        )
    if not may(user, "PUT", chain.dag_id):
        raise HTTPException(
            status.HTTP_403_FORBIDDEN, f"to change something, one has to be allowed to edit {chain.dag_id}"
        )
    return chain


def may_edit(chain: Annotated[KnownChain, Depends(readable_chain)], user: GetUserDep) -> bool:
    """Whether the pages of the chain offer this user to change something."""
    return may(user, "PUT", chain.dag_id)


ReadableChains = Annotated[list[KnownChain], Depends(readable_chains)]
ReadableChain = Annotated[KnownChain, Depends(readable_chain)]
ChainWithData = Annotated[KnownChain, Depends(chain_with_data)]
EditableChain = Annotated[KnownChain, Depends(editable_chain)]
MayEdit = Annotated[bool, Depends(may_edit)]
