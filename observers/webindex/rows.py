"""Row keys of the web index. NUL, which no URL contains, separates the parts of a key.

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

# The key of a cluster is a fingerprint or a URL; the prefix distinguishes the two.
_CONTENT: Final = b"content:"
_URL: Final = b"url:"


def pair(first: bytes, second: bytes) -> bytes:
    """Return the row of a link, a pointer or a member."""
    return first + SEPARATOR + second


def prefix(first: bytes) -> bytes:
    """Return the common prefix of the rows of all pairs with this first part."""
    return first + SEPARATOR


def second(row: bytes) -> bytes:
    """Return the second part of a pair's row."""
    return row.partition(SEPARATOR)[2]


def cluster_key(terminal: bytes, fingerprint: str | None) -> bytes:
    """Return the key of the cluster of a terminal page: its content's fingerprint, or else its URL."""
    return _URL + terminal if fingerprint is None else _CONTENT + fingerprint.encode()
