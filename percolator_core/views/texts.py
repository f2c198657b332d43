"""Functions of texts, as in DuckDB."""

from __future__ import annotations

import re
from functools import lru_cache


def _upper(char: str) -> str:
    for other in (char.upper(), char.title()):
        if len(other) == 1:
            return other
    return {"ß": "ẞ"}.get(char, char)


def upper(text: str) -> str:
    """Return the text with each letter replaced by one capital letter."""
    return text.upper() if text.isascii() else "".join(map(_upper, text))


def lower(text: str) -> str:
    """Return the text with each letter replaced by one small letter."""
    if text.isascii():
        return text.lower()
    return "".join("i" if char == "İ" else char.lower() for char in text)


def substring(text: str, start: int, length: int | None = None) -> str:
    """Return a part of a text. It begins at 1, or before the end; a negative length goes backwards."""
    count = len(text)
    begin = start - 1 if start > 0 else max(count + start, 0) if start < 0 else -1
    if start < 0 and count + start < 0 and length is not None and length > 0:
        # The missing characters before the text count.
        length = max(length + count + start, 0)
    if start == 0 and length is None:
        begin = 0
    if length is None:
        return text[max(begin, 0) :]
    low, high = (begin, begin + length) if length >= 0 else (begin + length, begin)
    return text[max(low, 0) : max(high, 0)]


def left(text: str, count: int) -> str:
    """Return the first characters, or all but the last ones."""
    return text[:count] if count >= 0 else text[: max(len(text) + count, 0)]


def right(text: str, count: int) -> str:
    """Return the last characters, or all but the first ones."""
    if count >= 0:
        return text[max(len(text) - count, 0) :]
    return text[-count:]


@lru_cache(maxsize=1000)
def pattern_of(pattern: str, escape: str) -> re.Pattern[str]:
    """Return the pattern of LIKE as a regular expression. Raises ValueError for an escape at its end."""
    found, at = [], 0
    while at < len(pattern):
        char = pattern[at]
        if escape and char == escape:
            at += 1
            if at == len(pattern):
                raise ValueError("a pattern of LIKE must not end with the escape character")
            found.append(re.escape(pattern[at]))
        else:
            found.append({"%": ".*", "_": "."}.get(char) or re.escape(char))
        at += 1
    return re.compile("".join(found), re.DOTALL)


def replaced(text: str, old: str, new: str) -> str:
    """Return the text with ``new`` for each ``old``; an empty ``old`` is nowhere."""
    return text.replace(old, new) if old else text
