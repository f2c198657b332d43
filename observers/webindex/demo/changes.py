"""The demo's changes of documents: edits of their text, a deletion, a duplicate."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from observers.webindex.page import parse
from observers.webindex.search import search
from percolator_core.loading.formats.pages import CONTENT_TYPES, page_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from observers.webindex.demo.crawl import Crawl
    from observers.webindex.index import Posting, ServingIndex
    from observers.webindex.page import Page

EDITED: Final = 10
"""A run edits this many documents."""

Kind = Literal["paragraph", "heading", "link", "deleted", "duplicated"]

_KINDS: Final[tuple[Kind, ...]] = ("paragraph", "heading", "paragraph", "link")
_SYLLABLES: Final = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
_AFTER_HEADING: Final = re.compile(rb"</h[12]>", re.IGNORECASE)
_IN_HEADING: Final = re.compile(rb"(?=</h[12]>)", re.IGNORECASE)
_AFTER_BODY: Final = re.compile(rb"<body[^>]*>", re.IGNORECASE)
_BEFORE_END: Final = re.compile(rb"(?=</body>)|\Z", re.IGNORECASE)
_MOST_BYTES: Final = 150_000
"""The largest page that is edited, in bytes: the end of a larger page might not be indexed."""

_MOST_COPIED_LINKS: Final = 60


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one document.

    ``query`` is the search that shows the effect: the new word of an edited document, or the title of a
    deleted or duplicated document. ``other`` is the target of a new link, or the original of a duplicate.
    ``contents`` is None for a deletion.
    """

    kind: Kind
    name: str
    url: str
    query: str
    contents: bytes | None
    other: str = ""


def plan(crawl: Crawl, index: ServingIndex, run: int) -> list[Change]:
    """Return the changes of the run with this number; a small corpus gives fewer changes.

    Each run has different changes; the same documents and the same run give the same changes.
    """
    chance = random.Random(f"{crawl.state.corpus} {run}")
    return _Planner(crawl, index, chance).plan(run)


