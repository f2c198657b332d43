"""The active set: the observers for which writers set marks, and the workers that run them (section 2.4).

Each tablet stores the observers of its columns. The namespace stores the digest of the newest active chain. A
worker *registers* itself. While a registered worker lives, a worker of another chain refuses to start:
otherwise marks would wait for an observer that no worker runs. A *rolling* worker starts beside workers of
other chains. Until the other workers have ended, writers set marks for the observers of both chains.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from percolator_core.archive.backup import check_complete
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import ConfigurationError
from percolator_core.notifications.counts import Counted, Tally
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Call
from percolator_core.scripts.replies import Observed

if TYPE_CHECKING:
    from percolator_core.catalog.catalog import Entry
    from percolator_core.database import Database
    from percolator_core.store.packing import Command
    from percolator_core.transaction.client import Client


_LONGEST: Final = 10.0
"""Seconds until the lock of an activation expires, unless it is renewed."""

_PAUSE: Final = 0.02


class Active(NamedTuple):
    """The digest of the newest active chain, and the digests of other chains that may still run.

    While a chain other than the newest active one is being activated, ``digest`` is empty. During any
    activation, ``beside`` also has the digest of the chain to activate, if workers of that chain were allowed
    to run before.
    """

    digest: str
    beside: frozenset[str]

    def allows(self, digest: str) -> bool:
        """Return True if workers of the chain may continue."""
        return digest == self.digest or digest in self.beside


def active(client: Client) -> Active:
    """Read the active chain; ``digest`` is empty before the first activation, too."""
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

    With ``rolling``, workers of other chains continue. After they have ended, the next activation unregisters
    their observers (`percolator_core.worker.housekeeping`).

    Raises:
        ConfigurationError: workers of another chain are alive, and ``rolling`` is False; or the namespace is
            being restored.
    """
    while True:
        with suppress(_Overtaken), _one_at_a_time(db) as renew:
            return _activate(db, observed, _Turn(db.timestamp(), renew), digest, rolling=rolling)


class _Overtaken(Exception):
    """This activation took too long, and another one has begun. Start again from the beginning."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """A running activation.

    A later activation has a greater ``number``. The record of the active chains, and each tablet, refuse a
    request with a number below the greatest so far. ``renew`` extends the lock for which other activations
    wait.
    """

    number: int
    renew: Callable[[], None]

    def record(self, db: Database, **fields: str) -> None:
        """Write fields of the chain's record, durably. Raises _Overtaken."""
        store = db.store
        record = calls.record_chain(store.keyspace.chain, self.number, fields)
        if store.run_all([record], durably=True) == [False]:
            raise _Overtaken


def _activate(
    db: Database,
    observed: Mapping[tuple[str, str], Sequence[str]],
    turn: _Turn,
    digest: str,
    *,
    rolling: bool,
) -> None:
    check_complete(db.client)
    turn.record(db)  # from now on the record refuses writes of earlier activations
    strangers = [worker for worker in live_workers(db) if worker.digest != digest]
    others = sorted({worker.digest for worker in strangers})
    if others and not rolling:
        raise ConfigurationError(
            f"a worker with another set of observers is running ({strangers[0].where}): stop that worker, "
            "start this worker as a rolling one, or use another namespace"
        )
    before = active(db.client)
    # Chains that the record does not allow to run are left out of `others`. Writers may have set no marks for
    # such a chain, so its worker must not continue: the worker is about to be refused, or was suspended.
    others = [other for other in others if before.allows(other)]
    names = {name for observers in observed.values() for name in observers}
    known = db.active_observers()
    retired = [] if others else sorted(known - names)
    # If this activation stops halfway, a suspended worker may wake up. This worker may continue only if
    # writers have always set marks for its chain. They have set marks for each chain in `others`, and for the
    # new chain if it was allowed before.
    allowed = {*others, digest} if before.allows(digest) else others
    still = digest if before.digest == digest else ""
    # Write the record first, then list the tables. The creation of a table writes the catalog entry first,
    # then reads the record. So the creation reads this record, or the list has its table.
    everything = json.dumps(_merged(db.client.observed_columns() if others else {}, observed), sort_keys=True)
    turn.record(db, observed=everything, digest=still, beside=",".join(sorted(allowed)))
    how: Literal["replace", "add"] = "add" if others else "replace"
    while changed := _register_in_tablets(db, observed, how, retired, turn):
        # A concurrent schema change, or a failover that lost a part of one, caused the refusal.
        for name, version in changed:
            db.schema_changes.finish_or_repair(name, version)
    # The digest is written last: if this activation stops earlier, the next worker repeats the activation.
    observers = ",".join(sorted(names | known if others else names))
    turn.record(db, digest=digest, observers=observers, beside=",".join(others))


