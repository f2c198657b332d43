"""Titles, text and links of marked-up text that is not HTML: Markdown, reStructuredText, plain text."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

# Every repetition is bounded, so that a page of a million brackets takes linear time.
_MD_INLINE: Final = re.compile(r"!?\[([^\[\]\n]{0,300})\]\(\s{0,9}<?([^()\s<>]{1,2048})>?[^()\n]{0,300}\)")
_MD_REFERENCE: Final = re.compile(r"\[([^\[\]\n]{1,300})\]\[([^\[\]\n]{0,300})\]")
_MD_DEFINITION: Final = re.compile(
    r"^ {0,3}\[([^\[\]\n]{1,300})\]:[ \t]{0,9}<?([^\s<>]{1,2048})>?.*$", re.MULTILINE
)
_AUTOLINK: Final = re.compile(r"<([a-z][a-z0-9+.-]{1,20}://[^\s<>]{1,2048})>", re.IGNORECASE)
_MD_HEADING: Final = re.compile(r"^ {0,3}#{1,6}[ \t]+(.{1,300}?)[ \t#]*$", re.MULTILINE)
_MD_SIGNS: Final = re.compile(r"^ {0,3}(?:#{1,6}|>|[-*+])[ \t]+|```|`|\*\*|__", re.MULTILINE)
_UNDERLINED: Final = re.compile(r"^(\S[^\n]{0,299})\n([=~`:'\"^_*+#<>.-])\2{2,}[ \t]*$", re.MULTILINE)
_RST_LINK: Final = re.compile(r"`([^`<>\n]{0,300}?)\s{0,9}<([^<>\s`]{1,2048})>`__?")
_RST_TARGET: Final = re.compile(r"^\.\. _([^:`\n]{1,300}): {0,9}(\S{1,2048})\s*$", re.MULTILINE)
_RST_NAMED: Final = re.compile(r"`([^`<>\n]{1,300})`_(?!_)|\b([A-Za-z0-9][\w.-]{0,99})_\b")


class Markup(NamedTuple):
    """A parsed page: ``links`` are (reference, anchor text) in document order."""

    title: str
    text: str
    links: list[tuple[str, str]]


def plain(text: str) -> Markup:
    """Read plain text: the title is the first line that is not blank."""
    return Markup(_first_line(text), text, [])


def markdown(text: str) -> Markup:
    """Read Markdown: inline links, reference links and ``<addresses>``; the title is the first heading."""
    defined = {name.casefold(): address for name, address in _MD_DEFINITION.findall(text)}
    links: list[tuple[str, str]] = []

    def inline(match: re.Match[str]) -> str:
        if not match[0].startswith("!"):
            links.append((match[2], match[1]))
        return match[1]

    def reference(match: re.Match[str]) -> str:
        target = defined.get((match[2] or match[1]).casefold())
        if target is None:
            return match[0]
        links.append((target, match[1]))
        return match[1]

    def address(match: re.Match[str]) -> str:
        links.append((match[1], match[1]))
        return match[1]

    headings = [match for match in (_MD_HEADING.search(text), _UNDERLINED.search(text)) if match]
    body = _MD_DEFINITION.sub("", text)
    body = _MD_REFERENCE.sub(reference, _MD_INLINE.sub(inline, body))
    body = _AUTOLINK.sub(address, body)
    body = _MD_SIGNS.sub("", body)
    title = min(headings, key=lambda match: match.start())[1] if headings else _first_line(body)
    return Markup(_MD_SIGNS.sub("", title), body, links)


def restructured(text: str) -> Markup:
    """Read reStructuredText: embedded and named links; the title is the first underlined line."""
    defined = {name.casefold(): address for name, address in _RST_TARGET.findall(text)}
    links: list[tuple[str, str]] = []

    def embedded(match: re.Match[str]) -> str:
        links.append((match[2], match[1] or match[2]))
        return match[1] or match[2]

    def named(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name.casefold() not in defined:
            return match[0]
        links.append((defined[name.casefold()], name))
        return name

    heading = _UNDERLINED.search(text)
    body = _RST_TARGET.sub("", text)
    body = _RST_NAMED.sub(named, _RST_LINK.sub(embedded, body))
    return Markup(heading[1] if heading else _first_line(body), body, links)


def _first_line(text: str) -> str:
    return next((line for line in map(str.strip, text.splitlines()) if line), "")
