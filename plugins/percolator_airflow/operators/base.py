"""The common part of the operators: connection, chain, an orderly end after a kill, and arguments.

Airflow passes arguments as Python values, as JSON, or as the text of a template.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException

from percolator_airflow.chains import ChainFolder
from percolator_airflow.connection import DEFAULT_CONN_ID
from percolator_airflow.hook import PercolatorHook, plain_failures
from percolator_airflow.links import ChainLink, QuarantineLink
from percolator_core.errors import ConfigurationError

if TYPE_CHECKING:
    from os import PathLike

    from percolator_core.database import Database

LOG_INTERVAL: Final = 15.0
"""Seconds between two log lines about a task's progress."""


class LogInterval:
    """Limit the log lines about a task's progress to one every `LOG_INTERVAL` seconds."""

    def __init__(self) -> None:
        self._logged = time.monotonic()

    def __call__(self) -> bool:
        """Return True if a line is due, and start the next interval."""
        now = time.monotonic()
        if now - self._logged < LOG_INTERVAL:
            return False
        self._logged = now
        return True


class StoreOperator(BaseOperator):
    """A task that works on a store.

    Args:
        chain: the chain's folder, relative to the DAG file's folder.
        project: the folder from which the chain's functions are imported; None finds it by their modules.
        conn_id: the connection, of the type ``percolator``.
        namespace: None means the namespace of the connection, or else the chain's name, or else ``default``.
    """

    template_fields: Sequence[str] = ("chain", "project", "conn_id", "namespace")
    operator_extra_links = (ChainLink(), QuarantineLink())
    ui_color: ClassVar[str] = "#dcebf5"

    def __init__(
        self,
        *,
        chain: str | PathLike[str] | None = None,
        project: str | PathLike[str] | None = None,
        conn_id: str = DEFAULT_CONN_ID,
        namespace: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.chain = None if chain is None else os.fspath(chain)
        self.project = None if project is None else os.fspath(project)
        self.conn_id = conn_id
        self.namespace = namespace
        self.chain_name = ""
        self._killed = False
        self._stop: Callable[[], object] | None = None
        self._interruptible = False

    def folder(self) -> ChainFolder:
        """Read the chain without its code. Raises ConfigurationError, with a line for each mistake."""
        assert self.chain is not None, "operators that need a chain have it as a required argument"
        found = ChainFolder.of_task(self, self.chain, self.project)
        self.chain_name = found.name
        return found

    def hook(self) -> PercolatorHook:
        """Return the hook. After a call of `folder`, its default namespace is the chain's name."""
        return PercolatorHook(
            self.conn_id, self.namespace or None, default_namespace=self.chain_name or "default"
        )

    @contextmanager
    def guarded(self, carry_on: str) -> Iterator[None]:
        """Turn errors of the block into Airflow's errors, and end a killed task with a message.

        The block has to contain all work of the task. ``carry_on`` is the end of the message if the task is
        killed.
        """
        self._interruptible = True
        try:
            with plain_failures():
                yield
        except KeyboardInterrupt:
            if not self._killed:
                raise
            raise AirflowException(f"the task was killed: {carry_on}") from None
        finally:
            self._interruptible = False
            self._stop = None
        if self._killed:
            raise AirflowException(f"the task was killed: {carry_on}")

    @contextmanager
    def database(self, carry_on: str) -> Iterator[Database]:
        """Open the database for the whole task; ``carry_on``: see `guarded`."""
        with self.guarded(carry_on):
            if self.chain:
                self.folder()
            with self.hook().get_conn() as db:
                try:
                    yield db
                except ValueError as error:  # an argument that the library refuses
                    raise ConfigurationError(str(error)) from None

    @contextmanager
    def stopping_by(self, stop: Callable[[], object]) -> Iterator[None]:
        """While this block runs, a kill calls ``stop``, which makes the block end."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None

    def on_kill(self) -> None:
        """Stop the task; Airflow calls this method in its handler of SIGTERM, in the main thread.

        If the task waits for Spark, the wait is interrupted as by Ctrl-C, and this stops Spark. Spark's tasks
        notice the end of their driver, and finish the runs that are under way.
        """
        if not self._interruptible:
            return
        self._killed = True
        if self._stop is not None:
            self._stop()
        else:
            raise KeyboardInterrupt


def seconds(name: str, value: Any) -> float:
    """Read a number of seconds, 0 or more. Raises ConfigurationError for any other value."""
    try:
        number = float(value) if not isinstance(value, bool) else -1.0
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < 1e9:
        raise ConfigurationError(f"{name} is a number of seconds, 0 or more, not {value!r}")
    return number


def count(name: str, value: Any) -> int:
    """Read a whole number, 0 or more. Raises ConfigurationError for any other value."""
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if number < 0:
        raise ConfigurationError(f"{name} is a whole number, 0 or more, not {value!r}")
    return number


def is_nothing(value: Any) -> bool:
    """Return True if the argument was left out; a template turns None into text."""
    return value is None or value in ("", "None")
