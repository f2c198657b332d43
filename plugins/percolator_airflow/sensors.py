"""The sensor: wait until a chain is idle, without a slot of an Airflow worker."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException

from percolator_airflow.chains import ChainFolder
from percolator_airflow.connection import DEFAULT_CONN_ID
from percolator_airflow.hook import PercolatorHook, plain_failures
from percolator_airflow.links import ChainLink, QuarantineLink
from percolator_airflow.triggers import LOOKS, IdleTrigger
from percolator_core.admin.demand import demand

if TYPE_CHECKING:
    from os import PathLike


class IdleSensor(BaseSensorOperator):
    """Wait until no cell waits for a chain's observers; cells in quarantine do not count.

    Args:
        chain: the chain's folder, relative to the DAG file's folder.
        conn_id: the connection, of the type ``percolator``.
        namespace: None means the namespace of the connection, or else the chain's name.
        deferrable: True waits in the triggerer, which can hold thousands of sensors; False waits in an
            Airflow worker.
        poke_interval: seconds between two checks.
    """

    template_fields: Sequence[str] = ("chain", "conn_id", "namespace")
    operator_extra_links = (ChainLink(), QuarantineLink())
    ui_color = "#dcebf5"

    def __init__(
        self,
        *,
        chain: str | PathLike[str],
        conn_id: str = DEFAULT_CONN_ID,
        namespace: str | None = None,
        deferrable: bool = True,
        poke_interval: timedelta | float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.chain = os.fspath(chain)
        self.conn_id = conn_id
        self.namespace = namespace
        self.deferrable = deferrable
        self.chain_name = ""

    def execute(self, context: Any) -> Any:
        """Wait.

        Raises:
            AirflowFailException: the chain or the connection is invalid.
            AirflowSensorTimeout: the chain was not idle within ``timeout``.
        """
        if not self.deferrable:
            return super().execute(context)
        if not self.poke(context):
            self.defer(
                trigger=IdleTrigger(
                    str(self._folder().path), self.conn_id, self.namespace or None, poll=self.poke_interval
                ),
                method_name="execute_complete",
                timeout=timedelta(seconds=self.timeout),
            )
        return None

    def poke(self, context: Any) -> bool:  # noqa: ARG002 - Airflow's signature
        """Return True if the chain is idle."""
        with plain_failures():
            folder = self._folder()
            hook = PercolatorHook(self.conn_id, self.namespace or None, default_namespace=folder.name)
            with hook.get_conn() as db:
                for look in range(LOOKS):
                    now = demand(db, folder.declared)
                    if now.backlog:
                        self.log.info("%d cells wait for the observers of %s", now.backlog, folder.name)
                        return False
                    if look + 1 < LOOKS:
                        time.sleep(0.1)
        return True

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Finish the task, or fail it with the error of the trigger's event."""
        if event.get("error"):
            raise AirflowFailException(str(event["error"]))
        self.chain_name = str(event.get("chain", ""))
        self.log.info("no cell waits for the observers of %s", self.chain_name)

    def _folder(self) -> ChainFolder:
        found = ChainFolder.of_task(self, self.chain)
        self.chain_name = found.name
        return found
