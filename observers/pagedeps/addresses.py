"""Addresses of pages and resources: URLs, or paths such as ``manual/index.html`` in the same syntax."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

MAX_ADDRESS: Final = 8192
"""The longest address of a resource, in characters; references to longer addresses are ignored."""

_NEVER_FETCHED: Final = frozenset({"about", "blob", "cid", "data", "javascript", "mailto"})
_SAFE: Final = "/%:@!$&'()*+,;=~-._"


def address_of(row: bytes) -> str | None:
    """Return the address of a row key, or None if the key is not printable UTF-8."""
    try:
        text = row.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() and text else None


def path_address(path: str) -> str:
    """Return the address of a file, from its path in the loaded folder, with slashes."""
    return quote(path, safe=_SAFE.replace("%", ""))


def resolve(base: str, reference: str) -> str | None:
    """Return the address of ``reference`` in a document at ``base``, without its fragment.

    Return None if the reference cannot be a resource, such as a ``data:`` URL, a reference to the document
    itself, or text that is no URL. The query of a local file is removed, because it does not select a file.
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
    # The path is quoted, but the host may contain unprintable characters.
    return address if len(address) <= MAX_ADDRESS and address.isprintable() else None


def fragment(reference: str) -> str:
    """Return the fragment of a reference, with its ``#``. A fragment selects a part of an image."""
    return "".join(reference.strip().partition("#")[1:])
