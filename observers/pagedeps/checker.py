"""Recompute everything from the raw pages and resources, and report every wrong cell.

Call `check` while the chain is idle. This is batch code on dictionaries. It shares the parsers and the
composition of snapshots with the observers, but not the incremental updates.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from observers.pagedeps.addresses import address_of
from observers.pagedeps.document import Source, compose, references
from observers.pagedeps.embedding import Content, content_of, digest_of
from observers.pagedeps.reach import stamp
from observers.pagedeps.rows import Edge, edge, row
from observers.webindex.checker import Violation, cell_violations, row_name
from schemas.pagedeps import Facts, Made, Parsed

if TYPE_CHECKING:
    from percolator_core import Database
    from percolator_core.transaction.snapshot import Snapshot

Table = dict[bytes, dict[str, bytes]]
Contents = dict[str, Content]

_PAGE: Final = frozenset({"html", "parsed", "snapshot", "made"})
_RESOURCE: Final = frozenset({"content", "content_type", "facts", "embedding", "reach", "seen"})


def check(snapshot: Snapshot) -> list[Violation]:
    """Return all violations in the derived tables."""
    pages, resources = dict(snapshot.scan("pages")), dict(snapshot.scan("resources"))
    contents = {
        address: content_of(address, cells["content"], cells.get("content_type"))
        for key, cells in resources.items()
        if "content" in cells and (address := address_of(key)) is not None
    }
    found = list(_pages(pages, contents))
    found += _resources(resources, contents)
    found += _index({key for key, _ in snapshot.scan("dependents")}, pages, contents)
    return found


def needless(db: Database) -> list[Violation]:
    """Return the renders whose inputs had not changed, among the versions that the store still has."""
    found = []
    for key, _ in db.snapshot().scan("pages", columns=["made"]):
        versions = [version.value for version in db.history("pages", key, "made")]
        for newer, older in pairwise(versions):
            if newer is not None and older is not None:
                after, before = Made.decode(newer), Made.decode(older)
                if (after.source, after.resources) == (before.source, before.resources):
                    found.append(Violation("needless", row_name(key), f"render {after.renders}"))
    return found


# Pages.


def _pages(pages: Table, contents: Contents) -> Iterator[Violation]:
    sources = {address: Source(content.kind, content.embedding) for address, content in contents.items()}
    for key, cells in pages.items():
        address = address_of(key)
        expected: dict[str, bytes] = {}
        if address is not None and "html" in cells:
            html = cells["html"]
            named = references(address, html)
            reached = _reached(named, contents)
            expected = {
                "html": html,
                "parsed": Parsed(digest=digest_of(html), references=named).encode(),
                "snapshot": compose(
                    address, html, {name: sources[name] for name in reached & sources.keys()}
                ),
            }
            yield from _made(key, cells.get("made"), digest_of(html), reached, contents)
        elif "made" in cells:
            yield Violation("orphan", f"pages {row_name(key)} made", "there is no page")
        for column in sorted(_PAGE - {"made"} | cells.keys() - {"made"}):
            if address is not None or column != "html":
                yield from cell_violations(
                    "page", f"pages {row_name(key)} {column}", cells.get(column), expected.get(column)
                )


def _made(
    key: bytes, value: bytes | None, digest: str, reached: set[str], contents: Contents
) -> Iterator[Violation]:
    where = f"pages {row_name(key)} made"
    try:
        made = Made.decode(value or b"")
    except ValidationError as error:
        yield Violation("made", where, f"{error.error_count()} errors")
        return
    expected = {name: contents[name].digest if name in contents else None for name in sorted(reached)}
    if made.source != digest or made.resources != expected:
        yield Violation("made", where, f"{made.resources}, should be {expected}")


def _reached(named: tuple[str, ...], contents: Contents) -> set[str]:
    """Return all resources on which a document depends, directly or through style sheets."""
    reached: set[str] = set()
    pending = list(named)
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            if name in contents:
                pending.extend(contents[name].references)
    return reached


# Resources.


def _resources(resources: Table, contents: Contents) -> Iterator[Violation]:
    facts: dict[str, Facts | None] = {}
    for key, cells in resources.items():
        address = address_of(key)
        if address is None:
            continue
        try:
            facts[address] = Facts.decode(cells["facts"]) if "facts" in cells else None
        except ValidationError as error:
            yield Violation("facts", f"resources {row_name(key)} facts", f"{error.error_count()} errors")
            continue
        yield from _facts(key, facts[address], contents.get(address))
        content = contents.get(address)
        where = f"resources {row_name(key)} embedding"
        yield from cell_violations(
            "facts", where, cells.get("embedding"), content.embedding if content else None
        )
        if surplus := cells.keys() - _RESOURCE:
            yield Violation("orphan", f"resources {row_name(key)}", f"should not be there: {sorted(surplus)}")
    for address in sorted(facts):
        if facts[address] is not None:
            named = {name: facts.get(name) for name in _reached((address,), contents)}
            where = f"resources {address} reach"
            yield from cell_violations("reach", where, resources[address.encode()].get("reach"), stamp(named))


def _facts(key: bytes, facts: Facts | None, content: Content | None) -> Iterator[Violation]:
    there = (facts.digest, facts.kind, facts.references) if facts else (None, None, ())
    expected = (content.digest, content.kind, content.references) if content else (None, None, ())
    if there != expected:
        yield Violation("facts", f"resources {row_name(key)} facts", f"{there}, should be {expected}")


# The index.


def _index(rows: set[bytes], pages: Table, contents: Contents) -> Iterator[Violation]:
    expected = {
        row(Edge(name.encode(), "style", address.encode()))
        for address, content in contents.items()
        for name in content.references
    }
    for key, cells in pages.items():
        address = address_of(key)
        if address is not None and "html" in cells:
            expected |= {row(Edge(name.encode(), "page", key)) for name in references(address, cells["html"])}
    for key in sorted(rows - expected):
        try:
            yield Violation("orphan", f"dependents {edge(key)}", "should not be there")
        except ValueError as error:
            yield Violation("orphan", "dependents", str(error))
    for key in sorted(expected - rows):
        yield Violation("index", f"dependents {edge(key)}", "missing")
