"""Text for row keys and values, which may be any bytes. Printed text can be entered again.

Printable UTF-8 is written as it is. Other bytes, and text that begins with ``hex:`` or ``base64:``, are
written as ``hex:…``; ``base64:…`` is accepted as input, too. In JSON, valid UTF-8 is ``{"text": …}``, and all
other bytes are ``{"base64": …}``.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from percolator_core.errors import abbreviated
from percolator_core.notation.error import NotationError

_PREFIXES: Final = ("hex:", "base64:")


def parse_bytes(text: str) -> bytes:
    """Parse an argument into bytes.

    Raises NotationError if the text after ``hex:`` or ``base64:`` is not valid in that encoding.
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
    raise NotationError(
        f"{text!r} is not valid {form}: correct it, or write text that begins with '{form}:' as hex:…"
    )


def show_bytes(data: bytes, longest: int | None = None) -> str:
    """Return bytes as text that `parse_bytes` accepts, cut off with ``…`` after ``longest`` characters."""
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
    """Return a value for display, as `show_bytes` does; without ``longest``, text keeps its line breaks."""
    if longest is None:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return show_bytes(data)
        if all(letter.isprintable() or letter in "\n\t\r" for letter in text):
            return text
    return show_bytes(data, longest)


def json_bytes(data: bytes) -> dict[str, str]:
    """Return the bytes as a JSON object."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
