"""Find the chains whose DAGs Airflow knows.

The last task of the DAG ``<chain>_observe`` has the chain's folder, connection and namespace in its fields.
They are read from the serialized DAG in Airflow's database, so no DAG file is imported, and nothing has to be
configured twice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from percolator_airflow.chains import stamps
from percolator_airflow.connection import DEFAULT_CONN_ID
from percolator_airflow.names import LAST_TASK, TAG, dag_ids
from percolator_core.errors import ConfigurationError
from percolator_core.observers import Chain

if TYPE_CHECKING:
    from sqlalchemy import Select
    from sqlalchemy.orm import Session

_SUFFIX: Final = dag_ids("")["observe"]


@dataclass(frozen=True, slots=True)
class KnownChain:
    """A chain that has DAGs. The permissions on the DAG of its observers, ``dag_id``, control access.

    If ``namespace`` is None, the namespace is the connection's or, if that has none, the chain's name.
    """

    name: str
    dag_id: str
    path: Path
    project: str | None
    conn_id: str
    namespace: str | None

    @property
    def dag_ids(self) -> dict[str, str]:
        """The ids of its four DAGs; the keys are load, observe, monitor and maintain."""
        return dag_ids(self.name)


class _Loaded:
    """Declarations by folder, read again after a change of a file in the folder."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chains: dict[Path, tuple[frozenset[tuple[str, int]], Chain | ConfigurationError]] = {}

    def get(self, path: Path) -> Chain:
        """Return the chain in the folder, without its code. Raises ConfigurationError."""
        stamp = stamps(path)
        with self._lock:
            known = self._chains.get(path)
            if known is None or known[0] != stamp:
                known = self._chains[path] = (stamp, _load(path))
        if isinstance(known[1], ConfigurationError):
            raise known[1]
        return known[1]


_loaded = _Loaded()
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


@dataclass(frozen=True, slots=True)
class KnownDag:
    """One of a chain's DAGs; ``part`` is load, observe, monitor or maintain."""

    part: str
    dag_id: str
    paused: bool


def dags_of(session: Session, chain: KnownChain) -> list[KnownDag]:
    """Return the chain's DAGs that Airflow knows."""
    from airflow.models.dag import DagModel
    from sqlalchemy import select

    query = select(DagModel.dag_id, DagModel.is_paused).where(
        DagModel.dag_id.in_(chain.dag_ids.values()), DagModel.is_stale.is_(False)
    )
    paused = {row.dag_id: bool(row.is_paused) for row in session.execute(query)}
    return [
        KnownDag(part, dag_id, paused[dag_id]) for part, dag_id in chain.dag_ids.items() if dag_id in paused
    ]


def declared(chain: KnownChain) -> Chain:
    """Return the chain's declarations, without its code.

    Raises:
        ConfigurationError: they are not on this machine, or are invalid.
    """
    if not chain.path.is_dir():
        raise ConfigurationError(
            f"the folder of the chain {chain.name!r} is not on the machine of Airflow's API server: mount it "
            f"there at the path that the DAG uses, {chain.path}"
        )
    return _loaded.get(chain.path)


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


def _load(path: Path) -> Chain | ConfigurationError:
    try:
        return Chain.load(path, import_functions=False)
    except ConfigurationError as error:
        return error


def _parse(dag_id: str, data: Mapping[str, Any]) -> KnownChain | None:
    name = dag_id.removesuffix(_SUFFIX)
    for fields in _tasks(data.get("dag", {}).get("tasks", ())):
        if str(fields.get("task_id", "")) == LAST_TASK and "chain" in fields:
            return KnownChain(
                name,
                dag_id,
                Path(str(fields["chain"])),
                fields.get("project"),
                str(fields.get("conn_id", DEFAULT_CONN_ID)),
                fields.get("namespace"),
            )
    return None


def _tasks(tasks: Iterable[Any]) -> Iterable[Mapping[str, Any]]:
    for task in tasks:
        yield task.get("__var", task) if isinstance(task, Mapping) else {}
