"""Recompute the whole index from the raw documents, and report every wrong cell and posting.

This is batch code on dictionaries. It shares the parser and the definitions with the observers, but not the
incremental updates. Ranks are compared with a tolerance. Everything else is compared exactly; values that
depend on ranks are computed from the stored ranks. Call `check` while the chain is idle.

``python -m observers.webindex.checker URL NAMESPACE [INDEX]`` prints one line for each violation, and exits
with 1 if there is any. INDEX is the file of the serving index.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass
from math import fsum, isclose
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from observers.webindex.definitions import (
    MAX_DUPLICATES,
    MAX_HOPS,
    TOLERANCE,
    differs,
    frequent_anchors,
    preference,
    rank_of,
    share_of,
)
from observers.webindex.iteration import exact_ranks, spread
from observers.webindex.page import Page, is_page, parse_document
from observers.webindex.rows import cluster_key, pair
from schemas.webindex import Anchors, Entry, Standing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from observers.webindex.index import Posting, ServingIndex
    from percolator_core.transaction.snapshot import Snapshot

Table = dict[bytes, dict[str, bytes]]
Inlinks = dict[bytes, dict[bytes, tuple[str, ...]]]

TABLES: Final = (
    "documents",
    "pages",
    "contents",
    "links",
    "pointers",
    "clusters",
    "serving",
    "serving_texts",
)
PAGE_COLUMNS: Final = frozenset({"parsed", "pointer", "outlinks", "rank", "anchors", "cluster"})


@dataclass(frozen=True, slots=True)
class Violation:
    """A wrong cell or posting; ``where`` is the table, row and column, or the posting's key."""

    invariant: str
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.where}: {self.detail}"


def check(snapshot: Snapshot, index: ServingIndex | None = None) -> list[Violation]:
    """Return all violations in the derived tables and, if given, in the serving index."""
    stored = {table: dict(snapshot.scan(table)) for table in TABLES}
    pages = parse_documents(stored["documents"])
    found = list(_pages(pages, stored["pages"]))
    contents = {url: {"content": page.content.encode()} for url, page in pages.items()}
    found += _compare("contents", stored["contents"], contents)
    inlinks = _inverted(pages)
    found += _compare("links", stored["links"], _links(pages))
    found += _compare("pointers", stored["pointers"], _pointers(pages))
    keys = {url: cluster_key(*_terminal(url, pages)) for url in pages}
    found += _compare(
        "clusters", stored["clusters"], {pair(key, url): {"member": b""} for url, key in keys.items()}
    )
    found += _compare_column("clusters", "cluster", stored["pages"], keys)
    anchors = {url: frequent_anchors(inlinks[url].values()) for url in pages}
    expected_anchors = {url: Anchors(texts).encode() for url, texts in anchors.items()}
    found += _compare_column("inverted links", "anchors", stored["pages"], expected_anchors)
    standings, damaged = _standings(stored["pages"], pages)
    found += damaged
    found += _ranks(pages, inlinks, standings)
    serving = _serving(pages, keys, anchors, {url: standing.rank for url, standing in standings.items()})
    for table, column in (("serving", "entry"), ("serving_texts", "text")):
        cells_of_key = {key: {column: cells[column]} for key, cells in serving.items()}
        found += _compare(table, stored[table], cells_of_key)
    if index is not None:
        found += _postings(serving, index)
    return found


def parse_documents(documents: Table) -> dict[bytes, Page]:
    """Parse every document that is a page."""
    parsed = {url: parse_document(url, cells) for url, cells in documents.items() if is_page(url)}
    return {url: page for url, page in parsed.items() if page is not None}


# The page's own cells, its links and pointers: exact.


def _pages(pages: dict[bytes, Page], stored: Table) -> Iterator[Violation]:
    for url in stored.keys() - pages.keys():
        yield Violation("orphan", f"pages {row_name(url)}", f"no document, but {sorted(stored[url])}")
    for url in pages:
        cells = stored.get(url, {})
        if missing := PAGE_COLUMNS - cells.keys():
            yield Violation("page", f"pages {row_name(url)}", f"missing {sorted(missing)}")
        if surplus := cells.keys() - PAGE_COLUMNS:
            yield Violation("orphan", f"pages {row_name(url)}", f"unknown {sorted(surplus)}")
    for column, invariant in (("pointer", "fingerprint"), ("outlinks", "page")):
        expected = {url: getattr(page, column).encode() for url, page in pages.items()}
        yield from _compare_column(invariant, column, stored, expected)


