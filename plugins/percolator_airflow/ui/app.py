"""The application that Airflow's API server mounts: the pages, and the redirect from a DAG to its chain."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import RedirectResponse

from percolator_airflow.names import dag_ids
from percolator_airflow.ui.access import AirflowViewer, login_url, viewer
from percolator_core.ui.app import make_app as make_pages
from percolator_core.ui.host import Host
from percolator_core.ui.rendering import page

router = APIRouter()

_PAGES: Final = {"load": "", "observe": "", "monitor": "plots", "maintain": "locks"}
"""The page to which the tab of each DAG leads."""

HOST: Final = Host(
    viewer=viewer,
    log="the log of Airflow's API server",
    empty="There is no chain that you may see. A chain appears here when Airflow knows its DAGs: put a file "
    'with globals().update(chain_dags("…/chain")) into the folder of DAG files.',
    login=login_url,
)


def make_app() -> FastAPI:
    """Create the application."""
    return make_pages(HOST, router)


@router.get("/dag/{dag_id}")
def of_dag(request: Request, dag_id: str, user: Annotated[AirflowViewer, Depends(viewer)]) -> Response:
    """Redirect to the chain of the DAG."""
    for part, target in _PAGES.items():
        name = dag_id.removesuffix(dag_ids("")[part])
        chain = user.chain(name) if name != dag_id else None
        if chain is not None:
            root = request.scope.get("root_path", "")
            return RedirectResponse(f"{root}/{chain.name}/{target}", 302)
    return page(request, "stranger.html", dag_id=dag_id)
