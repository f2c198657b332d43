"""The type of a resource's content, and its form for embedding: the text of a sheet, or a ``data:`` URL.

The form is computed once for each resource, not for each page. It is written in the same transaction as the
resource's ``facts``, so a render always sees both in the same state.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from hashlib import blake2b
from mimetypes import MimeTypes
from typing import Final

from observers.pagedeps import style
from observers.webindex.encoding import decode
from schemas.pagedeps import Kind

# The machine's own list of types is not used, because it may differ between workers.
_TYPES: Final = MimeTypes(filenames=())
_TYPES.add_type("font/woff2", ".woff2")
_TYPES.add_type("font/woff", ".woff")
_TYPES.add_type("image/webp", ".webp")
_TYPES.add_type("image/avif", ".avif")
_UNKNOWN: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Content:
    """The parsed content of a resource. Equal digests mean equal values."""

    digest: str
    kind: Kind
    embedding: bytes
    references: tuple[str, ...]


def digest_of(content: bytes, how: str = "") -> str:
    """Return a digest of some bytes and of the way they are read."""
    person = blake2b(how.encode("utf-8", "replace"), digest_size=16).digest()
    return blake2b(content, digest_size=16, person=person).hexdigest()


def media_type_of(address: str, declared: str = "") -> str:
    """Return the media type in lower case: the declared one, or else the type of the name's suffix."""
    media_type = declared.partition(";")[0].strip().lower()
    if not media_type or media_type == _UNKNOWN:
        media_type = _TYPES.guess_type(address)[0] or _UNKNOWN
    return media_type


def content_of(address: str, content: bytes, content_type: bytes | None) -> Content:
    """Parse the content at ``address``; `media_type_of` decides its type."""
    declared = content_type.decode("utf-8", "replace").strip() if content_type is not None else ""
    media_type = media_type_of(address, declared)
    if media_type == "text/css":
        text, _encoding = decode(content, declared or None, markup=False)
        text = text.encode("utf-8", "replace").decode()
        references = tuple(sorted(style.references(address, text)))
        return Content(digest_of(content, f"{media_type} {declared}"), "style", text.encode(), references)
    kept = "".join(character for character in media_type if character.isalnum() or character in "/+-.")
    url = b"data:" + kept.encode("ascii", "replace") + b";base64," + b64encode(content)
    return Content(digest_of(content, media_type), "data", url, ())
