"""`chain_dags`: create the DAGs of a chain from its folder.

Airflow reads a DAG file again and again, so this module imports neither Spark nor the chain's code, and it
opens no connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from percolator_airflow.chains import ChainFolder, folder_of_caller, located
from percolator_airflow.dags.load import load_dag
from percolator_airflow.dags.maintain import maintain_dag
from percolator_airflow.dags.monitor import monitor_dag
from percolator_airflow.dags.observe import observe_dag
from percolator_airflow.dags.plan import CALL, EPOCH, Plan, merged
from percolator_core.errors import ConfigurationError

if TYPE_CHECKING:
    from datetime import datetime
    from os import PathLike

    from airflow.sdk import DAG

Block = Mapping[str, Any] | bool

_MAKERS: Final[Mapping[str, Callable[[Plan], DAG]]] = {
    "load": load_dag,
    "observe": observe_dag,
    "monitor": monitor_dag,
    "maintain": maintain_dag,
}


def chain_dags(
    path: str | PathLike[str],
    *,
    project: str | PathLike[str] | None = None,
    connection: str | None = None,
    namespace: str | None = None,
    load: Block | None = None,
    observe: Block | None = None,
    monitor: Block | None = None,
    maintain: Block | None = None,
    default_args: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    start_date: datetime | None = None,
) -> dict[str, DAG]:
    """Return a dict of a chain's DAGs by their ids, for the globals of a DAG file.

    ::

        from percolator_airflow import chain_dags

        globals().update(chain_dags("../observers/webindex"))

    The ids are ``<chain>_load``, ``<chain>_observe``, ``<chain>_monitor`` and ``<chain>_maintain``. The
    ``airflow:`` block of the chain's ``chain.yaml`` configures them; these arguments override it key by key.

    Args:
        path: the chain's folder, relative to the folder of the calling file.
        project: the folder from which the chain's functions are imported; None finds it by their modules.
        connection: the id of the Airflow connection of the store.
        namespace: the namespace in the store.
        load: keys of ``load:`` in the block, such as ``{"max_bad": 0}``; False leaves out the DAG.
        observe: likewise, such as ``{"engine": "local"}``.
        monitor: likewise.
        maintain: likewise.
        default_args: arguments of all tasks, as in Airflow's DAG: ``on_failure_callback``, ``owner``,
            ``retries`` …
        tags: further tags of the DAGs.
        start_date: the start date of the DAGs; no runs are created for the past.

    Raises:
        ConfigurationError: the chain or an argument is invalid; the message has one line for each mistake.
            Airflow shows this message as the import error of the file.
    """
    here = folder_of_caller()
    folder = ChainFolder.of(located(here, path), None if project is None else located(here, project))
    given: dict[str, Any] = {
        "connection": connection,
        "namespace": namespace,
        "load": load,
        "observe": observe,
        "monitor": monitor,
        "maintain": maintain,
    }
    for name, value in given.items():
        if value is True:
            raise ConfigurationError(
                f"{CALL}: {name}: is True; write {{}} for the chain's settings, or False to leave out the DAG"
            )
    plan = Plan(
        folder,
        merged(folder.declared, given),
        dict(default_args or {}),
        tuple(tags),
        start_date or EPOCH,
    )
    made = [make(plan) for part, make in _MAKERS.items() if getattr(plan.settings, part).enabled]
    return {dag.dag_id: dag for dag in made}
