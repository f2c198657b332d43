"""What the operators have in common: a connection, a namespace, a chain, and how they end when killed."""

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
from percolator_airflow.failures import plain_failures
from percolator_airflow.hook import PercolatorHook
from percolator_airflow.links import ChainLink, QuarantineLink

if TYPE_CHECKING:
    from os import PathLike


SAY: Final = 15.0
"""Seconds between two lines in the log about how far a task is."""


class Seldom:
    """Asked as often as there is news, is true as often as somebody wants to read it: every `SAY` seconds."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def __call__(self) -> bool:
        """Whether to say it now."""
        now = time.monotonic()
        if now - self._said < SAY:
            return False
        self._said = now
        return True


class StoreOperator(BaseOperator):
    """A task that works on a store.

    Args:
        chain: the chain's folder; a relative one is looked for from the DAG file's folder.
        project: the folder that the chain's functions are imported from; found by itself when None.
        conn_id: the connection, of the type ``percolator``.
        namespace: when None, the one in the connection's extra, else the chain's name, else ``default``.
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
        """The chain, without its code; raises ConfigurationError with all that is wrong with it."""
        assert self.chain is not None, "the operators that need a chain ask for it"
        found = ChainFolder.of_task(self, self.chain, self.project)
        self.chain_name = found.name
        return found

    def hook(self) -> PercolatorHook:
        """The hook of the connection; of the chain's namespace once `folder` was called."""
        return PercolatorHook(
            self.conn_id, self.namespace or None, default_namespace=self.chain_name or "default"
        )

    @contextmanager
    def guarded(self, carry_on: str) -> Iterator[None]:
        """Around all that the task does: errors become sentences, and a kill ends it in order.

        ``carry_on`` ends the sentence of a task that was killed.
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
    def stopping_by(self, stop: Callable[[], object]) -> Iterator[None]:
        """A part that ends by itself, in order, once ``stop`` was called; so a kill ends it."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None

    def on_kill(self) -> None:
        """Airflow calls it from its handler of SIGTERM, in the main thread, and the task goes on after it.

        Whoever waits there for Spark is interrupted, as by Ctrl-C: that takes the tasks' driver away from
        them, on which they finish the runs under way, and it stops Spark.
        """
        if not self._interruptible:
            return
        self._killed = True
        if self._stop is not None:
            self._stop()
        else:
            raise KeyboardInterrupt
