"""The pages without a whole Airflow: chains whose DAGs are in its database, and browsers that are logged in.

Nothing of Airflow is imported before a function here runs, as conftest.py asks for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from percolator_core import Chain, Database, Worker
from tests.airflow.project import set_connection

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.testclient import TestClient

BUNDLE = "dags-folder"
WRITE = {"X-Percolator": "1"}
"""The headers of a program that changes something."""
PAGE = {"Accept": "text/html"}
"""The headers of a browser that requests a page."""


OBSERVERS = {
    "split": "observe: docs.text\nwrites: [out.part]\nretry: {attempts: 1}",
    "join": "observe: out.part\nwrites: [out.sum]\ndescription: Puts parts together.",
}


def split_and_join(
    db: Database, chain: Chain, errors: Mapping[str, Exception], observers: Collection[str] = ()
) -> None:
    """Run `OBSERVERS`, or some of them, until the chain is idle; rows in ``errors`` fail."""

    def split(t: Any, cell: Any) -> None:
        if cell.row.decode() in errors:
            raise errors[cell.row.decode()]
        t.set("out", cell.row, "part", b"x")

    object.__setattr__(chain.observers["split"], "function", split)
    object.__setattr__(chain.observers["join"], "function", lambda t, cell: None)
    Worker(db, chain, observers=observers or None).run_until_idle()


def write_chain(folder: Path, name: str, tables: str, observers: Mapping[str, str]) -> Path:
    """A chain's folder: ``tables`` as in chain.yaml, and for each observer the lines of its own file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "chain.yaml").write_text(f"version: 1\nchain: {name}\ntables: {tables}\n", encoding="utf-8")
    for observer, lines in observers.items():
        text = f"version: 1\nobserver: {observer}\nfunction: steps:{observer}\n{lines}\n"
        (folder / f"{observer}.yaml").write_text(text, encoding="utf-8")
    return folder


def serialized(chain: Path, name: str, **fields: str | None) -> Any:
    """Return the DAG of a chain's observers in Airflow's serialised form."""
    from airflow.sdk import DAG, BaseOperator
    from airflow.serialization.serialized_objects import LazyDeserializedDAG

    class Drain(BaseOperator):  # type: ignore[misc]  # Airflow's types are not looked at
        template_fields = ("chain", "project", "conn_id", "namespace")

        def __init__(self, **kwargs: Any) -> None:
            values = {field: kwargs.pop(field, None) for field in self.template_fields}
            super().__init__(**kwargs)
            for field, value in values.items():
                setattr(self, field, value)

        def execute(self, context: Any) -> None:
            """Never runs."""

    fields = {"conn_id": "percolator_default", "namespace": name, "project": None} | fields
    with DAG(
        f"{name}_observe",
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        schedule=None,
        tags=["percolator", name],
    ) as dag:
        Drain(task_id="until_idle", chain=str(chain), **fields)
    dag.fileloc, dag.relative_fileloc = __file__, f"{name}.py"
    return LazyDeserializedDAG.from_dag(dag)


def give_dag(chain: Path, name: str, **fields: str | None) -> None:
    """Put the DAG of the chain's observers into Airflow's database, as its DAG processor does."""
    from airflow.dag_processing.collection import update_dag_parsing_results_in_db
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils.session import create_session

    dag = serialized(chain, name, **fields)
    errors: dict[tuple[str, str], str] = {}
    with create_session() as session:
        if session.get(DagBundleModel, BUNDLE) is None:
            session.add(DagBundleModel(name=BUNDLE))
            session.flush()
        update_dag_parsing_results_in_db(BUNDLE, None, [dag], errors, None, set(), session=session)
        # Airflow writes a DAG at most twice a minute; here the clock moves on with each call.
        SerializedDagModel.write_dag(dag, BUNDLE, session=session)
    assert not errors


def forget_dags() -> None:
    """Delete all DAGs from Airflow's database."""
    from airflow.models.dag import DagModel
    from airflow.models.dag_version import DagVersion
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        for model in (SerializedDagModel, DagVersion, DagModel):
            session.execute(delete(model))


@contextmanager
def connection_to(url: str, conn_id: str = "percolator_default", **extra: Any) -> Iterator[None]:
    """An Airflow connection of the type percolator, while the block runs."""
    with pytest.MonkeyPatch.context() as patch:
        set_connection(patch, conn_id, host=url, extra=extra)
        yield


@dataclass
class Site:
    """The application of ``make_app``, and a client for each kind of user."""

    app: FastAPI

    def token(self, role: str | None, name: str = "somebody") -> str:
        """Return Airflow's token for a role: VIEWER, USER, OP or ADMIN; None has no permission."""
        from airflow.api_fastapi.app import get_auth_manager
        from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

        return str(get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=name, role=role)))

    def anonymous(self, **settings: Any) -> TestClient:
        """Return a client that is not logged in."""
        from starlette.testclient import TestClient

        return TestClient(self.app, **settings)

    def as_(self, role: str | None, **settings: Any) -> TestClient:
        """Return a client with Airflow's cookie, like a browser."""
        client = self.anonymous(**settings)
        client.cookies.set("_token", self.token(role))
        return client


@contextmanager
def site() -> Iterator[Site]:
    """Yield the pages; close their connections to stores at the end."""
    from airflow.api_fastapi.app import init_auth_manager

    from percolator_airflow.ui.app import make_app
    from percolator_core.ui.stores import stores

    init_auth_manager()
    try:
        yield Site(make_app())
    finally:
        stores.close()
