"""Addresses of pages and resources: URLs, or paths such as ``manual/index.html`` that work like them."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

MAX_ADDRESS: Final = 8192
"""Longest address of a resource, in characters; a longer one is never found."""

_NEVER_FETCHED: Final = frozenset({"about", "blob", "cid", "data", "javascript", "mailto"})
_SAFE: Final = "/%:@!$&'()*+,;=~-._"


def address_of(row: bytes) -> str | None:
    """The address that a row key is, or None for a key that is none: it is not printable UTF-8."""
    try:
        text = row.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() and text else None


def path_address(path: str) -> str:
    """The address of a file by its path in the folder that was loaded, with slashes."""
    return quote(path, safe=_SAFE.replace("%", ""))


def resolve(base: str, reference: str) -> str | None:
    """The address that ``reference`` means in a document at ``base``, without its fragment.

    None for what no resource can be: ``data:`` and the like, the document itself, what is no URL. Among
    local files a query says nothing about which one is meant, and is left out.
    """
    reference = reference.strip()
    if not reference or reference.startswith("#"):
        return None
    try:
        parts = urlsplit(urljoin(base, reference))
    except ValueError:  # as in http://[
        return None
    if parts.scheme in _NEVER_FETCHED or not (parts.path or parts.netloc):
        return None
    query = "" if parts.scheme in {"", "file"} else parts.query
    address = urlunsplit(
        (
            parts.scheme,
            parts.netloc.lower(),
            quote(parts.path, safe=_SAFE),
            quote(query, safe=_SAFE + "?"),
            "",
        )
    )
    # What a path cannot hold the host might.
    return address if len(address) <= MAX_ADDRESS and address.isprintable() else None


def fragment(reference: str) -> str:
    """The fragment of a reference, with its ``#``; it chooses a part of an image."""
    return "".join(reference.strip().partition("#")[1:])
