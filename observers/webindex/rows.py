"""Row keys of the web index. NUL, which is in no URL, separates parts; a prefix scan finds one part's rows.

==========  ======================  =====================================================================
table       row                     columns
==========  ======================  =====================================================================
documents   URL                     contents, content_type, redirect
pages       URL                     parsed, pointer, content, outlinks, rank, anchors, cluster
links       target NUL source       anchors: the texts of the links from source to target
pointers    target NUL source       source: empty; source redirects to target, or declares it canonical
clusters    cluster key NUL URL     member: empty; the page at URL belongs to the cluster
serving     cluster key             entry, text
==========  ======================  =====================================================================

Notify-only: ``pages.inlinks`` and ``pages.terminal`` (row: URL), ``clusters.dirty`` (row: cluster key).
"""

from __future__ import annotations

from typing import Final

SEPARATOR: Final = b"\0"

# A fingerprint or a URL: the prefix keeps the two from ever being taken for each other.
_CONTENT: Final = b"content:"
_URL: Final = b"url:"


def pair(first: bytes, second: bytes) -> bytes:
    """The row of a link, a pointer or a member."""
    return first + SEPARATOR + second


def prefix(first: bytes) -> bytes:
    """What the rows of all pairs with this first part start with."""
    return first + SEPARATOR


def second(row: bytes) -> bytes:
    """The second part of a pair's row."""
    return row.partition(SEPARATOR)[2]


def cluster_key(terminal: bytes, fingerprint: str | None) -> bytes:
    """The key of the cluster around a terminal page: its content's fingerprint, else its URL."""
    return _URL + terminal if fingerprint is None else _CONTENT + fingerprint.encode()
