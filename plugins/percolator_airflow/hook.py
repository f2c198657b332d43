"""The hook: open the database of a connection; and errors of the library as errors of Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowNotFoundException
from airflow.sdk.log import amask_secret, mask_secret

from percolator_airflow.connection import (
    CONN_TYPE,
    DEFAULT_CONN_ID,
    AirflowConnection,
    StoreConnection,
    store_connection,
)
from percolator_core.database import connect
from percolator_core.errors import ConfigurationError, PercolatorError, UnknownColumn, UnknownTable

if TYPE_CHECKING:
    from percolator_core.database import Database

_FINAL: Final = (ConfigurationError, UnknownColumn, UnknownTable)
"""Errors that a retry cannot fix: a person has to correct something."""

_LOOK_PATIENCE: Final = 3.0
"""Seconds after which a test of a connection reports that the store does not answer."""


class PercolatorHook(BaseHook):
    """Open the store of a connection of the type ``percolator``.

    Args:
        conn_id: the connection.
        namespace: the namespace of the tables. None means the namespace of the connection or, if the
            connection has none, ``default_namespace``.
        default_namespace: see ``namespace``; operators pass the chain's name.
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
        """Read the connection, and mask its secrets in logs from now on.

        Raises:
            ConfigurationError: the connection does not exist, or a field of it is invalid.
        """
        try:
            read = self._read(self.get_connection(self.conn_id))
        except AirflowNotFoundException:
            read = self._read(None)
        for secret in read.secrets:
            mask_secret(secret)
        return read

    async def astore(self) -> StoreConnection:
        """Read the connection in the triggerer's event loop; see `store`."""
        try:
            read = self._read(await self.aget_connection(self.conn_id))
        except AirflowNotFoundException:
            read = self._read(None)
        for secret in read.secrets:
            await amask_secret(secret)
        return read

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `percolator_core.connect`; the ``repr`` of the URL has no password."""
        return self.store().arguments(self.namespace, self.default_namespace)

    async def aarguments(self) -> dict[str, Any]:
        """Return `arguments` in the triggerer's event loop."""
        return (await self.astore()).arguments(self.namespace, self.default_namespace)

    def get_conn(self) -> Database:
        """Open a new database; close it, or use it as a context manager.

        Raises:
            ConfigurationError: the connection does not exist or is invalid; a retry cannot succeed.
            StoreUnavailable: the store does not answer within seconds.
        """
        return connect(**self.arguments())

    def test_connection(self) -> tuple[bool, str]:
        """Return True if the store answers, and a sentence for Airflow's button *Test*."""
        try:
            arguments = self.arguments()
            arguments["patience"] = min(arguments.get("patience", _LOOK_PATIENCE), _LOOK_PATIENCE)
            with connect(**arguments) as db:
                version = db.store.server_info().version
                return True, f"Redis {version} at {db.url} answers; the namespace is {db.namespace!r}"
        except PercolatorError as error:
            return False, str(error)

    def _read(self, found: AirflowConnection | None) -> StoreConnection:
        if found is None:
            raise ConfigurationError(
                f"there is no connection {self.conn_id!r}: add one of the type percolator under Admin, "
                f"Connections, or set AIRFLOW_CONN_{self.conn_id.upper()}"
            )
        return store_connection(found)


@contextmanager
def plain_failures() -> Iterator[None]:
    """Turn errors of the library into Airflow's, without the library's traceback.

    Raises:
        AirflowFailException: the chain, the connection or a name is invalid; a retry cannot succeed.
        AirflowException: a retry may succeed, for example after the store was unavailable.
    """
    try:
        yield
    except _FINAL as error:
        raise AirflowFailException(str(error)) from None
    except PercolatorError as error:
        raise AirflowException(str(error)) from None
