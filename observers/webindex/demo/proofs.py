"""Searches that show the index, and searches that prove that a change has reached the index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from observers.webindex.demo.report import Proof
from observers.webindex.demo.update import MANY
from observers.webindex.search import search

if TYPE_CHECKING:
    from collections.abc import Sequence

    from observers.webindex.demo.changes import Change
    from observers.webindex.index import ServingIndex

QUERIES: Final = 3
_FAVOURITES: Final = ("data frames on spark", "yaml parser", "apache license", "redis client", "type checker")
"""Queries that match the documentation of most installations."""


def queries(index: ServingIndex) -> list[str]:
    """Return queries that the index can answer: favourites, or else words of its best pages' titles."""
    found = [query for query in _FAVOURITES if _answers(index, query)][:QUERIES]
    best = index.query(
        "SELECT w.title FROM postings p JOIN words w ON w.rowid = p.id WHERE w.title <> '' "
        "ORDER BY p.rank DESC LIMIT 50",
        (),
    )
    for (title,) in best:
        if len(found) == QUERIES:
            break
        words = [word.strip(".,:;()").lower() for word in str(title).split()]
        query = " ".join(
            sorted({word for word in words if len(word) > 3 and word.isalpha()}, key=words.index)[:2]
        )
        if query and not any(query in other or other in query for other in found):
            found.append(query)
    return found


def prove(changes: Sequence[Change], index: ServingIndex) -> list[Proof]:
    """Check the changes after the chain is idle; return one proof for each kind of change."""
    proofs: dict[str, Proof] = {}
    for change in changes:
        proof = _prove(change, index)
        # Every change is checked. The report has the first proof of each kind, or one that fails.
        if change.kind not in proofs or not proof.holds:
            proofs[change.kind] = proof
    return list(proofs.values())


def _prove(change: Change, index: ServingIndex) -> Proof:
    found = [result.url for result in search(change.query, MANY, index=index)]
    there = change.url in found
    match change.kind:
        case "deleted":
            return Proof("the deleted page is gone", change.query, not there, [])
        case "duplicated":
            holds = not there and found.count(change.other) == 1
            return Proof("copy and original are one result", change.query, holds, [change.other])
        case "link":
            # The target of the link is found, too, by the words of the link.
            return Proof("the words of a new link are found", change.query, there, found)
        case "heading":
            return Proof("a new word in a heading is found", change.query, found == [change.url], found)
        case _:
            return Proof("a new word is found", change.query, found == [change.url], found)


def _answers(index: ServingIndex, query: str) -> bool:
    """Return True if a page has all the words."""
    words = " ".join(f'"{word}"' for word in query.split())
    return bool(index.query("SELECT 1 FROM words WHERE words MATCH ? LIMIT 1", (words,)))
