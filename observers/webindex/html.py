"""Read HTML: title, visible text, links and the declarations in the head, with selectolax (lexbor)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from selectolax.lexbor import LexborHTMLParser, LexborNode

# The parser joins the text of adjacent elements without a space, so a line break is inserted before each tag
# of a block. That is much faster than walking the tree. The names are grouped by their first letter because
# the pattern is tried at every tag.
_BLOCK: Final = re.compile(
    r"<(?=/?(?:a(?:ddress|rticle|side)|b(?:lockquote|r|utton)|c(?:aption|enter)|d(?:d|etails|iv|l|t)|"
    r"f(?:ieldset|ig(?:ure|caption)|o(?:oter|rm))|h(?:[1-6r]|eader)|l(?:abel|egend|i)|main|nav|o(?:l|ption)|p(?:re)?|"
    r"s(?:e(?:ction|lect)|ummary)|t(?:able|body|d|extarea|h(?:ead)?|r)|ul)[\s/>])",
    re.IGNORECASE,
)
# The parser's time grows with the square of the depth. Pages that are deeper than this are junk; their
# structure is removed.
_TOO_DEEP: Final = 10_000
_STRUCTURE: Final = re.compile(
    r"</?(?!(?:a|base|body|br|head|html|link|meta|noscript|p|script|style|svg|template|title)[\s/>])[a-z][^<>]{0,2000}>",
    re.IGNORECASE,
)

_INVISIBLE: Final = ["script", "style", "noscript", "template", "svg", "iframe", "object", "head"]
_BOILERPLATE: Final = "nav, footer, [role=navigation], [role=contentinfo], .navheader, .navfooter"
"""Elements that repeat on every page of a site: their links count, their words do not."""


@dataclass(frozen=True, slots=True)
class HtmlPage:
    """A parsed HTML page; ``links`` are (reference, anchor text) in document order."""

    title: str
    text: str
    links: list[tuple[str, str]]
    base: str | None
    canonical: str | None
    noindex: bool


def read_html(markup: str) -> HtmlPage:
    """Parse HTML, even broken HTML. White space and links are not normalised."""
    # Each tag that is not closed may add a level of depth; a page with too many of them loses its structure.
    if markup.count("<") - 2 * markup.count("</") > _TOO_DEEP:
        markup = _STRUCTURE.sub("\n", markup)
    tree = LexborHTMLParser(_BLOCK.sub("\n<", markup))
    links = [
        (reference, _anchor(node))
        for node in tree.css("a[href]")
        if (reference := (node.attributes.get("href") or "").partition("#")[0].strip())
    ]
    base = tree.css_first("base[href]")
    title = _title(tree)
    canonical, noindex = _canonical(tree), _noindex(tree)
    base_address = base.attributes.get("href") if base is not None else None
    # From here on elements are removed from the tree.
    tree.strip_tags(_INVISIBLE)
    for node in tree.css(_BOILERPLATE):
        node.decompose()
    body = tree.body
    text = body.text() if body is not None else ""
    return HtmlPage(title, text, links, base_address, canonical, noindex)


def _anchor(link: LexborNode) -> str:
    """Return the link's text, or else its title, or else the alternative text of its image."""
    text = link.text().strip()
    if text:
        return text
    title = link.attributes.get("title")
    if title:
        return title
    image = link.css_first("img[alt]")
    return (image.attributes.get("alt") or "") if image is not None else ""


def _title(tree: LexborHTMLParser) -> str:
    for selector in ("head > title", "h1", "h2"):
        node = tree.css_first(selector)
        if node is not None:
            text = node.text().strip()
            if text:
                return text
    return ""


def _canonical(tree: LexborHTMLParser) -> str | None:
    """Return the first ``<link rel=canonical>`` in the head; a link in the body may be a reader's post."""
    for node in tree.css("head > link[rel][href]"):
        if "canonical" in (node.attributes.get("rel") or "").lower().split():
            return node.attributes.get("href") or None
    return None


def _noindex(tree: LexborHTMLParser) -> bool:
    for node in tree.css("meta[name][content]"):
        if (node.attributes.get("name") or "").lower() == "robots":
            words = re.split(r"[\s,]+", (node.attributes.get("content") or "").lower())
            if "noindex" in words or "none" in words:
                return True
    return False
