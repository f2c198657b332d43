"""Triggers: fire when a chain has pending work, or when it is idle.

They poll `percolator_core.admin.demand`, which is a state, not a message. So a triggerer that was down misses
nothing, and a burst of a million notifications is one event. Airflow stores a trigger's arguments in its
database, so they contain the id of the connection and none of its fields.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from percolator_airflow.chains import ChainFolder
from percolator_airflow.connection import DEFAULT_CONN_ID
from percolator_airflow.hook import PercolatorHook
from percolator_core.admin.demand import Demand, demand
from percolator_core.database import connect
from percolator_core.errors import ConfigurationError, PercolatorError
from percolator_core.observers.stamps import stamps

if TYPE_CHECKING:
    from percolator_core.database import Database

_PATIENCE: Final = 2.0
"""Seconds for which a check waits for the store. This is short, because all triggers share few threads."""

_PAUSE: Final = 5.0
"""Seconds between an error and the next check."""

_REMINDER: Final = 300.0
"""Seconds between two log lines about the same error."""

RELOAD: Final = 10.0
"""Seconds after which the chain's files are checked for changes again, because triggers live for months."""

RECONNECT: Final = 60.0
"""Seconds after which the connection is read again: it may have changed while the old store still answers."""


@dataclass(slots=True)
class ChainWatch:
    """Check one chain in one store again and again over one open connection.

    Each check runs in a thread, so that it does not block the triggerer's event loop.
    """

    path: str
    conn_id: str
    namespace: str | None
    folder: ChainFolder | None = None
    _files: frozenset[tuple[str, int]] = frozenset()
    _read_at: float = 0.0
    db: Database | None = None
    _arguments: dict[str, Any] = field(default_factory=dict, repr=False)
    _connected_at: float = 0.0
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def look(self) -> tuple[str, Demand]:
        """Return the chain's name and its demand.

        Raises:
            ConfigurationError: the chain or the connection is invalid.
            StoreUnavailable: the store does not answer.
        """
        async with self._busy:
            folder = await asyncio.to_thread(self._chain)
            if self.db is None or time.monotonic() - self._connected_at >= RECONNECT:
                await self._connect(folder)
            assert self.db is not None
            return folder.name, await asyncio.to_thread(demand, self.db, folder.declared)

    async def _connect(self, folder: ChainFolder) -> None:
        """Read the connection, and open it if it is not open or has changed."""
        hook = PercolatorHook(self.conn_id, self.namespace or None, default_namespace=folder.name)
        arguments = await hook.aarguments()
        arguments["patience"] = min(arguments.get("patience", _PATIENCE), _PATIENCE)
        if arguments != self._arguments:
            await self._disconnect()
        self._arguments, self._connected_at = arguments, time.monotonic()
        if self.db is None:
            self.db = await asyncio.to_thread(lambda: connect(**arguments))

    async def close(self) -> None:
        """Close the connection; the next check opens another one."""
        async with self._busy:
            await self._disconnect()

    async def _disconnect(self) -> None:
        db, self.db = self.db, None
        if db is not None:
            await asyncio.to_thread(db.close)

    def _chain(self) -> ChainFolder:
        now = time.monotonic()
        if self.folder is None or now - self._read_at >= RELOAD:
            files = stamps(Path(self.path))
            if self.folder is None or files != self._files:
                self.folder, self._files = ChainFolder.of(self.path), files
            self._read_at = now
        return self.folder


