"""Convert Markdown, reStructuredText and plain text to simple HTML.

The conversion knows headings, paragraphs, lists, code and links; everything else keeps only its text. The
result has only the tags below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import escape
from html.parser import HTMLParser
from typing import Final
from urllib.parse import urlsplit

_TAGS: Final = frozenset(
    [
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "p",
        "a",
        "ul",
        "ol",
        "li",
        "dl",
        "dt",
        "dd",
        "pre",
        "code",
        "em",
        "strong",
        "b",
        "i",
        "blockquote",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "br",
        "hr",
    ]
)
_VOID: Final = frozenset({"br", "hr"})
_SILENT: Final = frozenset({"script", "style", "head", "template", "svg"})
_URL: Final = re.compile(r"https?://[^\s<>\"'`]+[^\s<>\"'`.,;:!?)\]}]")


def markdown(text: str) -> str:
    """Return the HTML of Markdown."""
    from markdown_it import MarkdownIt

    return clean(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))


def plain(text: str) -> str:
    """Return the HTML of plain text: paragraphs, with links for URLs."""
    return "\n".join(f"<p>{_linked(block)}</p>" for block in _blocks(text))


def verbatim(text: str) -> str:
    """Return the HTML of text whose line breaks matter."""
    return f"<pre>{_linked(text.strip())}</pre>"


def clean(html: str) -> str:
    """Remove scripts, styles, unusual tags, and all attributes except web links; keep the text."""
    cleaner = _Cleaner()
    cleaner.feed(html)
    cleaner.close()
    return cleaner.result()


class _Cleaner(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._parts: list[str] = []
        self._open: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SILENT:
            self._silent += 1
        elif self._silent:
            return
        elif tag == "img":
            self._parts.append(escape(dict(attrs).get("alt") or ""))
        elif tag in _VOID:
            self._parts.append(f"<{tag}>")
        elif tag in _TAGS:
            href = dict(attrs).get("href") or ""
            if tag != "a":
                self._parts.append(f"<{tag}>")
            elif is_web(href):
                self._parts.append(f'<a href="{escape(href)}">')
            else:
                return  # an anchor, or a link to a file of the repository
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in _SILENT:
            self._silent = max(0, self._silent - 1)
        elif tag in self._open and not self._silent:
            while self._open:
                last = self._open.pop()
                self._parts.append(f"</{last}>")
                if last == tag:
                    break

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self._parts.append(escape(data, quote=False))

    def result(self) -> str:
        """Return the result with every tag closed."""
        while self._open:
            self._parts.append(f"</{self._open.pop()}>")
        return "".join(self._parts)


def is_web(url: str) -> bool:
    """Return True if the URL is a well-formed link to the web."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.netloc)


# reStructuredText

_UNDERLINE: Final = re.compile(r"^([=\-~^\"'`#*+:._])\1{2,}\s*$")
_BULLET: Final = re.compile(r"^\s*(?:[*+-]|\d+[.)]|\#\.)\s+")
_DIRECTIVE: Final = re.compile(r"^\s*\.\.\s+([\w-]+)::\s*(.*)$")
_TARGET: Final = re.compile(r"^\s*\.\.\s+_`?([^:`]+)`?:\s*(\S+)\s*$")
_SUBSTITUTION: Final = re.compile(r"^\s*\.\.\s+\|([^|]+)\|\s+[\w-]+::")
_CODE: Final = frozenset({"code", "code-block", "sourcecode", "parsed-literal", "doctest"})
_INLINE: Final = re.compile(
    r"``(?P<code>.+?)``|`(?P<text>[^`<]+?)\s*<(?P<url>[^`>]+)>`__?|`(?P<name>[^`]+)`_{0,2}(?!\w)"
    r"|(?::[\w:-]+:)`(?P<role>[^`]+)`|\*\*(?P<strong>[^*]+)\*\*|(?<![\w*])\*(?P<em>[^*\s][^*]*)\*(?!\w)"
    r"|(?P<word>\b[\w-]+)_(?!\w)|(?P<bare>https?://[^\s<>\"'`]+[^\s<>\"'`.,;:!?)\]}])",
    re.DOTALL,
)


def restructured(text: str) -> str:
    """Return the HTML of reStructuredText, for the syntax that READMEs of packages use."""
    lines = text.expandtabs(4).splitlines()
    targets = {match[1].strip().lower(): match[2] for line in lines if (match := _TARGET.match(line))}
    for name in {match[1] for line in lines if (match := _SUBSTITUTION.match(line))}:
        lines = [line.replace(f"|{name}|_", "").replace(f"|{name}|", "") for line in lines]  # mostly badges
    return "\n".join(_Restructured(targets).convert("\n".join(lines)))


