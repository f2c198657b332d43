"""Row keys and values on the command line. They are any bytes, and what is printed can be given back.

Text stands for itself, in UTF-8. Bytes that are no printable text, and text that starts like one of the other
forms, are written ``hex:…``; ``base64:…`` is understood as well. JSON has ``{"text": …}`` for valid UTF-8 and
``{"base64": …}`` for the rest.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from percolator_core.errors import abbreviated
from percolator_core.notation.error import NotationError

_PREFIXES: Final = ("hex:", "base64:")


def parse_bytes(text: str) -> bytes:
    """The bytes that an argument stands for.

    Raises NotationError when what follows ``hex:`` or ``base64:`` is neither.
    """
    form, colon, rest = text.partition(":")
    try:
        if colon and form == "hex":
            return bytes.fromhex(rest)
        if colon and form == "base64":
            return base64.b64decode(rest, validate=True)
        return text.encode()
    except (ValueError, binascii.Error):
        pass
    raise NotationError(f"{text!r} is not {form}: give plain text as it is, and text that starts so as hex:…")


def show_bytes(data: bytes, longest: int | None = None) -> str:
    """The bytes as text that `parse_bytes` understands; cut off with ``…`` behind ``longest`` characters."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if not data or (text and text.isprintable() and not text.startswith(_PREFIXES)):
        shown = text
    else:
        shown = "hex:" + (data if longest is None else data[:longest]).hex()
    return shown if longest is None else abbreviated(shown, longest)


def show_value(data: bytes, longest: int | None = None) -> str:
    """A value for people: as `show_bytes`, but text may go over several lines when it is not to be cut."""
    if longest is None:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return show_bytes(data)
        if all(letter.isprintable() or letter in "\n\t\r" for letter in text):
            return text
    return show_bytes(data, longest)


def json_bytes(data: bytes) -> dict[str, str]:
    """The bytes in JSON."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
