"""Row keys of the dependency tracker.

==========  ==============================  =================================================================
table       row                             columns
==========  ==============================  =================================================================
pages       address                         html; parsed, snapshot, made
resources   address                         content, content_type; seen, facts, embedding, reach, position
dependents  resource, kind of dependent,    reference: empty; the dependent names the resource
            dependent
==========  ==============================  =================================================================

Notify-only: ``pages.stale``, ``resources.touched``, ``resources.more``.

In a row of ``dependents`` the resource's NUL bytes are escaped. A terminator, which no escape contains,
follows the resource. So an address may be any bytes, no two entries have the same row, and the rows of one
resource share a prefix that no other resource's rows have.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Dependent = Literal["page", "style"]

_NUL: Final = b"\0"
_ESCAPED: Final = b"\0\xff"
_END: Final = b"\0\x01"
_KINDS: Final[dict[Dependent, bytes]] = {"page": b"p", "style": b"s"}
_NAMES: Final[dict[bytes, Dependent]] = {code: name for name, code in _KINDS.items()}


class Edge(NamedTuple):
    """One entry of the index: ``dependent`` names ``resource``."""

    resource: bytes
    kind: Dependent
    dependent: bytes


def prefix(resource: bytes) -> bytes:
    """Return the common prefix of the rows of a resource's dependents."""
    return resource.replace(_NUL, _ESCAPED) + _END


def row(edge: Edge) -> bytes:
    """Return the row of an entry."""
    return prefix(edge.resource) + _KINDS[edge.kind] + edge.dependent


def edge(row: bytes) -> Edge:
    """Return the entry whose row `row` returned. Raises ValueError for any other bytes."""
    escaped, end, rest = row.partition(_END)
    if not end or rest[:1] not in _NAMES or _NUL in escaped.replace(_ESCAPED, b""):
        raise ValueError(f"not a row of dependents: {row!r}")
    return Edge(escaped.replace(_ESCAPED, _NUL), _NAMES[rest[:1]], rest[1:])
