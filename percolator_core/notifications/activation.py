"""The active set: for which observers writers leave marks, and the workers that run them (section 2.4).

The tablets know the observers of their columns, and the namespace knows the digest of the chain that was
activated last. A worker *registers*; one with another chain refuses to start while it lives, so that no mark
waits for an observer that nobody runs. A *rolling* start is let in beside the others: until the last of those
has gone, marks are left for the observers of both chains.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from percolator_core.errors import ConfigurationError
from percolator_core.evolution import Evolution
from percolator_core.notifications.counts import Counted, Tally

if TYPE_CHECKING:
    from percolator_core.catalog import Entry
    from percolator_core.client import Client
    from percolator_core.database import Database
    from percolator_core.store.packing import Command


_LONGEST: Final = 10.0
"""Seconds that an activation may take before another one no longer waits for it."""

_PAUSE: Final = 0.02


class Active(NamedTuple):
    """The chain that was activated last, by its digest, and those that still run beside it."""

    digest: str
    beside: frozenset[str]

    def allows(self, digest: str) -> bool:
        """Whether workers with that chain may go on."""
        return digest == self.digest or digest in self.beside


def active(client: Client) -> Active:
    """The active chain; its digest is empty where none ever was."""
    store = client.store
    digest, beside = store.one((b"HMGET", store.keyspace.chain, b"digest", b"beside"))
    others = (beside or b"").decode().split(",")
    return Active((digest or b"").decode(), frozenset(others) - {""})


def activate(
    db: Database,
    observed: Mapping[tuple[str, str], Sequence[str]],
    digest: str,
    *,
    rolling: bool = False,
) -> None:
    """Register a chain's observers in every tablet, so that writers leave marks for them.

    ``rolling`` lets workers of other chains go on meanwhile, and keeps what they observe registered; the
    first activation after the last of them has gone takes that back (`Worker` sees to it).

    Raises:
        ConfigurationError: workers of another chain are alive, and this is no rolling start.
    """
    with _one_at_a_time(db):
        _activate(db, observed, digest, rolling=rolling)


def _activate(
    db: Database, observed: Mapping[tuple[str, str], Sequence[str]], digest: str, *, rolling: bool
) -> None:
    strangers = [worker for worker in live_workers(db) if worker.digest != digest]
    others = sorted({worker.digest for worker in strangers})
    if others and not rolling:
        raise ConfigurationError(
            f"a worker with another set of observers is running ({strangers[0].where}): stop it first, start "
            "this one as a rolling one, which runs beside it, or use another namespace"
        )
    names = {name for observers in observed.values() for name in observers}
    known = db.active_observers()
    retired = [] if others else sorted(known - names)
    store = db.store
    # Once more if a table was changed meanwhile: it may have tablets that were not told.
    before = None
    while before != (tables := [(entry.raw, entry.definition) for entry in _entries(db)]):
        before = tables
        commands: list[Command] = []
        for _, definition in tables:
            handle = db.catalog.table(definition.name)
            pairs: list[bytes | str] = []
            for (table, column), observers in sorted(observed.items()):
                if table == definition.name:
                    pairs += (handle.encode(column), ",".join(observers))
            how = "add" if others else "replace"
            commands.extend(
                store.script("observe", [tag], how, len(retired), *retired, *pairs) for tag in handle.tags
            )
        store.call(*commands)
    # The chain's record goes last: an activation that breaks off is repeated by the next worker.
    record = {
        "digest": digest,
        "observers": ",".join(sorted(names | known if others else names)),
        "beside": ",".join(others),
    }
    fields = [text for pair in record.items() for text in pair]
    store.one((b"HSET", store.keyspace.chain, *fields))


def _entries(db: Database) -> list[Entry]:
    """The tables as they are when no change of one is under way."""
    while any(entry.pending for entry in db.catalog.entries()):
        Evolution(db.client).finish_all()
    return db.catalog.entries()


@contextmanager
def _one_at_a_time(db: Database) -> Iterator[None]:
    """Wait while another activation is under way.

    One that replaces what a tablet has registered, since it saw no worker of another chain, would otherwise
    take back what a rolling start adds at the same time: that one's observers would be active, and no write
    would leave a mark for them.
    """
    store, key, mine = db.store, db.store.keyspace.activating, uuid.uuid4().hex.encode()
    milliseconds = int(_LONGEST * 1000)
    # Whose reply is lost asks again, is refused by itself, and finds its own name there.
    while store.call((b"SET", key, mine, b"NX", b"PX", milliseconds), (b"GET", key))[1] != mine:
        store.sleep(_PAUSE)
    began = time.monotonic()
    try:
        yield
    finally:
        if time.monotonic() - began < _LONGEST / 2:  # later it may be somebody else's
            store.one((b"DEL", key))


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker that is registered and whose liveness token stands. ``since`` is in microseconds.

    ``until_idle`` tells a drain, which ends when nothing is left, from one that runs until it is stopped.
    ``observers`` are those whose cells it takes, in order of names; None where it takes all of its chain.
    """

    owner: str
    digest: str
    where: str
    since: int
    name: str
    until_idle: bool = False
    observers: tuple[str, ...] | None = None


