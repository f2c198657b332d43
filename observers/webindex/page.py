"""Parse one crawled page, for the document processor and the checker."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Literal

from observers.webindex import markup
from observers.webindex.encoding import decode
from observers.webindex.html import HtmlPage, read_html
from observers.webindex.urls import normalise, resolve
from schemas.webindex import Content, Outlinks, Pointer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_TITLE: Final = 300
MAX_TEXT: Final = 200_000
"""At most this many characters of a page's text are indexed."""

MAX_TARGETS: Final = 5_000
"""At most this many distinct targets of a page's links are kept, the first ones in the document."""

MAX_ANCHOR: Final = 100
MAX_ANCHORS_A_LINK: Final = 8
"""Limits of the characters of an anchor text, and of the distinct anchor texts from one page to another."""

Kind = Literal["html", "markdown", "restructured", "plain", "binary"]

_KINDS: Final[dict[str, Kind]] = {
    "text/html": "html",
    "application/xhtml+xml": "html",
    "application/xml": "html",
    "text/xml": "html",
    "text/markdown": "markdown",
    "text/x-markdown": "markdown",
    "text/x-rst": "restructured",
    "text/prs.fallenstein.rst": "restructured",
}
_SUFFIXES: Final[dict[str, Kind]] = {
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".rst": "restructured",
    ".txt": "plain",
}
_TAG: Final = re.compile(rb"<(?:!doctype|!--|\?xml|[a-z][a-z0-9]{0,9}[\s/>])", re.IGNORECASE)
_JUNK: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_BINARY_STARTS: Final = (
    b"%PDF-",
    b"\x89PNG",
    b"GIF8",
    b"\xff\xd8\xff",
    b"PK\x03\x04",
    b"\x1f\x8b",
    b"\x7fELF",
)
_CONTROLS: Final = re.compile(r"[ \x00-\x1f\x7f]+")
_SNIFFED: Final = 1024


@dataclass(frozen=True, slots=True)
class Page:
    """A parsed document: the cells of its page that do not depend on other pages."""

    pointer: Pointer
    content: Content
    outlinks: Outlinks


def is_page(row: bytes) -> bool:
    """Return True if the row key can be a page: it is printable, so it has no NUL, the separator in keys."""
    try:
        return row.decode().isprintable() and row != b""
    except UnicodeDecodeError:
        return False


def parse(url: str, contents: bytes, content_type: str | None = None, redirect: str | None = None) -> Page:
    """Parse the document at ``url``. A ``redirect`` (absolute or relative) overrides the contents.

    This never raises an error: junk becomes a page without text.
    """
    if redirect is not None and redirect.strip():
        target = resolve(url, redirect) or normalise(redirect)
        # The redirect is the page's only link, so the page passes its rank on to the target.
        links = _collect(url, [] if target is None else [(target, "")])
        return Page(Pointer(next=next(iter(links.root), None)), Content(), links)
    if not contents:
        return Page(Pointer(), Content(), Outlinks({}))
    kind = _kind(url, contents, content_type)
    if kind == "binary":
        return Page(Pointer(fingerprint=_fingerprint(contents, kind)), Content(), Outlinks({}))
    text, encoding = decode(contents, content_type, markup=kind == "html")
    fingerprint = _fingerprint(contents, f"{kind} {encoding}")
    if kind == "html":
        return _html_page(url, read_html(text), fingerprint)
    reader = {"markdown": markup.markdown, "restructured": markup.restructured, "plain": markup.plain}[kind]
    title, body, references = reader(text)
    content = Content(title=_clean(title, MAX_TITLE), text=_clean(body, MAX_TEXT))
    return Page(
        Pointer(fingerprint=fingerprint, indexable=bool(content.title or content.text)),
        content,
        _collect(url, ((resolve(url, reference), anchor) for reference, anchor in references)),
    )


def parse_document(url: bytes, cells: Mapping[str, bytes]) -> Page | None:
    """Parse a row of ``documents``; None if it has no contents."""
    contents = cells.get("contents")
    if contents is None:
        return None
    others = (cells.get(column) for column in ("content_type", "redirect"))
    return parse(
        url.decode(), contents, *(None if one is None else one.decode("utf-8", "replace") for one in others)
    )


def _html_page(url: str, page: HtmlPage, fingerprint: str) -> Page:
    base = resolve(url, page.base) or url if page.base else url
    content = Content(title=_clean(page.title, MAX_TITLE), text=_clean(page.text, MAX_TEXT))
    canonical = resolve(base, page.canonical) if page.canonical else None
    pointer = Pointer(
        fingerprint=fingerprint,
        next=canonical if canonical != url else None,
        indexable=bool(content.title or content.text) and not page.noindex,
    )
    # A page often repeats its links, so each spelling is resolved only once.
    targets = {reference: resolve(base, reference) for reference, _ in page.links}
    return Page(
        pointer, content, _collect(url, ((targets[reference], anchor) for reference, anchor in page.links))
    )


def _collect(url: str, links: Iterable[tuple[str | None, str]]) -> Outlinks:
    """Group links by target; a page's links to itself are left out."""
    collected: dict[str, dict[str, None]] = {}
    for target, anchor in links:
        if target is None or target == url:
            continue
        anchors = collected.get(target)
        if anchors is None:
            if len(collected) >= MAX_TARGETS:
                continue
            anchors = collected[target] = {}
        if len(anchors) < MAX_ANCHORS_A_LINK:
            text = _clean(anchor, MAX_ANCHOR)
            if text:
                anchors[text] = None
    return Outlinks({target: tuple(collected[target]) for target in sorted(collected)})


def _kind(url: str, contents: bytes, content_type: str | None) -> Kind:
    """Return the kind of a document: by its declared type, by the suffix of its URL, or by its content."""
    head = contents[:_SNIFFED]
    if head.startswith(_BINARY_STARTS):
        return "binary"
    sixteen_bit = head.startswith((b"\xff\xfe", b"\xfe\xff")) or "utf-16" in (content_type or "").lower()
    if not sixteen_bit and len(_JUNK.findall(head)) * 50 > len(head):
        return "binary"
    declared = (content_type or "").partition(";")[0].strip().lower()
    if declared and declared in _KINDS:
        return _KINDS[declared]
    if declared and declared != "application/octet-stream" and not declared.startswith("text/"):
        return "binary"
    path = url.partition("?")[0].rpartition("/")[2]
    by_suffix = _SUFFIXES.get("." + path.rpartition(".")[2].lower()) if "." in path else None
    if by_suffix and (by_suffix != "html" or not declared):
        return by_suffix
    return "html" if not declared and _TAG.search(head.replace(b"\0", b"")) else "plain"


def _fingerprint(contents: bytes, how: str) -> str:
    """Return a fingerprint; equal fingerprints mean equal contents, decoded in the same way."""
    return blake2b(
        contents, digest_size=16, person=blake2b(how.encode(), digest_size=16).digest()
    ).hexdigest()


def _clean(text: str, limit: int) -> str:
    """Return one line of at most ``limit`` characters, with single spaces and without lone surrogates."""
    text = " ".join(text[: 4 * limit].split())
    if not text.isprintable():
        text = _CONTROLS.sub(" ", text).strip()
    text = text[:limit].rstrip()
    return text.encode("utf-8", "replace").decode() if not text.isascii() else text
