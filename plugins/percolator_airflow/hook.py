"""The hook: from the id of a connection to a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import amask_secret, mask_secret

from percolator_airflow.connection import CONN_TYPE, DEFAULT_CONN_ID, StoreConnection, store_connection
from percolator_core.database import connect
from percolator_core.errors import ConfigurationError, PercolatorError

if TYPE_CHECKING:
    from percolator_core.database import Database

_LOOK_PATIENCE: Final = 3.0
"""Seconds after which somebody who tests a connection is told that the store does not answer."""


class PercolatorHook(BaseHook):
    """Databases of the stores that connections of the type ``percolator`` name.

    Args:
        conn_id: the connection.
        namespace: of the tables. When None, the one in the connection's extra, else ``default_namespace``.
        default_namespace: operators give the chain's name.
    """

    conn_name_attr = "conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = CONN_TYPE
    hook_name = "Percolator"

    def __init__(
        self,
        conn_id: str = DEFAULT_CONN_ID,
        namespace: str | None = None,
        *,
        default_namespace: str = "default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.conn_id = conn_id
        self.namespace = namespace
        self.default_namespace = default_namespace

    def store(self) -> StoreConnection:
        """What the connection says; its secrets are masked in logs from now on.

        Raises:
            ConfigurationError: there is no such connection, or something in it cannot be.
        """
        try:
            found = self.get_connection(self.conn_id)
        except AirflowNotFoundException:
            found = None
        if found is None:
            raise self._missing()
        read = store_connection(found)
        for secret in read.secrets:
            mask_secret(secret)
        return read

    async def astore(self) -> StoreConnection:
        """As `store`, in the triggerer's event loop."""
        try:
            found = await self.aget_connection(self.conn_id)
        except AirflowNotFoundException:
            found = None
        if found is None:
            raise self._missing()
        read = store_connection(found)
        for secret in read.secrets:
            await amask_secret(secret)
        return read

    def arguments(self) -> dict[str, Any]:
        """The arguments of `percolator_core.connect`; the URL has its password, and is shown without it."""
        return self.store().arguments(self.namespace, self.default_namespace)

    async def aarguments(self) -> dict[str, Any]:
        """As `arguments`, in the triggerer's event loop."""
        return (await self.astore()).arguments(self.namespace, self.default_namespace)

    def get_conn(self) -> Database:
        """A new database; close it, or use it as a context manager.

        Raises:
            ConfigurationError: there is no such connection, or it cannot be used; no retry mends it.
            StoreUnavailable: nothing answers there, which is told within seconds.
        """
        return connect(**self.arguments())

    def test_connection(self) -> tuple[bool, str]:
        """Whether the store answers, and a sentence about it, for Airflow's button *Test*."""
        try:
            arguments = self.arguments()
            arguments["patience"] = min(arguments.get("patience", _LOOK_PATIENCE), _LOOK_PATIENCE)
            with connect(**arguments) as db:
                version = db.store.server_info().version
                return True, f"Redis {version} at {db.url} answers; the namespace is {db.namespace!r}"
        except PercolatorError as error:
            return False, str(error)

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """How Airflow's form for connections shows the fields; provider.py says the same for today's."""
        from percolator_airflow.provider import FIELD_BEHAVIOUR

        return {name.replace("-", "_"): value for name, value in FIELD_BEHAVIOUR.items()}

    def _missing(self) -> ConfigurationError:
        return ConfigurationError(
            f"there is no connection {self.conn_id!r}: add one of the type percolator under Admin, "
            f"Connections, or set AIRFLOW_CONN_{self.conn_id.upper()}"
        )
