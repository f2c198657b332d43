"""Samples of the status of a namespace over time, kept in the store, for plots of the last days.

>>> from percolator_core.admin.samples import record, samples
>>> from percolator_core.admin.status import status
>>> record(db, status(db, chain), keep=2 * 86_400)
>>> [(sample.time, sample.observers["split"].backlog) for sample in samples(db)]
[(1795340170954000, 12)]

The samples are entries of a stream. Each entry has one field. The field's name is the list of observers,
which Redis stores once for several entries. The field's value has the sample's numbers, column by column.
Both are compressed JSON.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

from percolator_core.admin.status import Status
from percolator_core.database import Database

MOST: Final = 500
"""The default limit of samples: more than a plot can show."""

READ: Final = 6_000
"""At most about this many samples are read to merge them."""

_AHEAD: Final = 3_600_000
"""If a sample is more than this many milliseconds ahead of the clock, the clock was set back since then."""


class ObserverSample(NamedTuple):
    """Fields of `percolator_core.admin.status.ObserverStatus`; ``oldest`` is rounded to a tenth.

    ``peak`` is the highest known backlog since the sample before.
    """

    backlog: int
    oldest: float | None
    failed: int
    ran: int
    failures: int
    peak: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Counts of a namespace at one time: its locks, its workers, and the work of its observers.

    ``time`` is in µs by the server's clock, but only as precise as milliseconds. ``memory`` is the servers'
    memory in bytes. ``workers`` counts the live workers that run until they are stopped, and ``drains``
    counts the live workers that run until no mark is left.
    """

    time: int
    locks: int
    memory: int
    workers: int
    drains: int
    observers: Mapping[str, ObserverSample]


def record(db: Database, status: Status, keep: float, peaks: Mapping[str, int] | None = None) -> None:
    """Add a sample of ``status``. Remove the samples that were taken more than ``keep`` seconds before it.

    ``peaks`` has the highest backlog of each observer that was counted since the previous sample; None if
    nobody counted.

    Some older samples may stay for a while. If a request is repeated after a lost reply, the sample is added
    twice, which does no harm.

    Raises:
        ValueError: ``keep`` is not above 0.
        StoreUnavailable: the store does not answer, or its memory is full.
    """
    if not keep > 0:
        raise ValueError(f"keep is a number of seconds above 0, not {keep!r}")
    rows = [
        (
            one.backlog,
            one.oldest and round(one.oldest, 1),
            one.failed,
            one.ran,
            one.failures,
            max(one.backlog, (peaks or {}).get(one.name, 0)),
        )
        for one in status.observers
    ]
    numbers = [
        [status.locks, status.store.memory, status.continuous, status.drains],
        *([row[column] for row in rows] for column in range(len(ObserverSample._fields))),
    ]
    names = _pack([one.name for one in status.observers])
    # The time and the ids of the entries are from the server's clock. Redis removes only blocks of entries.
    oldest = max(0, int(status.time / 1000 - keep * 1000))
    key = db.store.keyspace.samples
    add = (b"XADD", key, b"MINID", b"~", oldest, b"*", names, _pack(numbers))
    if _milliseconds([db.store.one(add)]) > status.time / 1000 + _AHEAD:
        # The clock was set back. The ids of a stream never decrease, so new samples would get times in the
        # future: begin a new stream.
        db.store.call((b"DEL", key), add)


def samples(
    db: Database, since: int | None = None, until: int | None = None, limit: int = MOST
) -> list[Sample]:
    """Return the samples from ``since`` to ``until`` (µs, inclusive; None is no bound), oldest first.

    If there are more than ``limit`` samples (2 or more), they are merged into ``limit``. The time from the
    first to the last is divided into equal parts. For each part, its first sample is returned, with the
    highest ``peak``, ``oldest``, ``failed``, ``locks``, ``memory`` and ``drains`` of the part. The last
    sample is not merged. If there are more than `READ` samples, only some of each part are read, so that the
    cost is bounded: then a short peak may be missing.

    Raises:
        ValueError: the limit is below 2.
        StoreUnavailable: the store does not answer.
    """
    if limit < 2:
        raise ValueError(f"limit is 2 or more, not {limit}")
    key = db.store.keyspace.samples
    least = b"-" if since is None else b"%d" % max(0, -(-since // 1000))
    most = b"+" if until is None else b"%d" % max(0, until // 1000)
    found, last = db.store.call(
        (b"XRANGE", key, least, most, b"COUNT", limit + 1),
        (b"XREVRANGE", key, most, least, b"COUNT", 1),
    )
    names: dict[bytes, tuple[str, ...]] = {}
    if len(found) <= limit:
        return [_unpack(entry, names).sample() for entry in found]
    begin, end = _milliseconds(found[0]), _milliseconds(last[0])
    bounds = [begin + (end - begin) * part // (limit - 1) for part in range(limit)]
    parts = db.store.call(
        *(
            (b"XRANGE", key, b"%d" % first, b"%d" % (behind - 1), b"COUNT", max(1, READ // limit))
            for first, behind in pairwise(bounds)
            if first < behind
        )
    )
    merged = [_merged([_unpack(entry, names) for entry in part]) for part in parts if part]
    return [*merged, _unpack(last[0], names).sample()]


class _Columns(NamedTuple):
    """A sample as it is stored: ``columns`` has a list of the observers' numbers for each field."""

    time: int
    names: tuple[str, ...]
    totals: list[int]
    columns: list[list[Any]]

    def sample(self) -> Sample:
        each = map(ObserverSample._make, zip(*self.columns, strict=True))
        locks, memory, workers, drains = self.totals
        return Sample(self.time, locks, memory, workers, drains, dict(zip(self.names, each, strict=True)))


_HIGHEST: Final = tuple(map(ObserverSample._fields.index, ("oldest", "failed", "peak")))
"""The columns of which a merged sample has the highest numbers."""


def _merged(some: Sequence[_Columns]) -> Sample:
    """Merge the samples of a part of the time; see `samples`.

    Thousands of samples of many observers are merged for one plot. So the samples become objects only
    afterwards.
    """
    first = some[0]
    # Other observers than at the beginning of the part are rare: they are in the next part.
    alike = [one for one in some if one.names == first.names]
    columns = list(first.columns)
    for field in _HIGHEST:
        columns[field] = [
            _highest(numbers) for numbers in zip(*(one.columns[field] for one in alike), strict=True)
        ]
    locks, memory, workers, drains = zip(*(one.totals for one in some), strict=True)
    totals = [max(locks), max(memory), workers[0], max(drains)]
    return _Columns(first.time, first.names, totals, columns).sample()


def _highest(numbers: Sequence[Any]) -> Any:
    known = [number for number in numbers if number is not None] if None in numbers else numbers
    return max(known, default=None)


def _unpack(entry: Sequence[Any], names: dict[bytes, tuple[str, ...]]) -> _Columns:
    """Unpack an entry of the stream; ``names`` caches the lists of observers."""
    packed_names, packed = entry[1]
    if packed_names not in names:
        names[packed_names] = tuple(json.loads(zlib.decompress(packed_names)))
    totals, *columns = json.loads(zlib.decompress(packed))
    if len(columns) < len(ObserverSample._fields):
        columns.append(columns[0])  # an earlier version recorded no peak: it is the backlog
    return _Columns(_milliseconds(entry) * 1000, names[packed_names], totals, columns)


def _pack(value: Any) -> bytes:
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 9)


def _milliseconds(entry: Sequence[Any]) -> int:
    return int(entry[0].partition(b"-")[0])