class _Planner:
    """Choose the documents to change; each document is changed at most once."""

    def __init__(self, crawl: Crawl, index: ServingIndex, chance: random.Random) -> None:
        self._crawl = crawl
        self._index = index
        self._chance = chance
        self._postings = {posting.url: posting for posting in index.postings()}
        self._pages = dict(_editable(crawl, self._postings))
        self._words = _new_words(index, chance)
        # Pages with a unique title come first, because a search for the title shows exactly that page.
        titles = Counter(posting.title for posting in self._postings.values())
        shuffled = chance.sample(sorted(self._pages), len(self._pages))
        self._free = sorted(shuffled, key=lambda url: titles[self._postings[url].title] > 1)

    def plan(self, run: int) -> list[Change]:
        """Return the edits, then the deletion, then the duplicate; `_take` keeps documents for the edits."""
        others = [change for change in (self._deletion(), self._duplicate(run)) if change is not None]
        targets = self._free[:EDITED]
        edits: list[Change] = []
        while self._free and len(edits) < EDITED:
            change = self._edit(self._free.pop(0), _KINDS[len(edits) % len(_KINDS)], targets)
            if change is not None:
                edits.append(change)
        return edits + others

    def _deletion(self) -> Change | None:
        """Delete a page of low rank that is the first result for its own title."""
        by_rank = sorted(self._free, key=lambda url: self._postings[url].rank)
        url = self._take(by_rank[: max(1, len(by_rank) // 2)])
        return (
            None if url is None else Change("deleted", self._pages[url], url, self._postings[url].title, None)
        )

    def _duplicate(self, run: int) -> Change | None:
        """Copy a page of high rank to a second URL without incoming links."""
        by_rank = sorted(self._free, key=lambda url: -self._postings[url].rank)
        light = (url for url in by_rank if self._contents(url).count(b"href") <= _MOST_COPIED_LINKS)
        url = self._take([url for url, _ in zip(light, range(20), strict=False)])
        if url is None:
            return None
        name = f"copies/{run}/{self._pages[url]}"
        copy_url = page_url(self._crawl.base_url, name)
        title = self._postings[url].title
        return Change("duplicated", name, copy_url, title, self._contents(url), other=url)

    def _take(self, urls: list[str]) -> str | None:
        """Take a free URL that is the first result for its title; the last free URLs are kept for edits."""
        if len(self._free) <= 2:
            return None
        self._chance.shuffle(urls)
        for url in urls:
            found = search(self._postings[url].title, 1, index=self._index)
            if found and found[0].url == url:
                self._free.remove(url)
                return url
        return None

    def _edit(self, url: str, kind: Kind, targets: list[str]) -> Change | None:
        """Return the first edit whose new word the parser sees; None if there is no such edit."""
        word = next(self._words)
        target = next((target for target in targets if target != url), "")
        kind = "paragraph" if kind == "link" and not target else kind
        old = self._contents(url)
        suffix = Path(self._pages[url]).suffix.lower()
        content_type = CONTENT_TYPES[suffix]
        for done, new in _edited(old, kind, word, target, html=suffix in {".html", ".htm", ".xhtml"}):
            if _is_found_there_alone(word, parse(url, new, content_type), target if done == "link" else ""):
                return Change(done, self._pages[url], url, word, new, target if done == "link" else "")
        return None

    def _contents(self, url: str) -> bytes:
        return (self._crawl.documents / self._pages[url]).read_bytes()


def _editable(crawl: Crawl, postings: dict[str, Posting]) -> Iterator[tuple[str, str]]:
    """Yield URL and file of the text documents that are shown under their own URL."""
    for path, name in crawl.source().files:
        url = page_url(crawl.base_url, name)
        if url not in postings or not postings[url].title or Path(path).stat().st_size > _MOST_BYTES:
            continue
        start = Path(path).read_bytes()[:4096]
        # A page with a canonical URL is left out: the index may show the text of the canonical page.
        if b"\0" not in start and b"canonical" not in start.lower():
            yield url, name


def _is_found_there_alone(word: str, page: Page, target: str) -> bool:
    """Return True if the page has the word, and none of its links has the word, except links to ``target``.

    A heading may be inside a link. Then a word in the heading is also in the text of this link.
    """
    named = (anchors for url, anchors in page.outlinks.root.items() if url != target)
    return word in page.content.text and not any(word in anchor for anchors in named for anchor in anchors)


def _edited(old: bytes, kind: Kind, word: str, target: str, *, html: bool) -> Iterator[tuple[Kind, bytes]]:
    """Yield possible edits of the document, best first."""
    sentence = f"This page was edited while the index was running; look for {word}.".encode()
    if not html:
        yield "paragraph", old + b"\n\n" + sentence + b"\n"
        return
    if kind == "heading":
        yield "heading", _IN_HEADING.sub(f", {word} edition".encode(), old, count=1)
    if kind == "link":
        link = f'<p>See also <a href="{escape(target)}">{word}</a>.</p>'.encode()
        for place in (_AFTER_HEADING, _AFTER_BODY, _BEFORE_END):
            yield "link", _inserted(old, place, link)
    for place in (_AFTER_HEADING, _AFTER_BODY, _BEFORE_END):
        yield "paragraph", _inserted(old, place, b"<p>" + sentence + b"</p>")


def _inserted(old: bytes, place: re.Pattern[bytes], new: bytes) -> bytes:
    found = place.search(old)
    return old if found is None else old[: found.end()] + b"\n" + new + old[found.end() :]


def _new_words(index: ServingIndex, chance: random.Random) -> Iterator[str]:
    """Yield pronounceable words that no page has."""
    given: set[str] = set()
    while True:
        word = "".join(chance.choices(_SYLLABLES, k=4))
        if word not in given and not search(word, 1, index=index):
            given.add(word)
            yield word