def _merged(
    recorded: Mapping[str, Mapping[str, Sequence[str]]],
    observed: Mapping[tuple[str, str], Sequence[str]],
) -> dict[str, dict[str, list[str]]]:
    """Merge the recorded observers of each column with those of a chain."""
    merged = {
        table: {column: list(names) for column, names in columns.items()}
        for table, columns in recorded.items()
    }
    for (table, column), observers in observed.items():
        names = merged.setdefault(table, {}).setdefault(column, [])
        names += [name for name in observers if name not in names]
    return merged


def _register_in_tablets(
    db: Database,
    observed: Mapping[tuple[str, str], Sequence[str]],
    how: Literal["replace", "add"],
    retired: Sequence[str],
    turn: _Turn,
) -> set[tuple[str, bytes]]:
    """Register observers in the tablets of all tables. Raises _Overtaken.

    Return the name and catalog version of each table for which a tablet refused that version.
    """
    store, by_table = db.store, _merged({}, observed)
    asked: list[tuple[str, bytes]] = []
    requests: list[Call[Observed]] = []
    for entry in settled_entries(db):
        handle = TableHandle(entry.definition, store, entry.writers_version)
        pairs: list[bytes | str] = []
        for column, observers in entry.definition.observers(by_table).items():
            pairs += (handle.encode(column), ",".join(observers))
        requests += [
            calls.observe(tag, how, handle.version, turn.number, retired, pairs) for tag in handle.tags
        ]
        asked += [(handle.name, handle.version)] * len(handle.tags)
    # The wait for schema changes may have taken longer than the activation lock lasts.
    turn.renew()
    # If a failover undid this write, later writes would set no marks. So the write is durable.
    replies = store.run_all(requests, durably=True)
    if "overtaken" in replies:
        raise _Overtaken
    return {table for table, reply in zip(asked, replies, strict=True) if reply == "changed"}


def settled_entries(db: Database) -> list[Entry]:
    """Finish all pending schema changes, and return the tables."""
    while any(entry.pending for entry in db.catalog.entries()):
        db.schema_changes.finish_all()
    return db.catalog.entries()


@contextmanager
def _one_at_a_time(db: Database) -> Iterator[Callable[[], None]]:
    """Hold the namespace's activation lock; yield a function that renews it, or raises _Overtaken.

    The lock only saves work: without it, two activations would overtake each other again and again. A late
    activation cannot undo the registrations of a later one, because its number (`_Turn`) is lower.
    """
    store, key, mine = db.store, db.store.keyspace.activating, uuid.uuid4().hex.encode()
    milliseconds = int(_LONGEST * 1000)
    # After a lost reply the request is repeated: NX refuses the second one, and GET returns our own name.
    while store.call((b"SET", key, mine, b"NX", b"PX", milliseconds), (b"GET", key))[1] != mine:
        store.sleep(_PAUSE)

    def renew() -> None:
        if store.one((b"GET", key)) != mine:
            raise _Overtaken
        store.one((b"SET", key, mine, b"PX", milliseconds))

    try:
        yield renew
    finally:
        if store.one((b"GET", key)) == mine:
            store.one((b"DEL", key))


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A registered worker whose liveness token has not expired.

    ``since`` is the time of its registration in microseconds. ``until_idle`` is True for a drain.
    ``observers`` has the sorted names of the observers that the worker runs; None means all.
    """

    owner: str
    digest: str
    where: str
    since: int
    name: str
    until_idle: bool = False
    observers: tuple[str, ...] | None = None


def live_workers(db: Database) -> list[LiveWorker]:
    """Return the live workers of this namespace, sorted by name, and unregister the dead ones."""
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
    """Return the command that lists the registered workers, for `liveness_commands` and `living`."""
    return (b"HGETALL", db.store.keyspace.workers)


def liveness_commands(db: Database, registered: Sequence[bytes]) -> list[Command]:
    """Return the command that reads the liveness token of each registered worker."""
    return [db.client.liveness(_owner_of(name)) for name in registered[0::2]]


def living(registered: Sequence[bytes], alive: Sequence[int]) -> list[LiveWorker]:
    """Return the workers whose tokens have not expired, sorted by name."""
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
    """The registration of one worker. Several workers may share a database connection."""

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
        """``until_idle`` and ``observers`` are as in `LiveWorker`. A refresh also reports ``counts``."""
        self._db = db
        self._tally = Tally(db.store, counts or {})
        self.name = db.client.owner().decode() + ":" + uuid.uuid4().hex[:8]
        self.observers = None if observers is None else tuple(sorted(observers))
        self._record = json.dumps(
            {
                "digest": digest,
                "where": where,
                "since": db.timestamp(),
                "until_idle": until_idle,
                "observers": self.observers,
            }
        )
        self.refresh()

    def refresh(self) -> None:
        """Register again: another process may have unregistered this worker while it was suspended."""
        self._tally.send_along((b"HSET", self._db.store.keyspace.workers, self.name, self._record))

    def withdraw(self) -> None:
        """Unregister, and report the remaining counts."""
        self._tally.send_along((b"HDEL", self._db.store.keyspace.workers, self.name))


def _owner_of(name: bytes) -> bytes:
    return name.partition(b":")[0]
