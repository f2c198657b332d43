"""Access control: Airflow's login, and the permissions on the chain's DAG.

A user who may read the DAG ``<chain>_observe`` may see the chain, a user who may read the DAG's XComs may see
the chain's data, and a user who may edit the DAG may change the chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from fastapi import Request

from percolator_airflow.names import URL_PREFIX
from percolator_airflow.ui.chains import KnownChain, known_chain, known_chains, schedules_of

if TYPE_CHECKING:
    from percolator_core.ui.host import Action, Schedule, ShownChain

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


class AirflowViewer:
    """A user who is logged in to Airflow."""

    def __init__(self, user: Any, session: Any, airflow: str) -> None:
        """``session`` is of Airflow's database; ``airflow`` is the URL of Airflow's own pages."""
        self._user = user
        self._session = session
        self._airflow = airflow

    def chains(self) -> list[ShownChain]:
        """Return the chains that have DAGs which the user may read."""
        return [one for one in known_chains(self._session) if may(self._user, "GET", one.dag_id)]

    def chain(self, name: str) -> KnownChain | None:
        """Return the chain of that name; None if it has no DAGs, or if the user may not read them."""
        chain = known_chain(self._session, name)
        return chain if chain is not None and may(self._user, "GET", chain.dag_id) else None

    def refusal(self, chain: ShownChain, action: Action) -> str | None:
        """Return the permission that the user lacks, in a sentence."""
        assert isinstance(chain, KnownChain)
        if action == "edit":
            allowed = may(self._user, "PUT", chain.dag_id)
            return (
                None if allowed else f"you may not change this: that needs permission to edit {chain.dag_id}"
            )
        if action == "logs":
            # A worker's file may have lines of other chains, which this user may not see.
            return "you may not see the logs of workers here: `percolator ui` shows them"
        if action == "code":
            if may(self._user, "GET", chain.dag_id, DagAccessEntity.CODE):
                return None
            return f"you may not see the code: that needs permission to read the code of {chain.dag_id}"
        if may(self._user, "GET", chain.dag_id, DagAccessEntity.XCOM):
            return None
        return (
            f"you may not see the data of {chain.name!r}: that needs permission to read the XComs of "
            f"{chain.dag_id}"
        )

    def schedules(self, chain: ShownChain) -> list[Schedule]:
        """Return the chain's DAGs."""
        assert isinstance(chain, KnownChain)
        return schedules_of(self._session, chain, self._airflow)


def viewer(request: Request, user: GetUserDep, session: SessionDep) -> AirflowViewer:
    """Return the user of the request. A request without a login is refused."""
    return AirflowViewer(user, session, request.scope.get("root_path", "").removesuffix(URL_PREFIX))


def login_url(request: Request) -> str:
    """Return the URL of the login page, which then leads back to this page."""
    return str(get_auth_manager().get_url_login(next_url=str(request.url)))