class _Restructured:
    """Convert block by block.

    The first kind of underline in the text marks headings of level 1, the second kind marks headings of level
    2, and so on.
    """

    def __init__(self, targets: dict[str, str]) -> None:
        self._targets = targets
        self._ranks: list[str] = []
        self._literal = False

    def convert(self, text: str) -> Iterator[str]:
        for block in _blocks(text):
            lines = [line for line in block.splitlines() if not _TARGET.match(line)]
            if self._literal and lines and lines[0].startswith((" ", ">")):
                yield f"<pre>{escape(block, quote=False)}</pre>"
                continue
            self._literal = False
            yield from self._block(lines)

    def _block(self, lines: list[str]) -> Iterator[str]:
        lines = lines[1:] if len(lines) > 2 and _UNDERLINE.match(lines[0]) else lines
        if not lines:
            return
        directive = _DIRECTIVE.match(lines[0])
        if directive:
            yield from self._directive(directive[1], directive[2], lines[1:])
        elif lines[0].lstrip().startswith(".. "):
            return  # a comment, a footnote or a target
        elif len(lines) > 1 and _UNDERLINE.match(lines[1]):
            yield self._heading(lines[0].strip(), lines[1][0])
            yield from self._block(lines[2:])
        elif _BULLET.match(lines[0]):
            yield self._list(lines)
        else:
            yield self._paragraph("\n".join(line for line in lines if not _UNDERLINE.match(line)))

    def _directive(self, name: str, argument: str, lines: list[str]) -> Iterator[str]:
        body = [line for line in lines if not re.match(r"^\s+:[\w-]+:", line)]
        if name in _CODE:
            self._literal = True
            if body:
                yield f"<pre>{escape(chr(10).join(body), quote=False)}</pre>"
        elif name not in {"image", "figure", "contents", "raw", "include", "highlight", "toctree", "meta"}:
            words = " ".join([argument, *body]).strip()
            if words:
                yield self._paragraph(words)

    def _heading(self, title: str, underline: str) -> str:
        if underline not in self._ranks:
            self._ranks.append(underline)
        rank = min(self._ranks.index(underline) + 1, 6)
        return f"<h{rank}>{self._inline(title)}</h{rank}>"

    def _list(self, lines: list[str]) -> str:
        items: list[str] = []
        for line in lines:
            found = _BULLET.match(line)
            if found:
                items.append(line[found.end() :])
            else:
                items[-1] += " " + line.strip()
        return "<ul>" + "".join(f"<li>{self._inline(item)}</li>" for item in items) + "</ul>"

    def _paragraph(self, text: str) -> str:
        stripped = text.rstrip()
        if stripped.endswith("::"):
            self._literal = True
            stripped = stripped[:-1]
        return f"<p>{self._inline(stripped)}</p>" if stripped.strip(": ") else ""

    def _inline(self, text: str) -> str:
        return _replaced(_INLINE, self._span, text)

    def _span(self, found: re.Match[str]) -> str:
        kind = found.lastgroup or ""
        inside = found[kind]
        if kind == "code":
            return f"<code>{escape(inside, quote=False)}</code>"
        if kind in {"strong", "em"}:
            return f"<{kind}>{escape(inside, quote=False)}</{kind}>"
        if kind == "bare":
            return _link(inside, inside)
        if kind == "url":
            return _link(inside.strip(), found["text"])
        if kind == "role":
            return escape(inside, quote=False)
        url = self._targets.get(inside.strip().lower())
        return _link(url, inside) if url else escape(found[0] if kind == "word" else inside, quote=False)


def _blocks(text: str) -> Iterator[str]:
    for block in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")):
        if block.strip():
            yield block.strip("\n")


def _link(url: str, text: str) -> str:
    words = escape(text, quote=False)
    return f'<a href="{escape(url)}">{words}</a>' if is_web(url) else words


def _linked(text: str) -> str:
    return _replaced(_URL, lambda found: _link(found[0], found[0]), text)


def _replaced(pattern: re.Pattern[str], html_of: Callable[[re.Match[str]], str], text: str) -> str:
    """Replace each match by its HTML, and escape the text between the matches."""
    parts: list[str] = []
    position = 0
    for found in pattern.finditer(text):
        parts += [escape(text[position : found.start()], quote=False), html_of(found)]
        position = found.end()
    return "".join([*parts, escape(text[position:], quote=False)])
