"""The normal form of URLs (RFC 3986, section 6): all spellings of an address become one row key.

The normal form has the scheme and host in lower case, and international hosts in their ASCII form. The
default port, the user, the fragment, dot segments and an empty query are left out. Percent-encoding is in
upper case, and used only for characters that need it. ``file:`` and schemes of local corpora, such as
``doc://corpus/page.html``, work like ``http:``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

MAX_URL: Final = 2048
"""The longest normal form of a URL, in characters; longer URLs are ignored."""

_PARTS: Final = re.compile(r"(?:([^:/?#]+):)?(?://([^/?#]*))?([^?#]*)(\?[^#]*)?(?:#.*)?", re.DOTALL)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_PLAIN_REFERENCE: Final = re.compile(
    r"((?:\.\./){0,16})([A-Za-z0-9_~-][A-Za-z0-9_~.-]*(?:/[A-Za-z0-9_~-][A-Za-z0-9_~.-]*)*)"
)
"""The form of most links: the page's folder, or a folder above it, is put in front of the rest."""

_HOST: Final = re.compile(r"[a-z0-9_.~!$&'()*+,;=-]*|\[[0-9a-f:.]+\]")
_ESCAPE: Final = re.compile(r"%([0-9A-Fa-f]{2})|%|[^!$&'()*+,;=:@/?A-Za-z0-9._~-]")
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443, "ftp": 21, "ws": 80, "wss": 443}
_SLASHED: Final = frozenset({"http", "https", "ftp", "file", "ws", "wss"})
"""Schemes in which browsers read a backslash as a slash."""


class Parts(NamedTuple):
    """The parts of a URL; ``authority`` is None if the URL has none, ``query`` includes its question mark."""

    scheme: str
    authority: str | None
    path: str
    query: str


def normalise(url: str) -> str | None:
    """Return the normal form of an absolute URL; None if it cannot be fetched (``mailto:``, no host …)."""
    parts = _split(url)
    return _compose(parts) if parts.scheme else None


def resolve(base: str, reference: str) -> str | None:
    """Return the normal form of ``reference`` on a page at ``base``; None if it cannot be fetched.

    ``base`` is absolute; a relative reference on a page whose own key is no URL gives None.
    """
    plain = _PLAIN_REFERENCE.fullmatch(reference)
    if plain is not None:
        upwards, rest = plain.groups()
        folder = _folder(base, upwards)
        if folder is not None:
            url = folder + rest
            return url if len(url) <= MAX_URL else None
    parts = _split(reference)
    if parts.scheme:
        return _compose(parts)
    start = _split(base)
    if not start.scheme:
        return None
    if parts.authority is not None:
        return _compose(parts._replace(scheme=start.scheme))
    if not parts.path:
        return _compose(start._replace(query=parts.query or start.query))
    if parts.path.startswith("/"):
        path = parts.path
    else:
        path = (start.path[: start.path.rfind("/") + 1] or "/") + parts.path
    return _compose(start._replace(path=path, query=parts.query))


@lru_cache(maxsize=256)
def _folder(base: str, upwards: str) -> str | None:
    """Return the normal form of a page's folder; each ``../`` in ``upwards`` names the folder above."""
    return resolve(base, f"./{upwards}")


def _split(url: str) -> Parts:
    """Split a URL without normalising it. White space around it and line breaks inside are removed."""
    url = url.strip("\0\t\n\v\f\r \x1c\x1d\x1e\x1f").replace("\t", "").replace("\n", "").replace("\r", "")
    match = _PARTS.fullmatch(url)
    assert match is not None, "every text matches"
    scheme, authority, path, query = match.groups()
    if scheme is not None and not _SCHEME.fullmatch(scheme):
        # This colon is in the first segment of a relative path.
        return Parts("", None, f"{scheme}:{path}", query or "")
    scheme = (scheme or "").lower()
    if "\\" in url and (not scheme or scheme in _SLASHED):
        before, mark, rest = url.partition("?")
        return _split(before.replace("\\", "/") + mark + rest.replace("\\", "%5C"))
    return Parts(scheme, authority, path, query or "")


def _compose(parts: Parts) -> str | None:
    scheme, authority, path, query = parts
    if scheme == "file":
        authority = "" if authority is None or authority.lower() == "localhost" else authority
    if authority is None:
        return None
    host = _authority(authority, _DEFAULT_PORTS.get(scheme))
    if host is None or (not host and scheme != "file"):
        return None
    path = _without_dots(_escape(path)) or "/"
    query = _escape(query) if len(query) > 1 else ""
    url = f"{scheme}://{host}{path}{query}"
    return url if len(url) <= MAX_URL else None


def _authority(authority: str, default_port: int | None) -> str | None:
    """Return host and port; the user and password before an ``@`` are dropped."""
    host, colon, port = authority.rpartition("@")[2].rpartition(":")
    if not colon or not (port.isascii() and (port.isdigit() or not port)):
        host, port = authority.rpartition("@")[2], ""
    host = host.lower()
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            return None
    if not _HOST.fullmatch(host):
        return None
    if port and len(port) > 20:
        return None
    if port and int(port) != default_port:
        return f"{host}:{int(port)}" if int(port) < 65536 else None
    return host


def _escape(text: str) -> str:
    """Percent-encode only characters that need it; a percent sign without two digits is encoded, too."""
    return _ESCAPE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    digits = match[1]
    if digits:
        character = chr(int(digits, 16))
        return character if character in _UNRESERVED else f"%{digits.upper()}"
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _without_dots(path: str) -> str:
    """Resolve ``.`` and ``..`` segments (RFC 3986, section 5.2.4); the result starts with a slash."""
    if "/." not in path and path.startswith("/"):
        return path
    kept: list[str] = []
    segments = path.removeprefix("/").split("/")
    for segment in segments:
        if segment == "..":
            if kept:
                kept.pop()
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in {".", ".."}:
        kept.append("")
    return "/" + "/".join(kept)
