"""Triggers: when a chain has something to do, and when it has nothing left.

They look at `percolator_core.admin.demand`, which is a state, not a message: nothing is missed while a
triggerer is away, and a burst of a million notifications is one event. What they are made with is stored in
Airflow's database, so it names the connection and holds nothing of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from percolator_airflow.chains import ChainFolder, stamps
from percolator_airflow.connection import DEFAULT_CONN_ID
from percolator_airflow.hook import PercolatorHook
from percolator_core.admin.demand import Demand, demand
from percolator_core.database import connect
from percolator_core.errors import ConfigurationError, PercolatorError

if TYPE_CHECKING:
    from percolator_core.database import Database

_PATIENCE: Final = 2.0
"""Seconds for which a look waits for a silent store: threads are few, and other triggers need them too."""

_PAUSE: Final = 5.0
"""Seconds until a store that was away, or a connection that was wrong, is tried again."""

_REMINDER: Final = 300.0
"""Seconds between two lines in the log about the same trouble."""

_NEW_LOOK: Final = 10.0
"""Seconds between two looks whether the chain's files have changed: triggers live for months."""

_NEW_CONNECTION: Final = 60.0
"""Seconds between two looks whether the connection has changed: the store that it named may still answer."""


@dataclass(slots=True)
class ChainWatch:
    """One chain in one store, looked at again and again by a connection that is kept open.

    Each look is made in a thread, so that the triggerer's event loop goes on.
    """

    path: str
    conn_id: str
    namespace: str | None
    _folder: ChainFolder | None = None
    _files: frozenset[tuple[str, int]] = frozenset()
    _read_at: float = 0.0
    _db: Database | None = None
    _arguments: dict[str, Any] = field(default_factory=dict, repr=False)
    _asked_at: float = 0.0
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def look(self) -> tuple[str, Demand]:
        """The chain's name, and how it is now.

        Raises:
            ConfigurationError: the chain or the connection cannot be.
            StoreUnavailable: the store does not answer.
        """
        async with self._busy:
            folder = await asyncio.to_thread(self._chain)
            if self._db is None or time.monotonic() - self._asked_at >= _NEW_CONNECTION:
                await self._connect(folder)
            assert self._db is not None
            return folder.name, await asyncio.to_thread(demand, self._db, folder.declared)

    async def _connect(self, folder: ChainFolder) -> None:
        """Open the connection as it is now, unless it is open."""
        hook = PercolatorHook(self.conn_id, self.namespace or None, default_namespace=folder.name)
        arguments = await hook.aarguments()
        arguments["patience"] = min(arguments.get("patience", _PATIENCE), _PATIENCE)
        if arguments != self._arguments:
            await self._leave()
        self._arguments, self._asked_at = arguments, time.monotonic()
        if self._db is None:
            self._db = await asyncio.to_thread(lambda: connect(**arguments))

    async def close(self) -> None:
        """Close the connection; the next look opens another one."""
        async with self._busy:
            await self._leave()

    async def _leave(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            await asyncio.to_thread(db.close)

    def _chain(self) -> ChainFolder:
        now = time.monotonic()
        if self._folder is None or now - self._read_at >= _NEW_LOOK:
            files = stamps(Path(self.path))
            if self._folder is None or files != self._files:
                self._folder, self._files = ChainFolder.of(self.path), files
            self._read_at = now
        return self._folder


class _ChainTrigger(BaseTrigger):
    """What both triggers share."""

    def __init__(self, chain: str, conn_id: str = DEFAULT_CONN_ID, namespace: str | None = None) -> None:
        super().__init__()
        self.chain = chain
        self.conn_id = conn_id
        self.namespace = namespace
        self._watch = ChainWatch(chain, conn_id, namespace)
        self._told_at: dict[str, float] = {}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """How Airflow makes it again: by its class and its arguments."""
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}", {
            "chain": self.chain,
            "conn_id": self.conn_id,
            "namespace": self.namespace,
            **self._numbers(),
        }

    def _numbers(self) -> dict[str, float]:
        raise NotImplementedError

    async def cleanup(self) -> None:
        """Close the connection."""
        await self._watch.close()

    async def _trouble(self, error: Exception) -> None:
        """Says what is wrong, not too often, and waits; the connection is read anew afterwards."""
        now, text = time.monotonic(), str(error)
        if not isinstance(error, PercolatorError | OSError):
            text = f"{type(error).__name__}: {text}"
        if now - self._told_at.get(text, float("-inf")) >= _REMINDER:
            self._told_at = {text: now}
            self.log.warning("%s: tried again every %g seconds", text, _PAUSE)
        with suppress(Exception):  # the store may be away for that, too
            await self._watch.close()
        await asyncio.sleep(_PAUSE)

    def _well(self) -> None:
        if self._told_at:
            self._told_at = {}
            self.log.info("the store of %s answers again", self.chain)


