"""Style sheets: their references, and their text with all imports included.

The parser knows text, comments, strings, ``url(…)`` and ``@import``; everything else stays unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from observers.pagedeps.addresses import resolve

# Quantifiers are possessive or bounded, and an unterminated string counts as a string, so that no sheet takes
# quadratic time.
_ENDS: Final = r"(?:(?=\n)|\\?\Z)"
_STRING: Final = rf""""(?:[^"\\\n]|\\.)*+(?:"|{_ENDS})|'(?:[^'\\\n]|\\.)*+(?:'|{_ENDS})"""
_URL: Final = rf"""(?<![\w-])url\(\s*+(?:{_STRING}|(?:[^"'()\\\s]|\\.)*+)\s*+\)"""
_TOKEN: Final = re.compile(
    rf"""(?P<comment>/\*.*?(?:\*/|\Z))|(?P<charset>@charset\s[^;]{{0,100}};)
    |@import\s*(?P<imported>{_URL}|{_STRING})(?P<condition>[^;{{}}]{{0,1000}})(?:;|\Z)
    |(?P<url>{_URL})|(?P<string>{_STRING})""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
# The text that may precede an @import; after any other text, imports are ignored.
_PREAMBLE: Final = re.compile(r"(?:\s|<!--|-->|@layer[^;{}]*;)*", re.IGNORECASE)
_ESCAPE: Final = re.compile(r"\\(?:([0-9a-fA-F]{1,6})\s?|(\n)|(.))", re.DOTALL)
_LAYER: Final = re.compile(r"layer(?:\(([^()]*)\))?(?=\s|\Z)", re.IGNORECASE)
_SUPPORTS: Final = re.compile(r"supports(\((?:[^()]|\([^()]*\))*\))", re.IGNORECASE)


class Piece(NamedTuple):
    """A part of a style sheet. ``text`` is the text to copy, or the reference.

    ``condition`` is the condition of an import.
    """

    kind: Literal["text", "url", "import"]
    text: str
    condition: str = ""


@lru_cache(maxsize=64)
def pieces(sheet: str) -> tuple[Piece, ...]:
    """Return the parts of a sheet. An ``@import`` after the first rule is ignored, as in browsers."""
    return tuple(_pieces(sheet))


def _pieces(sheet: str) -> Iterator[Piece]:
    position, at_top = 0, True
    for match in _TOKEN.finditer(sheet):
        between = sheet[position : match.start()]
        position = match.end()
        if between:
            at_top = at_top and _PREAMBLE.fullmatch(between) is not None
            yield Piece("text", between)
        if match["imported"] is not None:
            if at_top:
                yield Piece("import", _reference(match["imported"]), match["condition"].strip())
        elif match["url"] is not None:
            at_top = False
            yield Piece("url", _reference(match["url"]))
        elif match["string"] is not None:
            at_top = False
            yield Piece("text", match["string"])
        # Comments are dropped, and so are charsets, because the text is now UTF-8.
    if position < len(sheet):
        yield Piece("text", sheet[position:])


def _reference(text: str) -> str:
    if text[:4].lower() == "url(":
        text = text[4:-1].strip()
    if text[:1] in {'"', "'"}:
        text = text[1:].removesuffix(text[0])
    return _ESCAPE.sub(_unescaped, text)


def _unescaped(match: re.Match[str]) -> str:
    if match[1] is None:
        return match[3] or ""
    code = int(match[1], 16)
    return chr(code) if 0 < code < 0xD800 or 0xDFFF < code < 0x110000 else "\ufffd"


def references(base: str, sheet: str) -> set[str]:
    """Return the addresses of all resources that the sheet names."""
    found = (resolve(base, piece.text) for piece in pieces(sheet) if piece.kind != "text")
    return {address for address in found if address is not None}


def rewrite(sheet: str, embed: Callable[[str], str | None], include: Callable[[str], str | None]) -> str:
    """Replace each reference of a sheet.

    ``embed`` returns the ``data:`` URL of a reference, or None to keep the reference; ``include`` returns the
    text of an imported sheet, or None if the reference is no resource.
    """
    parts = []
    for piece in pieces(sheet):
        if piece.kind == "text":
            parts.append(piece.text)
        elif piece.kind == "url":
            parts.append(f'url("{_quoted(embed(piece.text) or piece.text)}")')
        else:
            text = include(piece.text)
            parts.append("" if text is None else _conditional(text, piece.condition))
    return "".join(parts)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\a ")


def _conditional(text: str, condition: str) -> str:
    """Wrap an imported sheet in the conditions of its import."""
    layer = _LAYER.match(condition)
    if layer is not None:
        condition = condition[layer.end() :].strip()
    supports = _SUPPORTS.match(condition)
    if supports is not None:
        condition = condition[supports.end() :].strip()
    if condition:
        text = f"@media {condition} {{\n{text}\n}}"
    if supports is not None:
        text = f"@supports {supports[1]} {{\n{text}\n}}"
    if layer is not None:
        text = f"@layer {layer[1] or ''} {{\n{text}\n}}"
    return text + "\n"