def _links(pages: dict[bytes, Page]) -> Table:
    return {
        pair(target.encode(), source): {"anchors": Anchors(texts).encode()}
        for source, page in pages.items()
        for target, texts in page.outlinks.root.items()
    }


def _pointers(pages: dict[bytes, Page]) -> Table:
    return {
        pair(page.pointer.next.encode(), source): {"source": b""}
        for source, page in pages.items()
        if page.pointer.next is not None
    }


def _inverted(pages: dict[bytes, Page]) -> Inlinks:
    """Return the anchor texts by target and source."""
    inlinks: Inlinks = defaultdict(dict)
    for source, page in pages.items():
        for target, texts in page.outlinks.root.items():
            inlinks[target.encode()][source] = texts
    return inlinks


def _terminal(url: bytes, pages: dict[bytes, Page]) -> tuple[bytes, str | None]:
    """Follow redirects and canonical URLs from ``url``; return the last page and its fingerprint."""
    path = [url]
    while len(path) <= MAX_HOPS:
        pointed = pages[path[-1]].pointer.next
        if pointed is None or pointed.encode() not in pages:
            break
        if pointed.encode() in path:
            circle = path[path.index(pointed.encode()) :]
            with_content = [page for page in circle if pages[page].pointer.fingerprint is not None]
            path.append(min(with_content or circle))
            break
        path.append(pointed.encode())
    return path[-1], pages[path[-1]].pointer.fingerprint


# Ranks: within the tolerance.


def _standings(stored: Table, pages: dict[bytes, Page]) -> tuple[dict[bytes, Standing], list[Violation]]:
    standings, damaged = {}, []
    for url in pages:
        value = stored.get(url, {}).get("rank")
        if value is not None:
            try:
                standings[url] = Standing.decode(value)
            except ValidationError as error:
                damaged.append(
                    Violation("rank", f"pages {row_name(url)} rank", f"{error.error_count()} errors")
                )
    return standings, damaged


def _ranks(
    pages: dict[bytes, Page], inlinks: Inlinks, standings: dict[bytes, Standing]
) -> Iterator[Violation]:
    """Compare each share with its rank, and each rank with the incoming shares and with the fixed point."""
    for url, standing in standings.items():
        where = f"pages {row_name(url)} rank"
        share = share_of(standing.rank, len(pages[url].outlinks.root))
        if not isclose(standing.share, share, rel_tol=1e-12):
            yield Violation("share", where, f"share {standing.share!r}, its rank gives {share!r}")
        computed = rank_of(standings[source].share for source in inlinks[url] if source in standings)
        if differs(standing.rank, computed):
            yield Violation("rank", where, f"{standing.rank!r}, its links give {computed!r}")
    if len(standings) < len(pages):
        return  # Missing ranks are reported already, and the fixed point needs all of them.
    targets = {url: [name.encode() for name in page.outlinks.root] for url, page in pages.items()}
    exact = exact_ranks(targets)
    # The bound allows an error of TOLERANCE at each page; errors spread along the links like ranks.
    bound = spread(targets, {url: TOLERANCE * standing.rank for url, standing in standings.items()})
    for url, standing in standings.items():
        if abs(standing.rank - exact[url]) > bound[url] * (1 + 1e-6) + 1e-6:
            detail = f"{standing.rank!r}, a full iteration gives {exact[url]!r} ± {bound[url]:.3g}"
            yield Violation("rank", f"pages {row_name(url)} rank", detail)


# The serving entries: exact, computed from the stored ranks.


