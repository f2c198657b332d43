"""How a namespace was: one short entry a look, in the store itself, for plots of the last days.

>>> from percolator_core.admin.samples import record, samples
>>> from percolator_core.admin.status import status
>>> record(db, status(db, chain), keep=2 * 86_400)
>>> [(sample.time, sample.observers["split"].backlog) for sample in samples(db)]
[(1795340170954000, 12)]

The entries are a stream. Each has one field, whose name is the list of observers, which the store keeps once
for several entries, and whose value are the numbers, column by column. Both are JSON, compressed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from percolator_core.admin.status import Status
    from percolator_core.database import Database

MOST: Final = 500
"""Samples that are read where no limit is given: more than a plot has room for."""

_AHEAD: Final = 3_600_000
"""Milliseconds by which a time lies in the future that was not just taken from the clock."""


class ObserverSample(NamedTuple):
    """An observer as `percolator_core.admin.status.ObserverStatus` tells of it. ``oldest`` is to a tenth."""

    backlog: int
    oldest: float | None
    failed: int
    ran: int
    failures: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A namespace at ``time`` (microseconds, to a millisecond, the server's clock).

    ``memory`` is that of the servers, in bytes. ``workers`` run until they are stopped, ``drains`` until
    nothing is left.
    """

    time: int
    locks: int
    memory: int
    workers: int
    drains: int
    observers: Mapping[str, ObserverSample]


def record(db: Database, status: Status, keep: float) -> None:
    """Add a look to the history, and forget those from more than ``keep`` seconds before it.

    Some older ones may stay a while. A look that is recorded twice, as when a reply got lost, is there twice,
    which does no harm.

    Raises:
        ValueError: ``keep`` is not above 0.
        StoreUnavailable: the store does not answer, or its memory is full.
    """
    if not keep > 0:
        raise ValueError(f"keep is a number of seconds above 0, not {keep!r}")
    rows = [
        (
            one.backlog,
            None if one.oldest is None else round(one.oldest, 1),
            one.failed,
            one.ran,
            one.failures,
        )
        for one in status.observers
    ]
    numbers = [
        [status.locks, status.store.memory, status.continuous, status.drains],
        *([row[column] for row in rows] for column in range(len(ObserverSample._fields))),
    ]
    names = _pack([one.name for one in status.observers])
    # By the server's clock, as the times of entries are. Nearly: whole blocks of entries go at once.
    oldest = max(0, int(status.time / 1000 - keep * 1000))
    key = _key(db)
    add = (b"XADD", key, b"MINID", b"~", oldest, b"*", names, _pack(numbers))
    if _milliseconds([db.store.one(add)]) > status.time / 1000 + _AHEAD:
        # The clock was set back. The times of a stream never go back, and looks from the future would stay.
        db.store.call((b"DEL", key), add)


def samples(
    db: Database, since: int | None = None, until: int | None = None, limit: int = MOST
) -> list[Sample]:
    """The looks from ``since`` to ``until`` (microseconds, inclusive; None: all), oldest first.

    If there are more than ``limit`` (2 or more) of them they are thinned out: the time from the first to the
    last is cut into equal parts, and of each the first look stands for all, with the last look of all at the
    end. So what it takes depends on the limit and not on how many there are.

    Raises:
        ValueError: the limit is below 2.
        StoreUnavailable: the store does not answer.
    """
    if limit < 2:
        raise ValueError(f"limit is 2 or more, not {limit}")
    key = _key(db)
    least = b"-" if since is None else b"%d" % max(0, -(-since // 1000))
    most = b"+" if until is None else b"%d" % max(0, until // 1000)
    found, last = db.store.call(
        (b"XRANGE", key, least, most, b"COUNT", limit + 1),
        (b"XREVRANGE", key, most, least, b"COUNT", 1),
    )
    if len(found) > limit:
        begin, end = _milliseconds(found[0]), _milliseconds(last[0])
        bounds = [begin + (end - begin) * part // (limit - 1) for part in range(limit)]
        commands = [
            (b"XRANGE", key, b"%d" % first, b"%d" % (behind - 1), b"COUNT", 1)
            for first, behind in pairwise(bounds)
            if first < behind
        ]
        found = [entry for some in db.store.call(*commands) for entry in some] + last
    names: dict[bytes, list[str]] = {}
    return [_unpack(entry, names) for entry in found]


def _unpack(entry: Sequence[Any], names: dict[bytes, list[str]]) -> Sample:
    """A sample from an entry of the stream; ``names`` has the lists of observers that were met already."""
    packed_names, packed = entry[1]
    if packed_names not in names:
        names[packed_names] = json.loads(zlib.decompress(packed_names))
    (locks, memory, workers, drains), *columns = json.loads(zlib.decompress(packed))
    each = map(ObserverSample._make, zip(*columns, strict=True))
    observers = dict(zip(names[packed_names], each, strict=True))
    return Sample(_milliseconds(entry) * 1000, locks, memory, workers, drains, observers)


def _pack(value: Any) -> bytes:
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 9)


def _milliseconds(entry: Sequence[Any]) -> int:
    return int(entry[0].partition(b"-")[0])


def _key(db: Database) -> bytes:
    return db.store.keyspace.samples
