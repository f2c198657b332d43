"""What the demo does to documents: real edits of their text, a deletion, a duplicate."""

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
from percolator_core.spark.loading.formats.pages import CONTENT_TYPES, page_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from observers.webindex.demo.crawl import Crawl
    from observers.webindex.index import Posting, ServingIndex
    from observers.webindex.page import Page

EDITED: Final = 10
"""Documents that a run edits."""

Kind = Literal["paragraph", "heading", "link", "deleted", "duplicated"]

_KINDS: Final[tuple[Kind, ...]] = ("paragraph", "heading", "paragraph", "link")
_SYLLABLES: Final = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
_AFTER_HEADING: Final = re.compile(rb"</h[12]>", re.IGNORECASE)
_IN_HEADING: Final = re.compile(rb"(?=</h[12]>)", re.IGNORECASE)
_AFTER_BODY: Final = re.compile(rb"<body[^>]*>", re.IGNORECASE)
_BEFORE_END: Final = re.compile(rb"(?=</body>)|\Z", re.IGNORECASE)
_MOST_BYTES: Final = 150_000
"""Size of a page that is edited: what stands at its end is still indexed."""

_MOST_COPIED_LINKS: Final = 60


@dataclass(frozen=True, slots=True)
class Change:
    """One change to one document.

    ``query`` finds what the change makes: the new word of an edited document; the document that is deleted,
    or duplicated, itself. ``other`` is the page that a new link leads to, or the original of a duplicate.
    ``contents`` is None for a deletion.
    """

    kind: Kind
    name: str
    url: str
    query: str
    contents: bytes | None
    other: str = ""


def plan(crawl: Crawl, index: ServingIndex, run: int) -> list[Change]:
    """The changes of the run with this number, other ones in each; fewer where there are few documents."""
    # The same documents and the same run give the same changes: a reader can follow them.
    chance = random.Random(f"{crawl.state.corpus} {run}")
    return _Planner(crawl, index, chance).plan(run)


class _Planner:
    """Chooses documents; each is changed once."""

    def __init__(self, crawl: Crawl, index: ServingIndex, chance: random.Random) -> None:
        self._crawl = crawl
        self._index = index
        self._chance = chance
        self._postings = {posting.url: posting for posting in index.postings()}
        self._pages = dict(_editable(crawl, self._postings))
        self._words = _new_words(index, chance)
        # Pages with a title of their own first: the result of a search for it is plain to see.
        titles = Counter(posting.title for posting in self._postings.values())
        shuffled = chance.sample(sorted(self._pages), len(self._pages))
        self._free = sorted(shuffled, key=lambda url: titles[self._postings[url].title] > 1)

    def plan(self, run: int) -> list[Change]:
        """Edits first, then the deletion, then the duplicate; at least one document is edited."""
        others = [change for change in (self._deletion(), self._duplicate(run)) if change is not None]
        targets = self._free[:EDITED]
        edits: list[Change] = []
        while self._free and len(edits) < EDITED:
            change = self._edit(self._free.pop(0), _KINDS[len(edits) % len(_KINDS)], targets)
            if change is not None:
                edits.append(change)
        return edits + others

    def _deletion(self) -> Change | None:
        """A page that its own title finds first, of those that matter least."""
        by_rank = sorted(self._free, key=lambda url: self._postings[url].rank)
        url = self._take(by_rank[: max(1, len(by_rank) // 2)])
        return (
            None if url is None else Change("deleted", self._pages[url], url, self._postings[url].title, None)
        )

    def _duplicate(self, run: int) -> Change | None:
        """A copy of a page of high rank under a second URL, which nobody links to."""
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
        """One of the URLs whose title finds it, out of the free ones; the last ones are kept for edits."""
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
        """The first way to put a new word into the page that the parser sees; None if there is none."""
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
    """URL and file of the documents that are shown under their own URL and are text that can be edited."""
    for path, name in crawl.source().files:
        url = page_url(crawl.base_url, name)
        if url not in postings or not postings[url].title or Path(path).stat().st_size > _MOST_BYTES:
            continue
        start = Path(path).read_bytes()[:4096]
        # A page that names another one as its canonical form shows that one's text, whatever its own says.
        if b"\0" not in start and b"canonical" not in start.lower():
            yield url, name


def _is_found_there_alone(word: str, page: Page, target: str) -> bool:
    """Whether the page shows the word, and leads nobody but ``target`` to be found by it.

    A heading may stand inside of a link: then what is added to it is also said of the page behind the link.
    """
    named = (anchors for url, anchors in page.outlinks.root.items() if url != target)
    return word in page.content.text and not any(word in anchor for anchors in named for anchor in anchors)


def _edited(old: bytes, kind: Kind, word: str, target: str, *, html: bool) -> Iterator[tuple[Kind, bytes]]:
    """What the document could become, best first."""
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
    """Words that can be spoken and that no page has."""
    given: set[str] = set()
    while True:
        word = "".join(chance.choices(_SYLLABLES, k=4))
        if word not in given and not search(word, 1, index=index):
            given.add(word)
            yield word