def live_workers(db: Database) -> list[LiveWorker]:
    """The workers of this namespace that are alive, by name; forgets the others."""
    store = db.store
    command = workers_command(db)
    flat = store.one(command)
    asked = liveness_commands(db, flat)
    alive = store.call(*asked) if asked else []
    dead = [name for name, lives in zip(flat[0::2], alive, strict=True) if not lives]
    if dead:
        store.one((b"HDEL", command[1], *dead))
    return living(flat, alive)


def workers_command(db: Database) -> Command:
    """Asks who is registered; the reply is for `liveness_commands` and `living`."""
    return (b"HGETALL", _workers_key(db))


def liveness_commands(db: Database, registered: Sequence[bytes]) -> list[Command]:
    """Ask of each who is registered whether its token stands."""
    return [(b"EXISTS", db.client.token_of(_owner_of(name))) for name in registered[0::2]]


def living(registered: Sequence[bytes], alive: Sequence[int]) -> list[LiveWorker]:
    """The workers whose tokens stand, by name."""
    found = zip(registered[0::2], registered[1::2], alive, strict=True)
    return sorted(
        (_live_worker(name, record) for name, record, lives in found if lives),
        key=lambda worker: worker.name,
    )


def _live_worker(name: bytes, packed: bytes) -> LiveWorker:
    record = json.loads(packed)
    observers = record.get("observers")
    return LiveWorker(
        owner=_owner_of(name).decode(),
        digest=record["digest"],
        where=record["where"],
        since=record["since"],
        name=name.decode(),
        until_idle=record.get("until_idle", False),
        observers=None if observers is None else tuple(observers),
    )


class Registration:
    """The announcement of one worker: its own for each, also where several share a database connection."""

    def __init__(
        self,
        db: Database,
        digest: str,
        where: str,
        *,
        until_idle: bool = False,
        observers: Collection[str] | None = None,
        counts: Mapping[str, Counted] | None = None,
    ) -> None:
        """``until_idle`` and ``observers`` are as of `LiveWorker`; ``counts`` are told along with it."""
        self._db = db
        self._tally = Tally(db.store, counts or {})
        self.name = db.client.owner().decode() + ":" + uuid.uuid4().hex[:8]
        self.observers = None if observers is None else tuple(sorted(observers))
        record = {"digest": digest, "where": where, "since": db.timestamp()}
        # Left out where they say nothing: versions before these were there cannot read them.
        if until_idle:
            record["until_idle"] = True
        if self.observers is not None:
            record["observers"] = self.observers
        self._record = json.dumps(record)
        self.refresh()

    def refresh(self) -> None:
        """Announce it again: a worker that was suspended for long may have been taken for dead."""
        self._tally.send_along((b"HSET", _workers_key(self._db), self.name, self._record))

    def withdraw(self) -> None:
        """Take the announcement back, and tell the last counts."""
        self._tally.send_along((b"HDEL", _workers_key(self._db), self.name))


def _workers_key(db: Database) -> bytes:
    return db.store.keyspace.prefix + b"workers"


def _owner_of(name: bytes) -> bytes:
    return name.partition(b":")[0]
