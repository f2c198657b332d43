"""Search the serving index: ``search("vacuum", limit=10)``, best results first.

FTS5 finds candidates by bm25; words in titles, anchors and URLs count more than words in the text. A
candidate gets a higher score if the query is its *name*: the full text of a link to it, its title, or the
last part of its URL. A higher rank raises the score, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import log1p
from typing import TYPE_CHECKING, Any, Final

from observers.webindex.index import open_index

if TYPE_CHECKING:
    from observers.webindex.index import ServingIndex

MAX_WORDS: Final = 32
"""At most this many words of a query are used."""

WEIGHTS: Final = (12.0, 6.0, 6.0, 1.0)
"""The weights of words in the title, the anchors, the URL and the text for bm25."""

CALLED_BY_ANCHOR: Final = 0.6
CALLED_BY_TITLE: Final = 0.4
CALLED_BY_URL: Final = 0.3
"""The addition to the score for each kind of name; the best bm25 counts 1."""

RANK_WEIGHT: Final = 0.1
CANDIDATES: Final = 200
"""bm25 selects at most this many candidates, before names and ranks count."""

_WORD: Final = re.compile(r"[^\W_]+(?:[_.'-]+[^\W_]+)*", re.UNICODE)
_PLAIN_WORD: Final = re.compile(r"[^\W_]+", re.UNICODE)
_NUMBERING: Final = re.compile(r"^(?:chapter |appendix |part )?[\divxa-z]{0,4}[\d.]+\s+", re.IGNORECASE)
_STATEMENT: Final = """
SELECT p.url, w.title, w.anchors, p.rank, p.size, bm25(words, ?, ?, ?, ?) AS fit, w.rowid
FROM words w JOIN postings p ON p.id = w.rowid WHERE words MATCH ? ORDER BY fit LIMIT ?
"""
_SNIPPET: Final = "SELECT snippet(words, 3, '**', '**', '…', 24) FROM words WHERE words MATCH ? AND rowid = ?"


@dataclass(frozen=True, slots=True)
class Result:
    """A found page. A higher ``score`` is better; ``snippet`` is text with the found words in ``**``.

    ``size`` is the number of pages in its cluster: itself, duplicates, and pages that redirect to it.
    """

    url: str
    title: str
    snippet: str
    score: float
    rank: float
    size: int


def search(
    query: str,
    limit: int = 10,
    *,
    index: ServingIndex | None = None,
) -> list[Result]:
    """Return pages with all words of ``query``. If there is no such page, return pages with any of the words.

    A query has no syntax.
    """
    index = index or open_index()
    words = _WORD.findall(query)[:MAX_WORDS]
    if not words or limit < 1:
        return []
    # FTS5 reads quoted words as text. A word contains no quote, so nothing needs escaping.
    quoted = [f'"{word}"' for word in words]
    for match in (" ".join(quoted), " OR ".join(quoted)):
        found = index.query(_STATEMENT, (*WEIGHTS, match, max(CANDIDATES, limit)))
        if found:
            return _best(index, _scored(found, words), limit, match)
    return []


def _scored(found: list[tuple[Any, ...]], words: list[str]) -> list[tuple[Result, int]]:
    """Return the candidates, best first, each with its row, but no snippets. A smaller bm25 is better."""
    phrase = _plain(" ".join(words))
    best = min(fit for *_, fit, _ in found) or -1.0
    scored = []
    for url, title, anchors, rank, size, fit, identity in found:
        called = fit / best + _called(phrase, url, title, anchors)
        score = called * (1 + RANK_WEIGHT * log1p(rank))
        scored.append((Result(url, title, "", score, rank, size), identity))
    scored.sort(key=lambda one: (-one[0].score, one[0].url))
    return scored


def _called(phrase: str, url: str, title: str, anchors: str) -> float:
    """Return the addition to the score if the words are a name of the page."""
    worth = 0.0
    if any(_plain(line) == phrase for line in anchors.split("\n") if len(line) < 2 * len(phrase) + 8):
        worth += CALLED_BY_ANCHOR
    name = _plain(_NUMBERING.sub("", title))
    if name == phrase or name.startswith(phrase + " "):
        worth += CALLED_BY_TITLE
    elif f" {phrase} " in f" {name} ":
        worth += CALLED_BY_TITLE / 2
    if _plain(url.partition("?")[0].rstrip("/").rpartition("/")[2].partition(".")[0]) == phrase:
        worth += CALLED_BY_URL
    return worth


def _plain(text: str) -> str:
    """Return the words in lower case, without punctuation."""
    return " ".join(_PLAIN_WORD.findall(text.lower()))


def _best(index: ServingIndex, scored: list[tuple[Result, int]], limit: int, match: str) -> list[Result]:
    results: dict[str, Result] = {}
    for result, identity in scored:
        # While a page moves between two clusters, both may show it for a short time.
        if result.url not in results:
            rows = index.query(_SNIPPET, (match, identity))
            results[result.url] = replace(result, snippet=rows[0][0]) if rows else result
        if len(results) == limit:
            break
    return list(results.values())
