"""Pages: their references, and the self-contained HTML of a page with its resources.

Everything that a browser would load is embedded: style sheets as ``<style>``, images as ``data:`` URLs.
Elements that run code, play media or load another page are removed. Links stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from selectolax.lexbor import LexborHTMLParser

from observers.pagedeps import style
from observers.pagedeps.addresses import fragment, resolve
from observers.webindex.encoding import decode

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

    from schemas.pagedeps import Kind

MAX_EMBEDDED: Final = 32 << 20
"""A snapshot embeds at most this many bytes of resources; further resources get a placeholder."""

MAX_DEPTH: Final = 32
"""The longest chain of style sheets that import each other; the next sheet counts as missing."""

_LEAST_BYTES: Final = 256
"""An embedded resource counts as at least this many bytes. So the limit also holds for empty style sheets
that each import the next sheet twice."""

_IMAGES: Final = {
    "img[src]": "src",
    "input[src]": "src",
    "video[poster]": "poster",
    "[background]": "background",
}
_LEFT_OUT: Final = (
    "script, iframe, frame, object, embed, audio, source, track, meta[http-equiv=refresh i], "
    "link[rel~=preload i], link[rel~=prefetch i], link[rel~=modulepreload i], link[rel~=manifest i]"
)
_ATTRIBUTES_LEFT_OUT: Final = ("srcset", "sizes", "imagesrcset", "integrity", "nonce")


class Source(NamedTuple):
    """A resource in the form in which pages embed it."""

    kind: Kind
    embedding: bytes


def references(address: str, html: bytes) -> tuple[str, ...]:
    """Return the addresses of the resources that a page names directly, sorted."""
    tree, base = _read(address, html)
    found: set[str | None] = set()
    for node in _sheets(tree):
        found.add(resolve(base, node.attributes.get("href") or ""))
    for node, name in _images(tree):
        found.add(resolve(base, node.attributes.get(name) or ""))
    for node in tree.css("style"):
        found |= style.references(base, node.text())
    for node in tree.css("[style]"):
        found |= style.references(base, node.attributes.get("style") or "")
    return tuple(sorted(address for address in found if address is not None))


def compose(address: str, html: bytes, sources: Mapping[str, Source]) -> bytes:
    """Return the snapshot of a page. A resource that is not in ``sources`` gets a placeholder."""
    tree, base = _read(address, html)
    for node in tree.css(_LEFT_OUT):
        node.decompose()
    for name in _ATTRIBUTES_LEFT_OUT:
        for node in tree.css(f"[{name}]"):
            del node.attrs[name]
    made = _Composition(sources, MAX_EMBEDDED)
    for node in tree.css("[style]"):
        node.attrs["style"] = made.sheet(base, node.attributes.get("style") or "", ())
    for node in tree.css("style"):
        node.inner_html = _inside_style(made.sheet(base, node.text(), ()))
    for node in _sheets(tree):
        _replace_link(tree, node, resolve(base, node.attributes.get("href") or ""), made)
    for node, name in _images(tree):
        reference = node.attributes.get(name) or ""
        embedded = made.image(base, reference)
        if embedded is not None:
            node.attrs[name] = embedded
            if embedded.startswith(_PLACEHOLDER):
                node.attrs["data-missing"] = resolve(base, reference) or reference
    # The byte order mark overrides the encoding that the page declares.
    return b"\xef\xbb\xbf" + (tree.html or "").encode("utf-8", "replace")


def _read(address: str, html: bytes) -> tuple[LexborHTMLParser, str]:
    text, _encoding = decode(html, None, markup=True)
    tree = LexborHTMLParser(text)
    base = tree.css_first("base[href]")
    declared = resolve(address, base.attributes.get("href") or "") if base is not None else None
    return tree, declared or address


def _sheets(tree: LexborHTMLParser) -> list[LexborNode]:
    """Return the style sheets that a browser uses: all except alternate style sheets."""
    return [
        node
        for node in tree.css("link[rel~=stylesheet i][href]")
        if "alternate" not in (node.attributes.get("rel") or "").lower().split()
    ]


def _images(tree: LexborHTMLParser) -> Iterator[tuple[LexborNode, str]]:
    for selector, name in _IMAGES.items():
        for node in tree.css(selector):
            yield node, name
    for node in tree.css("link[rel~=icon i][href]"):
        yield node, "href"
    for node in tree.css("image"):  # of SVG; no selector finds a name with a colon
        for name in ("href", "xlink:href"):
            if node.attributes.get(name):
                yield node, name


def _replace_link(tree: LexborHTMLParser, link: LexborNode, address: str | None, made: _Composition) -> None:
    if address is None:
        return
    text = made.include(address, ())
    node = tree.create_node("style")
    media = link.attributes.get("media")
    if media:
        node.attrs["media"] = media
    node.attrs["data-missing" if text is None else "data-from"] = address
    node.inner_html = _inside_style(text or "")
    link.replace_with(node)


def _inside_style(sheet: str) -> str:
    """Escape every ``</``, which could end the element; style sheets allow an escaped slash."""
    return sheet.replace("</", "<\\/")


_PLACEHOLDER: Final = "data:image/svg+xml,%3Csvg%20data-missing"


def placeholder(address: str) -> str:
    """Return the placeholder of a missing image: an empty frame with the address in its source."""
    drawing = (
        f"{quote(address, safe='')}'%20xmlns='http://www.w3.org/2000/svg'%20width='120'%20height='40'%3E"
        "%3Crect%20width='119'%20height='39'%20fill='none'%20stroke='gray'%20stroke-dasharray='4'/%3E%3C/svg%3E"
    )
    return f"{_PLACEHOLDER}='{drawing}"


@dataclass(slots=True)
class _Composition:
    """The composition of one snapshot; ``left`` is the number of bytes that may still be embedded."""

    sources: Mapping[str, Source]
    left: int

    def image(self, base: str, reference: str) -> str | None:
        """Return the ``data:`` URL for a reference; None leaves the reference unchanged."""
        address = resolve(base, reference)
        if address is None:
            return None
        source = self.sources.get(address)
        if source is None or source.kind != "data" or not self._take(source):
            return placeholder(address)
        return source.embedding.decode() + fragment(reference)

    def sheet(self, base: str, text: str, path: tuple[str, ...]) -> str:
        """Embed the resources of a style sheet; ``path`` has the sheets through which it is imported."""

        def include(reference: str) -> str | None:
            address = resolve(base, reference)
            if address is None:
                return None
            found = self.include(address, path)
            return f"/* missing: {address.replace('*', '%2A')} */" if found is None else found

        return style.rewrite(text, partial(self.image, base), include)

    def include(self, address: str, path: tuple[str, ...]) -> str | None:
        """Return the text of the style sheet at an address: empty in a cycle, None if it is missing."""
        if address in path:
            return ""
        source = self.sources.get(address) if len(path) < MAX_DEPTH else None
        if source is None or source.kind != "style" or not self._take(source):
            return None
        return self.sheet(address, source.embedding.decode(), (*path, address))

    def _take(self, source: Source) -> bool:
        size = max(len(source.embedding), _LEAST_BYTES)
        if size > self.left:
            return False
        self.left -= size
        return True
