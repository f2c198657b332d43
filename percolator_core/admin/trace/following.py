"""Follows a change to the runs that observed it, to the cells that these runs wrote, and so on.

The acknowledgements of an observer for one cell are the versions of another cell. Of two conflicting runs,
only one commits. So the run that observed a change is the first acknowledged run that began after the change.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from percolator_core.admin.trace.followed import (
    FollowedChange,
    FollowedRun,
    RunKey,
    frozen,
    frozen_run,
)
from percolator_core.admin.trace.found import COLLAPSED, Outcome, Trace
from percolator_core.base.bases import Wanted
from percolator_core.database import Database
from percolator_core.layout.acknowledgements import Ack
from percolator_core.layout.keys import (
    EVERY_COLUMN,
    MARKER,
    SAFE_POINT,
    acknowledgement,
    dirty_key,
    encode_lock_mark,
    encode_mark,
    failed_key,
    history_key,
    is_internal,
    meta_key,
    pack_column,
    tries_key,
    unpack_column,
)
from percolator_core.layout.records import (
    DELETE,
    NOTIFY,
    PUT,
    VERSION_HEADER,
    VERSION_MARK,
    Version,
    pack_timestamp,
    unpack_version,
)
from percolator_core.observers import Chain
from percolator_core.scripts import calls
from percolator_core.store.packing import Command
from percolator_core.transaction.late_reads import with_cold

_BATCH: Final = 1000
"""Commands that are sent together. Each reply may be an acknowledgement of some tens of kilobytes."""

_ACKS: Final = 8
"""At most this many acknowledgements that follow a change are read: those of the first run and of reruns."""

_ALL_LATER: Final = b"\xff" * 9
"""Sorts after any packed timestamp."""


class Following:
    """Follows changes generation by generation; a generation takes one or two round trips."""

    def __init__(self, db: Database, chain: Chain, limit: int) -> None:
        self._db = db
        self._chain = chain
        self._limit = limit
        self._tables = {definition.name for definition in db.catalog.tables()}
        self._now = db.store.now()
        self._changes: dict[tuple[str, bytes, bytes, int | None], FollowedChange] = {}
        self._runs: dict[RunKey, FollowedRun] = {}
        self._uncertain: set[tuple[str, bytes, bytes, int | None]] = set()

    # The row itself.

    def columns_of(self, table: str, row: bytes) -> list[str]:
        """Return the names of the columns of a row that hold data."""
        handle = self._db.catalog.table(table)
        if handle.is_typed:
            return [column.name for column in handle.definition.value_columns]
        fields = self._db.store.one((b"HKEYS", handle.row_key(row)))
        names = {field[1:] for field in fields if field[:1] == VERSION_MARK}
        return [handle.decode(name) for name in names if not is_internal(name)]

    def roots(
        self, table: str, row: bytes, columns: Sequence[str], change: str | int
    ) -> list[FollowedChange]:
        """Return the changes of the row itself, oldest first, then its notifications."""
        found: list[FollowedChange] = []
        handle = self._db.catalog.table(table)
        notify_only = handle.definition.notify_only
        for column in columns:
            encoded = handle.encode(column)
            if column not in notify_only:
                found += self._committed(table, row, column, change)
            elif isinstance(change, int):
                found.append(FollowedChange(table, row, encoded, NOTIFY, change))
            else:
                found += self._notified(FollowedChange(table, row, encoded, NOTIFY, None), change)
        # Notifications have no time here. Most of them have their cause among the changes.
        found.sort(key=lambda one: (one.timestamp is None, one.timestamp or 0))
        self._changes = {one.key: one for one in found}
        return found

    def _committed(self, table: str, row: bytes, column: str, change: str | int) -> list[FollowedChange]:
        handle, store = self._db.catalog.table(table), self._db.store
        encoded = handle.encode(column)
        held = store.run(calls.held(handle.tag(row), entries=[encode_lock_mark(0, encoded, row)]))
        if any(held.locks):
            # A read resolves the lock of a dead client whose transaction has committed.
            self._db.snapshot().get(table, row, column)
        limit = self._limit if change == "all" else 1
        # The values, which may be large, are not read: only the timestamps are used.
        asked = store.command(calls.history(handle.tag(row), row, encoded, limit, VERSION_HEADER))
        packed, (_, _, base) = store.call(asked, handle.standing(row))
        versions = [unpack_version(version) for version in packed]
        if isinstance(change, int) and versions and versions[0].commit_ts > change:
            versions = self._before(handle.tag(row), row, encoded, change)
        if base:
            where = Wanted((handle, handle.tag(row), base), row, [encoded])
            [[cold]] = self._db.client.bases.versions([where])
            is_late = cold is not None and isinstance(change, int) and cold.commit_ts > change
            versions = with_cold(versions, None if is_late else cold, limit)
        return [
            FollowedChange(table, row, encoded, kind, version.commit_ts, version.start_ts, not packed)
            for version in versions
            for kind in [DELETE if version.value is None else PUT]
        ]

    def _before(self, tag: bytes, row: bytes, column: bytes, at: int) -> list[Version]:
        """Return the newest version of a cell's history at or before a timestamp, if there is one."""
        prefix = pack_column(column)
        above, below = b"(" + prefix + pack_timestamp(at + 1), b"[" + prefix
        older = self._db.store.one((b"ZREVRANGEBYLEX", history_key(tag, row), above, below, b"LIMIT", 0, 1))
        return [unpack_version(member[len(prefix) :]) for member in older]

    def _notified(self, change: FollowedChange, wanted: str) -> list[FollowedChange]:
        """Return one change for all notifications of a notify-only cell, with their runs and the mark."""
        handle = self._db.catalog.table(change.table)
        tag, store = handle.tag(change.row), self._db.store
        for observer, _ in self._watchers(change.table, change.column):
            column = acknowledgement(observer, change.column)
            limit = self._limit if wanted == "all" else 1
            asked = store.command(calls.history(tag, change.row, column, limit))
            # The mark is read first: if a run has cleared the mark, the next command finds the run.
            *mark, packed = store.call(*self._mark(change, observer, change.column), asked)
            versions = [unpack_version(version) for version in packed]
            for version in reversed([one for one in versions if one.value is not None]):
                key = self._ran(change, observer, change.column, version, 0)
                change.outcomes.append((Outcome(observer, "ran"), key))
            waits = self._waits(observer, mark)
            if waits.state != "unobserved":
                change.outcomes.append((waits, None))
        return [change] if change.outcomes else []

    # The runs, and the changes that they made.

    def follow(self, changes: Sequence[FollowedChange], depth: int) -> None:
        """Find the runs that the changes caused, then the runs that these caused, and so on up to a depth."""
        for generation in range(depth):
            known = set(self._runs) if generation else set()
            self._react([change for change in changes if change.timestamp is not None])
            new = [run for key, run in self._runs.items() if key not in known]
            changes = self._written(new, last=generation == depth - 1)
            if not changes:
                break
        self._count_seen()

    def _written(self, runs: Iterable[FollowedRun], *, last: bool) -> list[FollowedChange]:
        """Return the new changes that these runs made to observed cells."""
        new: list[FollowedChange] = []
        for run in sorted(runs, key=lambda one: one.version.start_ts):
            commit_ts, start_ts, _ = run.version
            for write in run.ack.writes or ():
                if write.table not in self._tables or not self._watchers(write.table, write.column):
                    continue
                change = FollowedChange(write.table, write.row, write.column, write.kind, commit_ts, start_ts)
                known = self._changes.get(change.key)
                if known is None and (last or len(self._changes) >= self._limit):
                    run.unfollowed += 1
                    continue
                if known is None:
                    known = self._changes[change.key] = change
                    new.append(change)
                run.changes.append(known)
        return new

    def _react(self, changes: Sequence[FollowedChange]) -> None:
        gone = self._collected(changes)
        asked = [(one, *watcher) for one in changes for watcher in self._watchers(one.table, one.column)]
        commands = [command for each in asked for command in self._questions(*each)]
        replies = iter(self._call(commands))
        for change, observer, watched in asked:
            mark = [next(replies) for _ in range(4)]
            newest, before, after = next(replies), next(replies), next(replies)
            if change.key in gone:
                change.outcomes.append((Outcome(observer, "collected"), None))
            else:
                self._judge(change, observer, watched, mark, self._acks(newest, before, after))

    def _questions(self, change: FollowedChange, observer: str, watched: bytes) -> list[Command]:
        """Return the commands that read the mark, then the acknowledgements around the change.

        The order matters. If a run has cleared the mark, the later commands find the run. If a new version
        has moved the previous one into the history, the commands that read the history find the moved
        version.
        """
        handle, column = self._db.catalog.table(change.table), acknowledgement(observer, watched)
        older, prefix = history_key(handle.tag(change.row), change.row), pack_column(column)
        at = prefix + pack_timestamp(change.timestamp or 0)
        return [
            *self._mark(change, observer, watched),
            (b"HGET", handle.row_key(change.row), VERSION_MARK + column),
            (b"ZREVRANGEBYLEX", older, b"(" + at, b"[" + prefix, b"LIMIT", 0, 1),
            (b"ZRANGEBYLEX", older, b"[" + at, b"(" + prefix + _ALL_LATER, b"LIMIT", 0, _ACKS),
        ]

    def _mark(self, change: FollowedChange, observer: str, watched: bytes) -> list[Command]:
        handle, mark = self._db.catalog.table(change.table), encode_mark(watched, change.row)
        tag = handle.tag(change.row)
        in_flight = b"n" + pack_timestamp(change.start_ts) + change.column
        return [
            (b"HGET", handle.row_key(change.row), in_flight),
            (b"ZSCORE", dirty_key(tag, observer), mark),
            (b"HGET", tries_key(tag, observer), mark),
            (b"HGET", failed_key(tag, observer), mark),
        ]

    @staticmethod
    def _acks(newest: bytes | None, before: list[bytes], after: list[bytes]) -> list[Version]:
        packed = [unpack_column(member)[1] for member in (*before, *after)] + ([newest] if newest else [])
        by_commit = {version.commit_ts: version for version in map(unpack_version, packed)}
        return [by_commit[commit_ts] for commit_ts in sorted(by_commit)]

    def _judge(
        self,
        change: FollowedChange,
        observer: str,
        watched: bytes,
        mark: Sequence[Any],
        acks: Sequence[Version],
    ) -> None:
        at, before, done, repeat = change.timestamp or 0, 0, change.is_cold, change.is_cold
        if change.is_cold:
            change.outcomes.append((Outcome(observer, "collected"), None))
        for version in acks:
            if version.value is None:
                # A rerun deleted the acknowledgement.
                repeat, before = done, version.start_ts
            elif version.start_ts < at:
                before = version.start_ts
            elif not done or repeat:
                lag = (version.start_ts - at) / 1e6
                key = self._ran(change, observer, watched, version, before)
                change.outcomes.append((Outcome(observer, "ran", lag=lag, again=repeat), key))
                done, repeat = True, False
            else:
                break
        if not done or repeat:
            waits = self._waits(observer, mark)
            if waits.state == "unobserved" and change.key in self._uncertain:
                waits = Outcome(observer, "collected")
            if not done or waits.state not in {"unobserved", "collected"}:
                change.outcomes.append((waits, None))

    def _ran(
        self, change: FollowedChange, observer: str, watched: bytes, version: Version, before: int
    ) -> RunKey:
        key = (observer, change.table, change.row, watched, version.commit_ts)
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = FollowedRun(key, version, Ack.unpack(version.value or b""), before)
        run.causes += 1
        return key

    def _waits(self, observer: str, mark: Sequence[Any]) -> Outcome:
        """Return the outcome of a change that no run has observed, according to its mark."""
        in_flight, score, tries, failed = mark
        attempts = int(tries or 0)
        if score is not None:
            # The score of a lease is odd (`_dirty.lua`). After the lease's end the cell can be claimed.
            if int(float(score)) % 2 and float(score) > self._now:
                return Outcome(observer, "leased", attempts=attempts)
            return Outcome(observer, "retrying" if attempts else "pending", attempts=attempts)
        if in_flight is not None:
            return Outcome(observer, "pending")
        if failed is not None:
            record = json.loads(failed)
            return Outcome(observer, "quarantined", attempts=record["attempts"], error=record["error"])
        return Outcome(observer, "unobserved")

    # Garbage collection.

    def _collected(self, changes: Sequence[FollowedChange]) -> set[tuple[str, bytes, bytes, int | None]]:
        """Return the changes whose versions have left the store: no later run may be shown for them."""
        tags = [self._db.catalog.table(one.table).tag(one.row) for one in changes]
        safe = self._call([(b"HGET", meta_key(tag), SAFE_POINT) for tag in tags])
        old = [
            one for one, point in zip(changes, safe, strict=True) if (one.timestamp or 0) <= int(point or 0)
        ]
        self._uncertain.update(one.key for one in old)
        kept = [one for one in old if one.kind != NOTIFY and not one.is_cold]
        counts = self._versions_between([(one, one.timestamp or 0, one.timestamp or 0) for one in kept], 1)
        return {one.key for one, count in zip(kept, counts, strict=True) if not count}

    def _count_seen(self) -> None:
        observers = self._chain.observers
        # A run for a whole row has seen changes of several cells, which are not counted.
        strong = [
            run
            for run in self._runs.values()
            if observers[run.key[0]].mode == "strong" and run.key[3] != MARKER
        ]
        spans = [
            (FollowedChange(*run.key[1:4], PUT, None), run.before + 1, run.version.start_ts) for run in strong
        ]
        for run, count in zip(strong, self._versions_between(spans, COLLAPSED), strict=True):
            run.seen = count
        for run in self._runs.values():
            run.seen = max(1, run.seen, run.causes)

    def _versions_between(self, spans: Sequence[tuple[FollowedChange, int, int]], most: int) -> list[int]:
        """Count the versions of cells between two commit timestamps, both included."""
        commands: list[Command] = []
        for change, first, last in spans:
            handle, prefix = self._db.catalog.table(change.table), pack_column(change.column)
            low, high = (prefix + pack_timestamp(at) for at in (first, last + 1))
            tag = handle.tag(change.row)
            # The newest version is read first, so no version is missed. If the newest version is overwritten
            # before the second command, it counts twice.
            commands += [
                self._db.store.command(calls.history(tag, change.row, change.column, 1, VERSION_HEADER)),
                (b"ZLEXCOUNT", history_key(tag, change.row), b"[" + low, b"(" + high),
            ]
        replies = iter(self._call(commands))
        counts = []
        for _, first, last in spans:
            newest, older = next(replies), next(replies)
            is_within = bool(newest) and first <= unpack_version(newest[0]).commit_ts <= last
            counts.append(min(most, older + is_within))
        return counts

    # The result.

    def result(self, table: str, row: bytes, roots: Sequence[FollowedChange]) -> Trace:
        """Return the trace. If a run of the trace wrote a root, the root is shown only at that run."""
        ordered = sorted(self._runs.values(), key=lambda one: (one.version.start_ts, one.key))
        numbers = {run.key: number for number, run in enumerate(ordered, 1)}
        made = {change.key for run in ordered for change in run.changes}
        name = self._db.catalog.column_name
        return Trace(
            table,
            row,
            tuple(frozen(change, numbers, name) for change in roots if change.key not in made),
            tuple(frozen_run(run, numbers, name) for run in ordered),
            len(self._uncertain),
        )

    def _watchers(self, table: str, column: bytes) -> list[tuple[str, bytes]]:
        """Return the observers that a write of the column wakes, and what each one watches: it or the row."""
        name, observed = self._db.catalog.column_name(table, column), self._chain.observed
        whole = () if name in self._db.catalog.table(table).definition.notify_only else (EVERY_COLUMN,)
        return [
            (observer, MARKER if watched == EVERY_COLUMN else column)
            for watched in (name, *whole)
            for observer in observed.get((table, watched), ())
        ]

    def _call(self, commands: Sequence[Command]) -> list[Any]:
        return self._db.store.call_many(commands, _BATCH)
