"""Detect the character encoding of a page, and decode it.

The order is: a byte order mark; valid UTF-8 with characters outside ASCII; the charset of the HTTP header;
the charset that the page declares; a guess of charset-normalizer. Text in another encoding is almost never
valid UTF-8. A declared charset is used unless too many bytes contradict it.
"""

from __future__ import annotations

import codecs
import re
from typing import Final, NamedTuple

from charset_normalizer import from_bytes

FALLBACK: Final = "cp1252"

_HEAD: Final = 4096
"""The charset is looked for in this many first bytes. Browsers read 1,024, but some pages need more."""

_SAMPLE: Final = 8 * 1024
"""The encoding is guessed from this many bytes, which takes about a millisecond."""

_GUESSED: Final = (
    *("cp932", "euc_jp", "gb18030", "big5", "cp949", "cp1251", "koi8_r"),
    *("cp1252", "cp1250", "cp1253", "cp1254", "cp1255", "cp1256", "cp874"),
)
"""The guess chooses among these encodings; with more candidates it is often wrong."""

_TOLERATED: Final = 0.01
"""A declared charset is used if at most this share of the characters is undecodable, as in some pages."""

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_DECLARED: Final = re.compile(
    rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9._:-]{1,40})""", re.IGNORECASE
)
_XML_DECLARED: Final = re.compile(rb"""\A\s*<\?xml[^>]{0,100}?encoding\s*=\s*["']([A-Za-z0-9._:-]{1,40})""")
_HEADER: Final = re.compile(r"""charset\s*=\s*["']?\s*([A-Za-z0-9._:-]{1,40})""", re.IGNORECASE)

# Browsers decode these charsets as supersets of them, because pages use the characters of the supersets.
_READ_AS: Final = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "utf-16": "utf-16-le",
    # Names that Python does not know.
    "x-sjis": "cp932",
    "windows-31j": "cp932",
    "x-euc-jp": "euc_jp",
    "windows-949": "cp949",
    "x-gbk": "gb18030",
    "x-cp1251": "cp1251",
    "x-cp1252": "cp1252",
    "x-mac-cyrillic": "mac-cyrillic",
    "dos-874": "cp874",
    "windows-874": "cp874",
}
# Python's registry also has codecs that are not character encodings (zlib, rot13 …); a page must not select
# them.
_KNOWN: Final = frozenset(
    {"utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "koi8-r", "koi8-u", "cp866", "cp874"}
    | {f"cp{number}" for number in range(1250, 1259)}
    | {f"iso8859-{number}" for number in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)}
    | {"gb18030", "big5hkscs", "euc_jp", "iso2022_jp", "cp932", "cp949", "mac-roman", "mac-cyrillic"}
)


class Decoded(NamedTuple):
    """A page's text and the name of the codec that read it."""

    text: str
    encoding: str


def decode(contents: bytes, content_type: str | None, *, markup: bool) -> Decoded:
    """Decode a page. ``content_type`` is the HTTP header; ``markup`` also allows ``<meta charset>``."""
    for mark, encoding in _MARKS:
        if contents.startswith(mark):
            return Decoded(contents[len(mark) :].decode(encoding, "replace"), encoding)
    ascii_only = contents.isascii()
    if not ascii_only:
        try:
            return Decoded(contents.decode("utf-8"), "utf-8")
        except UnicodeDecodeError:
            pass
    for name in _declarations(contents, content_type, markup=markup):
        codec = character_encoding(name)
        if codec is not None:
            text = contents.decode(codec, "replace")
            if text.count("\ufffd") <= _TOLERATED * len(text):
                return Decoded(text, codec)
    if ascii_only:
        return Decoded(contents.decode("ascii"), "utf-8")
    guess = _guess(contents)
    return Decoded(contents.decode(guess, "replace"), guess)


def character_encoding(name: str) -> str | None:
    """Return the codec of a charset's name on the web; None if it is not a known character encoding."""
    try:
        codec = codecs.lookup(name).name
    except (LookupError, ValueError):
        codec = name.lower()
    codec = _READ_AS.get(codec, codec)
    return codec if codec in _KNOWN else None


def _declarations(contents: bytes, content_type: str | None, *, markup: bool) -> list[str]:
    names = [match[1] for match in [_HEADER.search(content_type or "")] if match]
    if markup:
        head = contents[:_HEAD]
        for pattern in (_XML_DECLARED, _DECLARED):
            match = pattern.search(head)
            # A page whose declaration is readable as ASCII is not in a 16-bit encoding.
            if match and not match[1].lower().startswith((b"utf-16", b"utf-32")):
                names.append(match[1].decode("ascii"))
    return names


def _guess(contents: bytes) -> str:
    sample = contents[:_SAMPLE]
    # Cut before < or a line break, which are never in the middle of a character.
    end = max(sample.rfind(b"<"), sample.rfind(b"\n"))
    if len(contents) > _SAMPLE and end > 0:
        sample = sample[:end]
    best = from_bytes(sample, threshold=0.4, cp_isolation=list(_GUESSED)).best()
    return (character_encoding(best.encoding) if best else None) or FALLBACK