class _ChainTrigger(BaseTrigger):
    """The common part of the two triggers. ``_numbers`` are the names of further arguments."""

    _numbers: ClassVar[tuple[str, ...]]

    def __init__(self, chain: str, conn_id: str = DEFAULT_CONN_ID, namespace: str | None = None) -> None:
        super().__init__()
        self.chain = chain
        self.conn_id = conn_id
        self.namespace = namespace
        self._watch = ChainWatch(chain, conn_id, namespace)
        self._logged_at: dict[str, float] = {}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments, from which Airflow creates the trigger again."""
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}", {
            "chain": self.chain,
            "conn_id": self.conn_id,
            "namespace": self.namespace,
            **{name: getattr(self, name) for name in self._numbers},
        }

    async def cleanup(self) -> None:
        """Close the connection."""
        await self._watch.close()

    async def _pause(self, error: Exception) -> None:
        """Log the error, but not too often, and wait; the next check reads the connection again."""
        now, text = time.monotonic(), str(error)
        if not isinstance(error, PercolatorError | OSError):
            text = f"{type(error).__name__}: {text}"
        if now - self._logged_at.get(text, float("-inf")) >= _REMINDER:
            self._logged_at = {text: now}
            self.log.warning("%s: retried every %g seconds", text, _PAUSE)
        with suppress(Exception):  # closing may fail, too, while the store is unavailable
            await self._watch.close()
        await asyncio.sleep(_PAUSE)

    def _recovered(self) -> None:
        if self._logged_at:
            self._logged_at = {}
            self.log.info("the store of %s answers again", self.chain)


class DirtyTrigger(_ChainTrigger, BaseEventTrigger):
    """Fire an event while a chain has due cells that no worker and no drain takes.

    The first event comes when cells become due and no continuous worker observes them. Further events come
    every ``remind`` seconds while such cells are left and no drain is alive. An error of the store, the
    connection or the chain is logged, and the trigger tries again; it never ends. The event is a mapping of
    ``chain`` (the name), ``backlog``, ``due`` and ``oldest`` (seconds).

    Args:
        chain: the chain's folder; the triggerer's machine needs it, too.
        conn_id: the connection.
        namespace: None means the namespace of the connection, or else the chain's name.
        poll: seconds between two checks.
        settle: seconds from the first due cell to the event, so that one event covers a whole burst.
        remind: seconds between two events for the same cells.
    """

    _numbers = ("poll", "settle", "remind")

    def __init__(
        self,
        chain: str,
        conn_id: str = DEFAULT_CONN_ID,
        namespace: str | None = None,
        *,
        poll: float = 0.5,
        settle: float = 0.2,
        remind: float = 30.0,
    ) -> None:
        super().__init__(chain, conn_id, namespace)
        _check(poll=poll, remind=remind)
        self.poll = poll
        self.settle = settle
        self.remind = remind

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield events, without end."""
        edges = Edges(self.remind)
        while True:
            try:
                name, now = await self._watch.look()
                self._recovered()
                if edges.wants_event(now, time.monotonic()):
                    await asyncio.sleep(self.settle)
                    name, now = await self._watch.look()
                    # A worker or a drain may have started in the meantime.
                    if edges.wants_event(now, time.monotonic()):
                        edges.sent(time.monotonic())
                        yield TriggerEvent(event_of(name, now))
            except Exception as error:  # noqa: BLE001 - Airflow does not restart a watcher that has ended
                await self._pause(error)
            else:
                await asyncio.sleep(self.poll)


@dataclass(slots=True)
class Edges:
    """Decide when an event is due: once when work becomes pending, then every ``remind`` seconds."""

    remind: float
    _armed: bool = True
    _sent_at: float = float("-inf")

    def wants_event(self, now: Demand, clock: float) -> bool:
        """Return True if an event is due. ``clock`` is monotonic, in seconds."""
        if now.backlog == 0 or (now.unattended == 0 and now.drains == 0):
            # While a drain is alive, leased cells and retries belong to it, so the work is not finished.
            self._armed = True
        if now.unattended == 0 or now.drains:
            return False
        return self._armed or clock - self._sent_at >= self.remind

    def sent(self, clock: float) -> None:
        """Record that an event was sent."""
        self._armed = False
        self._sent_at = clock


class IdleTrigger(_ChainTrigger):
    """Fire one event when no cell waits for a chain's observers.

    While the store is unavailable, the trigger tries again. If the connection or the chain is invalid, the
    event has an ``error``.

    Args:
        chain, conn_id, namespace: see `DirtyTrigger`.
        poll: seconds between two checks.
    """

    _numbers = ("poll",)

    def __init__(
        self,
        chain: str,
        conn_id: str = DEFAULT_CONN_ID,
        namespace: str | None = None,
        *,
        poll: float = 1.0,
    ) -> None:
        super().__init__(chain, conn_id, namespace)
        _check(poll=poll)
        self.poll = poll

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the event and end."""
        looks = 0
        while looks < LOOKS:
            try:
                name, now = await self._watch.look()
                self._recovered()
            except ConfigurationError as error:
                yield TriggerEvent({"error": str(error)})
                return
            except (PercolatorError, OSError) as error:
                looks = 0
                await self._pause(error)
                continue
            looks = looks + 1 if now.backlog == 0 else 0
            if looks == LOOKS:
                yield TriggerEvent(event_of(name, now))
                return
            await asyncio.sleep(self.poll if looks == 0 else min(self.poll, 0.2))


LOOKS: Final = 2
"""Consecutive checks that must find no cell: in a loop of observers one check can miss a moving mark."""


def event_of(name: str, now: Demand) -> dict[str, Any]:
    """Return the event: the chain's name and numbers only, because Airflow stores and shows it."""
    return {"chain": name, "backlog": now.backlog, "due": now.due, "oldest": now.oldest}


def _check(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            raise ValueError(f"{name} is a number of seconds above 0, not {number!r}")
