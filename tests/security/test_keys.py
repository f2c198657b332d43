"""Whatever names and rows hold: keys never collide, wildcards never match, and a tablet is one slot."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from redis.crc import key_slot

import percolator_core as percolator
from percolator_core import Database
from percolator_core.layout.keys import (
    MAX_COLUMN,
    MAX_NAME,
    CellAddress,
    Keyspace,
    acknowledgement,
    decode_column,
    decode_mark,
    decode_primary,
    encode_column,
    encode_mark,
    encode_primary,
    is_internal,
    tablet_of,
)
from percolator_core.layout.records import MAX_TABLETS
from tests.servers.plain import Server, some_namespace, until

ODD = "{}:\0*?[]\\^-\n\r %\xff~/.,\"'aA0é漢😀r"
KINDS = (b"r:", b"v:", b"rows", b"locks", b"meta", b"wake")
OBSERVED = (b"dirty:", b"tries:", b"failed:")
OWN = ("format", "oracle", "catalog", "chain", "pins")


def fits(name: str) -> bool:
    return 1 <= len(name.encode()) <= MAX_NAME


odd_text = st.text(st.sampled_from(ODD), min_size=1, max_size=12)
any_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=MAX_NAME)
long_text = st.sampled_from(["x" * 200, "{" * 200, "é" * 100, "漢" * 66, ":" * 199, "\0" * 200, "*" * 200])
names = st.one_of(odd_text, any_text, long_text).filter(fits)
rows = st.one_of(
    st.text(st.sampled_from(ODD), max_size=12).map(str.encode),
    st.binary(max_size=40),
    st.sampled_from([b"{a}", b"}{", b"{ns:t:0}r:x", b"\xff" * 9, b"r:", b"", b"x" * 2000]),
)
tablets = st.integers(0, MAX_TABLETS - 1)
observers = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
quick = settings(deadline=None, max_examples=300)


@st.composite
def tablet_keys(draw: st.DrawFn) -> tuple[tuple[Any, ...], bytes]:
    """Return the kind of a key, and the key."""
    namespace, table, tablet = draw(names), draw(names), draw(tablets)
    tag = Keyspace(namespace).tag(table, tablet)
    kind = draw(st.sampled_from(KINDS + OBSERVED))
    rest = b""
    if kind in (b"r:", b"v:"):
        rest = draw(rows)
    elif kind in OBSERVED:
        rest = draw(observers).encode()
    return (namespace, table, tablet, kind, rest), tag + kind + rest


@st.composite
def own_keys(draw: st.DrawFn) -> tuple[tuple[Any, ...], bytes]:
    keyspace = Keyspace(draw(names))
    kind = draw(st.sampled_from([*OWN, "client"]))
    if kind == "client":
        owner = draw(st.binary(min_size=1, max_size=8))
        return (keyspace.namespace, kind, owner), keyspace.client(owner)
    return (keyspace.namespace, kind), getattr(keyspace, kind)


any_key = st.one_of(tablet_keys(), own_keys())


@quick
@given(st.lists(any_key, min_size=2, max_size=20))
def test_keys_never_collide(found: list[tuple[tuple[Any, ...], bytes]]) -> None:
    meaning: dict[bytes, tuple[Any, ...]] = {}
    for stands_for, key in found:
        assert meaning.setdefault(key, stands_for) == stands_for


@quick
@given(st.lists(st.tuples(names, names, tablets), min_size=2, max_size=20))
@example([("a", "b:c", 0), ("a:b", "c", 0)])
@example([("a", "b", 11), ("a", "b:1", 1)])
@example([("a%3A", "b", 0), ("a:", "b", 0)])
def test_a_tag_tells_its_namespace_table_and_tablet(places: list[tuple[str, str, int]]) -> None:
    tags = {Keyspace(namespace).tag(table, number) for namespace, table, number in places}
    assert len(tags) == len(set(places))
    for namespace, table, number in places:
        tag = Keyspace(namespace).tag(table, number)
        assert CellAddress(tag, b"", b"c").table == table
        assert tag.startswith(Keyspace(namespace).prefix[:-1] + b":")


@quick
@given(names, names, tablets)
def test_a_tag_holds_no_wildcard_and_one_pair_of_braces(namespace: str, table: str, tablet: int) -> None:
    keyspace = Keyspace(namespace)
    for tag, colons in ((keyspace.tag(table, tablet), 2), (keyspace.prefix, 0)):
        assert tag.isascii()
        assert tag[:1] + tag[-1:] == b"{}"
        inside = tag[1:-1]
        assert inside
        assert not set(inside) & set(b"*?[]\\^{}\"' \0\n\r(),")
        assert inside.count(b":") == colons


@quick
@given(names, names, tablets, st.sampled_from(KINDS + OBSERVED), rows)
@example("n", "t", 0, b"r:", b"}{other}")
@example("}{x}", "{}", 7, b"r:", b"{a}{b}")
def test_a_tablet_is_one_slot(namespace: str, table: str, tablet: int, kind: bytes, row: bytes) -> None:
    tag = Keyspace(namespace).tag(table, tablet)
    assert key_slot(tag + kind + row) == key_slot(tag) == key_slot(tag[1:-1])


@quick
@given(names)
def test_what_is_no_tablets_is_one_slot(namespace: str) -> None:
    keyspace = Keyspace(namespace)
    found = {key_slot(getattr(keyspace, name)) for name in OWN} | {key_slot(keyspace.client(b"x{y}"))}
    assert len(found) == 1


@quick
@given(rows, st.integers(1, MAX_TABLETS))
def test_every_row_has_a_tablet(row: bytes, count: int) -> None:
    assert 0 <= tablet_of(row, count) < count


long_columns = st.builds(
    # As long as at the borders of what one and two bytes tell; "é" has two bytes.
    lambda size, letter: (letter * size).encode()[:size].decode(errors="ignore"),
    st.sampled_from([200, 201, 255, 256, 65_535, MAX_COLUMN]),
    st.sampled_from(["x", "é", "{}", "\0", "*", "\n"]),
)
columns = names | long_columns
encoded_columns = st.one_of(
    columns.map(encode_column), st.builds(acknowledgement, observers, columns.map(encode_column))
)


@quick
@given(names, names, tablets, rows, encoded_columns)
def test_primaries_round_trip(namespace: str, table: str, tablet: int, row: bytes, column: bytes) -> None:
    address = CellAddress(Keyspace(namespace).tag(table, tablet), row, column)
    assert decode_primary(encode_primary(address)) == address


@quick
@given(encoded_columns, rows)
def test_marks_round_trip(column: bytes, row: bytes) -> None:
    assert decode_mark(encode_mark(column, row)) == (column, row)


@quick
@given(st.lists(st.tuples(encoded_columns, rows), min_size=2, max_size=20))
@example([(b"a", b"bc"), (b"ab", b"c")])
def test_marks_and_primaries_never_collide(cells: list[tuple[bytes, bytes]]) -> None:
    assert len({encode_mark(column, row) for column, row in cells}) == len(set(cells))
    tag = b"{n:t:0}"
    packed = {encode_primary(CellAddress(tag, row, column)) for column, row in cells}
    assert len(packed) == len(set(cells))


@quick
@given(columns, observers)
def test_no_column_is_taken_for_an_internal_one(column: str, observer: str) -> None:
    encoded = encode_column(column)
    assert not is_internal(encoded)
    assert decode_column(encoded) == column
    mine = acknowledgement(observer, encoded)
    assert is_internal(mine)
    assert mine != encoded


@given(st.text(min_size=201, max_size=400) | st.just("é" * 101) | st.just(""))
def test_what_is_too_long_or_empty_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="200 bytes"):
        Keyspace(name)


@pytest.mark.parametrize("name", ["", "x" * (MAX_COLUMN + 1), "é" * (MAX_COLUMN // 2) + "x"])
def test_a_column_that_is_too_long_or_empty_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"a column name has 1 to {MAX_COLUMN} bytes, this one has"):
        encode_column(name)


@quick
@given(names, names, names, tablets)
@example("a", "a:b", "t", 0)
@example("*", "x", "t", 0)
@example("a", "a*", "t", 0)
@example("a", "a}", "t", 0)
def test_no_subscription_hears_another_namespace(one: str, other: str, table: str, tablet: int) -> None:
    pattern, channel = pattern_of(one), Keyspace(other).tag(table, tablet) + b"wake"
    # Only "*" is a wildcard in what we make of names, so this is what Redis' own matching does.
    assert fnmatchcase(channel.decode(), pattern.decode()) == (one == other)


def pattern_of(namespace: str) -> bytes:
    return Keyspace(namespace).prefix[:-1] + b":*wake"


HOSTILE = [
    "*",
    "a",
    "a*",
    "a:b",
    "a}",
    "{a",
    "a%",
    "a%3Ab",
    "?",
    "[a-z]",
    "\\*",
    "\0",
    "a\n",
    "A",
    "é",
    " ",
    "}{",
]


def test_the_server_matches_no_other_namespace(server: Server) -> None:
    with server.client() as client:
        for one in HOSTILE:
            pubsub = client.pubsub(ignore_subscribe_messages=True)
            pubsub.psubscribe(pattern_of(one))
            until(lambda p=pubsub: p.get_message() is None and bool(p.subscribed))  # type: ignore[misc]
            heard = {other: client.publish(Keyspace(other).tag("t", 0) + b"wake", "") for other in HOSTILE}
            assert {other for other, count in heard.items() if count} == {one}
            pubsub.close()


def test_what_the_library_subscribes_to(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pattern above is the one that is used."""
    namespace = "a *[?]"
    patterns: list[bytes] = []
    monkeypatch.setattr(
        "percolator_core.store.store.Subscription", lambda _, pattern: patterns.append(pattern)
    )
    with percolator.connect(server.unix, namespace) as db:
        db.store.subscription()
    assert patterns == [pattern_of(namespace)]


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cells=st.dictionaries(st.tuples(rows, names), st.binary(max_size=20), min_size=1, max_size=8), table=names
)
def test_odd_names_end_to_end(db: Database, table: str, cells: dict[tuple[bytes, str], bytes]) -> None:
    """Cells written under any names are read back under these names only, by cell, row and range."""
    if table in {one.name for one in db.tables()}:
        db.drop_table(table)
    db.create_table(table, tablets=3)
    with db.transaction() as t:
        for (row, column), value in cells.items():
            t.set(table, row, column, value)
    snapshot = db.snapshot()
    expected: dict[bytes, dict[str, bytes]] = {}
    for (row, column), value in cells.items():
        expected.setdefault(row, {})[column] = value
        assert snapshot.get(table, row, column) == value
    assert dict(snapshot.scan(table)) == expected
    assert [row for row, _ in snapshot.scan(table)] == sorted(expected)
    for row, columns_of_row in expected.items():
        assert snapshot.get_row(table, row) == columns_of_row
    db.drop_table(table)


def test_hostile_namespaces_never_see_each_other(server: Server) -> None:
    """Databases with names that are made to collide: same tables, same rows, other values."""
    mark = some_namespace()
    namespaces = [mark + end for end in HOSTILE]
    tables = ["t", "t:0", "*", "a}", "{a"]
    opened = [percolator.connect(server.unix, namespace) for namespace in namespaces]
    try:
        for db in opened:
            for table in tables:
                db.create_table(table, tablets=2)
            with db.transaction() as t:
                for table in tables:
                    for row in (b"r", b"}:0}r:r", b"*"):
                        t.set(table, row, "c", f"{db.namespace} {table}".encode() + row)
        for db in opened:
            snapshot = db.snapshot()
            for table in tables:
                found = dict(snapshot.scan(table))
                assert found == {
                    row: {"c": f"{db.namespace} {table}".encode() + row} for row in (b"r", b"}:0}r:r", b"*")
                }
        for table in tables[1:]:
            opened[0].drop_table(table)
        assert [one.name for one in opened[0].tables()] == ["t"]
        for db in opened[1:]:
            assert sum(1 for table in tables for _ in db.snapshot().scan(table)) == 15
    finally:
        for db in opened:
            db.close()