def _serving(
    pages: dict[bytes, Page],
    keys: dict[bytes, bytes],
    anchors: dict[bytes, tuple[str, ...]],
    ranks: dict[bytes, float],
) -> Table:
    members: dict[bytes, list[bytes]] = defaultdict(list)
    for url, key in keys.items():
        members[key].append(url)
    serving: Table = {}
    for key, urls in members.items():
        candidates = [url for url in urls if pages[url].pointer.indexable and url in ranks]
        if not candidates:
            continue
        shown = min(candidates, key=lambda url: preference(url.decode(), ranks[url]))
        entry = Entry(
            url=shown.decode(),
            title=pages[shown].content.title,
            fingerprint=pages[shown].pointer.fingerprint or "",
            rank=fsum(
                ranks[url] for url in urls if pages[url].pointer.fingerprint is not None and url in ranks
            ),
            anchors=frequent_anchors(anchors[url] for url in urls),
            duplicates=tuple(url.decode() for url in sorted(urls) if url != shown)[:MAX_DUPLICATES],
            size=len(urls),
        )
        serving[key] = {"entry": entry.encode(), "text": pages[shown].content.text.encode()}
    return serving


def _postings(serving: Table, index: ServingIndex) -> Iterator[Violation]:
    """Compare each posting with its serving row, and the inverted lists of the index with the postings."""
    postings = {posting.key.encode(): posting for posting in index.postings()}
    for key in postings.keys() - serving.keys():
        yield Violation("orphan", f"posting {row_name(key)}", f"no entry, but it shows {postings[key].url}")
    shown: dict[str, bytes] = {}
    for key, posting in postings.items():
        if posting.url in shown:
            yield Violation(
                "duplicate in index", posting.url, f"in {row_name(shown[posting.url])} and {row_name(key)}"
            )
        shown[posting.url] = key
    for key, cells in serving.items():
        if key not in postings:
            yield Violation("posting", f"posting {row_name(key)}", "missing")
            continue
        yield from _posting(postings[key], Entry.decode(cells["entry"]), cells["text"].decode())
    for identity in index.orphans():
        yield Violation("orphan", f"words {identity}", "belongs to no posting")
    if not index.intact():
        yield Violation("posting", "words", "the integrity check of FTS5 failed")


def _posting(posting: Posting, entry: Entry, text: str) -> Iterator[Violation]:
    where = f"posting {posting.key}"
    if posting.url != entry.url:
        yield Violation("canonical", where, f"shows {posting.url}, the best member is {entry.url}")
    for name, is_there, should_be in (
        ("title", posting.title, entry.title),
        ("anchors", posting.anchors, "\n".join(entry.anchors)),
        ("text", posting.text, text),
        ("fingerprint", posting.fingerprint, entry.fingerprint),
        ("rank", posting.rank, entry.rank),
        ("size", posting.size, entry.size),
    ):
        if is_there != should_be:
            yield Violation("posting", f"{where} {name}", f"{is_there!r:.80}, should be {should_be!r:.80}")


# Comparing.


def _compare(invariant: str, stored: Table, expected: Table) -> Iterator[Violation]:
    for row in stored.keys() - expected.keys():
        yield Violation(
            "orphan", f"{invariant} {row_name(row)}", f"should not be there: {sorted(stored[row])}"
        )
    for row, cells in expected.items():
        there = stored.get(row, {})
        for column in sorted(there.keys() | cells.keys()):
            yield from cell_violations(
                invariant, f"{invariant} {row_name(row)} {column}", there.get(column), cells.get(column)
            )


def _compare_column(
    invariant: str, column: str, pages: Table, expected: dict[bytes, bytes]
) -> Iterable[Violation]:
    for url, value in expected.items():
        there = pages.get(url, {}).get(column)
        if there is not None:  # A missing cell is reported once, with the page.
            yield from cell_violations(invariant, f"pages {row_name(url)} {column}", there, value)


def cell_violations(
    invariant: str, where: str, there: bytes | None, expected: bytes | None
) -> Iterator[Violation]:
    """Yield a violation if the stored value of a cell is not the expected one; None means no cell."""
    if there != expected:
        yield Violation(invariant, where, f"{_shown(there)}, should be {_shown(expected)}")


def _shown(value: bytes | None) -> str:
    return "nothing" if value is None else repr(value[:120])


def row_name(row: bytes) -> str:
    """Return a row key as text."""
    return row.decode("utf-8", "backslashreplace").replace("\0", " <- ")


def main(url: str, namespace: str, index: str | None = None) -> int:
    """Print the violations; return the exit code."""
    from observers.webindex.index import open_index
    from percolator_core import connect

    with connect(url, namespace) as db:
        found = check(db.snapshot(), None if index is None else open_index(index))
    for violation in found:
        print(violation)  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
