"""The ids of traces and spans, derived from what the store has anyway.

A commit has a timestamp that no other commit of the namespace has. The run that made the commit learns it,
and the runs that the commit wakes read it with the observed cell. So both sides compute the same ids, in any
process and after any crash, and no id has to be stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

_TRACE: Final = 16
_SPAN: Final = 8


class SpanId(NamedTuple):
    """The id of a span, and the id of the trace that it is in. Neither is 0."""

    trace: int
    span: int


def commit_id(namespace: str, commit_timestamp: int) -> SpanId:
    """Return the id of a commit of a run: the root of the trace of the runs that the commit wakes."""
    return _derived((namespace.encode(), b"commit", b"%d" % commit_timestamp))


def change_id(namespace: str, table: str, row: bytes, commit_timestamp: int) -> SpanId:
    """Return the id of a change of a row that no observer wrote: the root of the trace of its runs.

    A load commits many rows at once. The row is a part of the id, so that each row has its own trace.
    """
    return _derived((namespace.encode(), b"change", table.encode(), row, b"%d" % commit_timestamp))


def _derived(parts: Iterable[bytes]) -> SpanId:
    # The lengths keep two lists of parts from having the same bytes.
    packed = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    digest = blake2b(packed, digest_size=_TRACE + _SPAN, person=b"percolator").digest()
    return SpanId(int.from_bytes(digest[:_TRACE]) or 1, int.from_bytes(digest[_TRACE:]) or 1)
