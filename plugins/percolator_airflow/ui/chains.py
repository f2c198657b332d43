"""Find the chains whose DAGs Airflow knows.

The last task of the DAG ``<chain>_observe`` has the chain's folder, connection and namespace in its fields.
They are read from the serialized DAG in Airflow's database, so no DAG file is imported, and nothing has to be
configured twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from percolator_airflow.connection import DEFAULT_CONN_ID
from percolator_airflow.names import LAST_TASK, TAG, dag_ids
from percolator_core.ui.host import Schedule, ShownChain

if TYPE_CHECKING:
    from sqlalchemy import Select
    from sqlalchemy.orm import Session

_SUFFIX: Final = dag_ids("")["observe"]


@dataclass(frozen=True, slots=True)
class KnownChain(ShownChain):
    """A chain that has DAGs. The permissions on the DAG of its observers, ``dag_id``, control access.

    If ``namespace`` is None, the namespace is the connection's or, if that has none, the chain's name.
    """

    dag_id: str
    conn_id: str
    namespace: str | None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `connect`, from the Airflow connection."""
        from percolator_airflow.hook import PercolatorHook

        return PercolatorHook(self.conn_id, self.namespace, default_namespace=self.name).arguments()

    def redact(self, text: str) -> str:
        """Return the text with asterisks in place of the secrets that Airflow knows."""
        from airflow.sdk.log import redact

        return str(redact(text))


_parsed: dict[str, tuple[str, KnownChain | None]] = {}
"""The chains by the id of their DAG, each with the hash of the serialized DAG from which it was read."""


def known_chains(session: Session) -> list[KnownChain]:
    """Return the chains that have DAGs, by name."""
    found = (_read(session, dag_id) for dag_id in sorted(session.scalars(_dags())))
    return [chain for chain in found if chain is not None]


def known_chain(session: Session, name: str) -> KnownChain | None:
    """Return the chain of that name, or None if it has no DAGs."""
    from airflow.models.dag import DagModel

    dag_id = session.scalar(_dags().where(DagModel.dag_id == dag_ids(name)["observe"]))
    return None if dag_id is None else _read(session, dag_id)


def schedules_of(session: Session, chain: KnownChain, airflow: str) -> list[Schedule]:
    """Return the chain's DAGs that Airflow knows; ``airflow`` is the URL of Airflow's own pages."""
    from airflow.models.dag import DagModel
    from sqlalchemy import select

    ids = dag_ids(chain.name)
    query = select(DagModel.dag_id, DagModel.is_paused).where(
        DagModel.dag_id.in_(ids.values()), DagModel.is_stale.is_(False)
    )
    paused = {row.dag_id: bool(row.is_paused) for row in session.execute(query)}
    return [
        Schedule(part, dag_id, f"{airflow}/dags/{dag_id}", paused[dag_id])
        for part, dag_id in ids.items()
        if dag_id in paused
    ]


def _dags() -> Select[str]:
    """Select the ids of the DAGs that run observers, of all chains."""
    from airflow.models.dag import DagModel, DagTag
    from sqlalchemy import select

    return (
        select(DagModel.dag_id)
        .join(DagTag, DagTag.dag_id == DagModel.dag_id)
        .where(
            DagTag.name == TAG,
            DagModel.dag_id.endswith(_SUFFIX, autoescape=True),
            DagModel.is_stale.is_(False),
        )
    )


def _read(session: Session, dag_id: str) -> KnownChain | None:
    """Read the chain from the newest version of the DAG; None if the DAG belongs to no chain."""
    from airflow.models.serialized_dag import SerializedDagModel
    from sqlalchemy import select

    newest = (
        select(SerializedDagModel.id, SerializedDagModel.dag_hash)
        .where(SerializedDagModel.dag_id == dag_id)
        .order_by(SerializedDagModel.created_at.desc())
        .limit(1)
    )
    row = session.execute(newest).first()
    if row is None:
        return None
    known = _parsed.get(dag_id)
    if known is None or known[0] != row.dag_hash:
        serialized = session.get(SerializedDagModel, row.id)
        data = serialized.data if serialized is not None else None
        known = _parsed[dag_id] = (row.dag_hash, _parse(dag_id, data or {}))
    return known[1]


def _parse(dag_id: str, data: Mapping[str, Any]) -> KnownChain | None:
    name = dag_id.removesuffix(_SUFFIX)
    for task in data.get("dag", {}).get("tasks", ()):
        fields = task.get("__var", task) if isinstance(task, Mapping) else {}
        if str(fields.get("task_id", "")) == LAST_TASK and "chain" in fields:
            return KnownChain(
                name,
                Path(str(fields["chain"])),
                dag_id,
                str(fields.get("conn_id", DEFAULT_CONN_ID)),
                fields.get("namespace"),
            )
    return None