class DirtyTrigger(_ChainTrigger, BaseEventTrigger):
    """An event when a chain has cells to observe and nobody is at it.

    There is one when cells become due that no continuous worker takes, and again every ``remind`` seconds
    while there are such and no drain is alive either: never one a notification. Trouble with the store, the
    connection or the chain is waited for, with a line in the log, and never ends it. The event is a mapping:
    the ``chain``'s name, ``backlog``, ``due``, and ``oldest``, in seconds.

    Args:
        chain: the chain's folder, on the triggerer's machine, too.
        conn_id: the connection.
        namespace: when None, the one in the connection's extra, else the chain's name.
        poll: seconds between two looks.
        settle: seconds between the first sight and the event, in which a burst grows to its full size.
        remind: seconds.
    """

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

    def _numbers(self) -> dict[str, float]:
        return {"poll": self.poll, "settle": self.settle, "remind": self.remind}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Never ends by itself."""
        edges = Edges(self.remind)
        while True:
            try:
                name, now = await self._watch.look()
                self._well()
                if edges.wants_event(now, time.monotonic()):
                    await asyncio.sleep(self.settle)
                    name, now = await self._watch.look()
                    # Somebody may have come meanwhile, such as the drain of the event before.
                    if edges.wants_event(now, time.monotonic()):
                        edges.sent(time.monotonic())
                        yield TriggerEvent(event_of(name, now))
            except Exception as error:  # noqa: BLE001 - Airflow starts no watcher again that has ended
                await self._trouble(error)
            else:
                await asyncio.sleep(self.poll)


@dataclass(slots=True)
class Edges:
    """When an event is due: levels in, edges out."""

    remind: float
    _armed: bool = True
    _sent_at: float = float("-inf")

    def wants_event(self, now: Demand, clock: float) -> bool:
        """Whether to send one, by this look. ``clock`` is monotonic, in seconds."""
        if now.backlog == 0 or (now.unattended == 0 and now.drains == 0):
            # With a drain alive, cells that are leased or wait for a retry are its own: it is not over yet.
            self._armed = True
        if now.unattended == 0 or now.drains:
            return False
        return self._armed or clock - self._sent_at >= self.remind

    def sent(self, clock: float) -> None:
        """An event was sent."""
        self._armed = False
        self._sent_at = clock


class IdleTrigger(_ChainTrigger):
    """One event, when nothing is left for a chain's observers.

    A store that is away is waited for. A connection or a chain that cannot be ends it with an event that has
    an ``error``.

    Args:
        chain, conn_id, namespace: as of `DirtyTrigger`.
        poll: seconds between two looks.
    """

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

    def _numbers(self) -> dict[str, float]:
        return {"poll": self.poll}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ends with its event."""
        looks = 0
        while looks < LOOKS:
            try:
                name, now = await self._watch.look()
                self._well()
            except ConfigurationError as error:
                yield TriggerEvent({"error": str(error)})
                return
            except (PercolatorError, OSError) as error:
                looks = 0
                await self._trouble(error)
                continue
            looks = looks + 1 if now.backlog == 0 else 0
            if looks == LOOKS:
                yield TriggerEvent(event_of(name, now))
                return
            await asyncio.sleep(self.poll if looks == 0 else min(self.poll, 0.2))


LOOKS: Final = 2
"""Looks in a row that find nothing: in a loop of observers a mark may move behind one of them."""


def event_of(name: str, now: Demand) -> dict[str, Any]:
    """What an event tells: no more than numbers, for it is stored and shown."""
    return {"chain": name, "backlog": now.backlog, "due": now.due, "oldest": now.oldest}


def _check(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            raise ValueError(f"{name} is a number of seconds above 0, not {number!r}")
