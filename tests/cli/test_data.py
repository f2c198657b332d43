"""``tables``, ``get``, ``scan``, ``history``, and which namespace they look into."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from percolator_core import connect
from percolator_core.cli import namespaces
from percolator_core.notation.bytestext import json_bytes, parse_bytes, show_bytes
from percolator_core.notation.typedtext import json_value, parse_row, show_row, show_typed
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.row_keys import KeyCodec
from tests.cli import typed
from tests.servers.plain import PATIENCE

if TYPE_CHECKING:
    from tests.cli.conftest import Project

BINARY = b"\xff\x00row"


@pytest.fixture
def filled(project: Project) -> Project:
    with project.connect() as db:
        db.create_table("docs", tablets=4, notify_only=["woken"])
        for row in (b"a", b"b", b"b/1", b"hex:41", BINARY):
            with db.transaction() as t:
                t.set("docs", row, "text", b"of " + row)
                t.set("docs", row, "size", b"1")
    return project


def test_tables(filled: Project) -> None:
    assert filled.ok("tables").out.splitlines()[1].split() == ["docs", "4", "woken"]
    listed = filled.ok("tables", "--json").json
    assert listed["tables"] == [{"name": "docs", "tablets": 4, "notify_only": ["woken"]}]


def test_get(filled: Project) -> None:
    rows = [line.split() for line in filled.ok("get", "docs", "a").out.splitlines()]
    assert rows == [["column", "value"], ["size", "1"], ["text", "of", "a"]]
    assert filled.ok("get", "docs", "a", "text").out == "of a\n"
    found = filled.ok("get", "docs", "a", "text", "--json").json
    assert found["row"] == {"text": "a"}
    assert found["columns"] == {"text": {"text": "of a"}}


@pytest.mark.parametrize("key", ["hex:ff00726f77", "base64:/wByb3c="])
def test_get_of_a_binary_row(filled: Project, key: str) -> None:
    value = b"of " + BINARY
    assert filled.ok("get", "docs", key, "text").out == f"hex:{value.hex()}\n"
    found = filled.ok("get", "docs", key, "text", "--json").json
    assert base64.b64decode(found["row"]["base64"]) == BINARY
    process = filled.start("get", "docs", key, "text", "--raw", text=False)
    assert process.communicate(timeout=PATIENCE)[0] == value


@pytest.mark.parametrize("arguments", [["missing"], ["a", "nothing"], ["a", "--at", "5"]])
def test_get_of_what_is_not_there(filled: Project, arguments: list[str]) -> None:
    ended = filled("get", "docs", *arguments)
    assert ended.code == 1
    assert ended.error


def test_get_in_the_past(filled: Project) -> None:
    with filled.connect() as db:
        before = db.timestamp()
        with db.transaction() as t:
            t.set("docs", "a", "text", b"new")
    assert filled.ok("get", "docs", "a", "text").out == "new\n"
    assert filled.ok("get", "docs", "a", "text", "--at", str(before)).out == "of a\n"
    moment = datetime.fromtimestamp(before / 1e6, UTC).isoformat()
    assert filled.ok("get", "docs", "a", "text", "--at", moment).out == "of a\n"


def test_scan_in_order_of_the_keys(filled: Project) -> None:
    found = filled.ok("scan", "docs", "--json", "--columns", "size").json
    assert [row["row"] for row in found["rows"]] == [
        {"text": "a"},
        {"text": "b"},
        {"text": "b/1"},
        {"text": "hex:41"},
        {"base64": base64.b64encode(BINARY).decode()},
    ]
    lines = filled.ok("scan", "docs", "--prefix", "b").out.splitlines()
    assert lines == ["b", "  size  1", "  text  of b", "b/1", "  size  1", "  text  of b/1"]
    shown = filled.ok("scan", "docs", "--start", "b0", "--columns", "size").out.splitlines()[0::2]
    assert shown == ["hex:6865783a3431", "hex:ff00726f77"]
    assert filled.ok("scan", "docs", "--stop", "b").out.splitlines()[0] == "a"


def test_scan_goes_on_where_it_was_cut(filled: Project) -> None:
    ended = filled.ok("scan", "docs", "--limit", "2")
    assert ended.out.splitlines()[0::3] == ["a", "b"]
    assert "--start 'b/1' continues" in ended.err
    back = filled.ok("scan", "docs", "--limit", "2", "--reverse")
    assert back.out.splitlines()[0::3] == ["hex:ff00726f77", "hex:6865783a3431"]
    rest = back.err.partition("--stop '")[2].partition("'")[0]
    assert filled.ok("scan", "docs", "--stop", rest, "--reverse").out.splitlines()[0::3] == ["b/1", "b", "a"]
    assert filled.ok("scan", "docs", "--limit", "0").err == ""


def test_scan_of_nothing_is_still_json(filled: Project) -> None:
    assert filled.ok("scan", "docs", "--prefix", "zzz", "--json").json["rows"] == []


def test_history(filled: Project) -> None:
    with filled.connect() as db, db.transaction() as t:
        t.delete("docs", "a", "text")
    versions = filled.ok("history", "docs", "a", "text", "--json").json["versions"]
    assert [version["value"] for version in versions] == [None, {"text": "of a"}]
    assert versions[0]["commit_timestamp"] > versions[1]["commit_timestamp"]
    assert "(deleted)" in filled.ok("history", "docs", "a", "text").out
    assert filled("history", "docs", "a", "never").code == 1


def test_unknown_names(filled: Project) -> None:
    assert filled("scan", "nothing").code == 2
    assert filled("get", "docs", "a", "woken").code == 2


def test_the_only_namespace_is_found(tmp_path: Path, project: Project) -> None:
    url = f"embedded:{tmp_path / 'own'}"
    with connect(url, "looked at only"):
        empty = project("tables", "--url", url, store=False)
        assert empty.code == 2
        assert "holds no tables yet" in empty.error
        with connect(url, "one: {ns}") as db:
            db.create_table("docs")
        assert project("tables", "--url", url, "--json", store=False).json["namespace"] == "one: {ns}"
        with connect(url, "two") as db:
            db.create_table("docs")
        several = project("tables", "--url", url, store=False)
        assert several.code == 2
        assert "name one with --namespace: one: {ns}, two" in several.error
        assert project("tables", "--url", url, "--namespace", "two", store=False).code == 0


@pytest.mark.parametrize("command", [["status"], ["tables"], ["get", "docs", "a"], ["gc"], ["locks"]])
def test_an_unknown_namespace_is_refused_and_not_made(filled: Project, command: list[str]) -> None:
    ended = filled(*command, "--namespace", "typo {of} mine")
    assert ended.code == 2
    assert "has no namespace 'typo {of} mine': it has " in ended.error
    assert filled.namespace in ended.error
    with filled.connect() as db:
        assert db.store.one((b"KEYS", b"*typo*")) == []


def test_a_namespace_made_between_the_two_looks_is_not_refused(
    filled: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([False])
    holds = namespaces._holds
    monkeypatch.setattr(namespaces, "_holds", lambda client, key: next(looks, True) and holds(client, key))
    assert filled("tables").code == 0
    assert next(looks, None) is None


def test_an_unknown_namespace_of_an_empty_store(tmp_path: Path, project: Project) -> None:
    url = f"embedded:{tmp_path / 'own'}"
    with connect(url, "looked at only"):
        ended = project("status", "--url", url, "--namespace", "looked at only", store=False)
    assert ended.code == 2
    assert "has no namespace 'looked at only': it holds no tables yet" in ended.error


def test_a_namespace_without_its_tables_is_still_known(project: Project) -> None:
    with project.connect() as db:
        db.create_table("docs")
        db.drop_table("docs")
    assert project.ok("tables", "--json").json["tables"] == []


@given(st.binary())
def test_what_is_shown_can_be_given_back(data: bytes) -> None:
    assert parse_bytes(show_bytes(data)) == data
    assert len(show_bytes(data, 10)) <= 10
    kept = json.loads(json.dumps(json_bytes(data)))
    assert data == (kept["text"].encode() if "text" in kept else base64.b64decode(kept["base64"]))


@given(st.text())
def test_text_stands_for_itself(text: str) -> None:
    try:
        data = text.encode()
        parsed = parse_bytes(text)
    except (UnicodeEncodeError, typer.BadParameter):
        return
    assert parsed == data or text.startswith(("hex:", "base64:"))
    assert parse_bytes(show_bytes(data)) == data


@pytest.fixture
def shop(project: Project) -> Iterator[Any]:
    yield typed.make(project)
    sys.modules.pop("cli_models", None)


def test_get_of_a_typed_row(project: Project, shop: Any) -> None:
    rows = [line.split() for line in project.ok("get", "customers", "ada@a").out.splitlines()]
    assert rows == [
        ["column", "value"],
        ["email", "ada@a"],
        ["name", "Ada"],
        ["since", "2026-01-01T00:00:00Z"],
        ["tags", '["new",', '"ä"]'],
    ]
    found = project.ok("get", "orders", "shop=north number=-7", "--json").json
    assert found["row"] == {
        "shop": "north",
        "number": -7,
        "customer": "ada@a",
        "receipt": None,
        "amount": "1.50",
        "weight": None,
        "paid": False,
        "scan": {"base64": "/wA="},
    }
    assert project.ok("get", "orders", "number=7 'shop=north side'", "weight").out == "0.25\n"
    assert list(
        project.ok("get", "orders", "shop=north number=-7", "paid", "shop", "--json").json["row"]
    ) == [
        "paid",
        "shop",
    ]
    process = project.start("get", "orders", "shop=north number=-7", "scan", "--raw", text=False)
    assert process.communicate(timeout=PATIENCE)[0] == b"\xff\x00"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            "north",
            "'north' is not column=value for a column of the key, or repeats one: the key of orders",
        ),
        ("shop=north", "'shop=north' lacks number: the key of orders is (shop, number)"),
        (
            "shop=north shop=b number=1",
            "'shop=b' is not column=value for a column of the key, or repeats one",
        ),
        ("shop=north number=x", "'x' is not valid: number of orders is of type int"),
        ("shop=hex:ff number=1", "'hex:ff' is not UTF-8: shop of orders is of type str"),
        ("shop='north number=1", "has a quote that is not closed: write 'shop=… number=…'"),
        (f"shop=a number={2**63}", "number: 9223372036854775808 does not fit into 64 bits"),
    ],
)
def test_what_is_no_key_of_a_typed_table(project: Project, shop: Any, row: str, said: str) -> None:
    for command in (["get"], ["history"]):
        ended = project(*command, "orders", row, "paid")
        assert ended.code == 2
        assert said in ended.error


def test_typed_rows_that_are_not_there(project: Project, shop: Any) -> None:
    ended = project("get", "orders", "shop=north number=8")
    assert (ended.code, ended.error) == (1, "orders has no row shop=north number=8")
    assert "lies below the safe point" in project("get", "customers", "ada@a", "--at", "5").error
    ended = project("get", "customers", "ada@a", "nam")
    assert ended.code == 2
    assert "customers has no column 'nam': it has email, name, since, tags" in ended.error


def test_scan_of_typed_rows_by_a_filter(project: Project, shop: Any) -> None:
    rows = project.ok("scan", "orders", "--json").json["rows"]
    assert [(row["shop"], row["number"]) for row in rows] == [
        ("north", -7),
        ("north side", 7),
        ("south", 120),
    ]
    found = project.ok(
        "scan", "orders", "--where", "shop ^= 'north' and number < 100", "--where", "paid = true", "--json"
    ).json
    assert [row["weight"] for row in found["rows"]] == [0.25]
    lines = project.ok(
        "scan", "orders", "--where", "amount > 10", "--columns", "amount,scan"
    ).out.splitlines()
    assert lines == ["shop=south number=120", "  amount  20.00", "  scan  null"]
    shown = project.ok("scan", "orders", "--where", "weight is not null", "--columns", "weight").out
    assert shown == "shop='north side' number=7\n  weight  0.25\n"
    back = project.ok("scan", "orders", "--reverse", "--limit", "1", "--json")
    assert [row["shop"] for row in back.json["rows"]] == ["south"]
    assert back.err.strip() == "1 row shown, there are more: --limit 0 shows all"
    assert "lies below the safe point" in project("scan", "orders", "--at", "5").error  # before it was made


def test_a_text_key_has_bounds(project: Project, shop: Any) -> None:
    def emails(*options: str) -> list[str]:
        rows = project.ok("scan", "customers", "--json", *options).json["rows"]
        return [row["email"] for row in rows]

    assert emails("--start", "b") == emails("--prefix", "bo") == ["bob@b"]
    assert emails("--stop", "hex:62") == ["ada@a"]
    assert emails("--start", "b", "--where", "name = 'Ada'") == []
    ended = project.ok("scan", "customers", "--limit", "1")
    assert "--start 'bob@b' continues" in ended.err
    ended = project.ok("scan", "customers", "--limit", "1", "--reverse")
    rest = ended.err.partition("--stop '")[2].partition("'")[0]
    assert emails("--stop", rest, "--reverse") == ["ada@a"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--where", "size > 5"], "--where 'size > 5': orders has no column 'size': it has shop, number"),
        (["--where", "number >"], "a value is expected, not the end"),
        (["--where", "number = 'a'"], "number is int, so its values are whole numbers, not 'a'"),
        (["--start", "a"], "the key of orders is (shop str, number int): use --where"),
    ],
)
def test_a_bad_filter_is_one_line(project: Project, shop: Any, options: list[str], said: str) -> None:
    ended = project("scan", "orders", *options)
    assert ended.code == 2
    assert said in ended.error
    assert project("scan", "orders", "--json", *options).json["error"]["exit_code"] == 2


def test_a_filter_of_raw_rows(filled: Project) -> None:
    def rows(*options: str) -> list[str]:
        found = filled.ok("scan", "docs", "--json", *options).json["rows"]
        assert all(list(row["columns"]) == ["size"] for row in found)
        return [row["row"].get("text", "binary") for row in found]

    only = ("--columns", "size")
    assert rows("--where", "text>='of b'", "--where", "row^='b'", *only) == ["b", "b/1"]
    assert rows("--where", "text=x'6f66206865783a3431'", *only) == ["hex:41"]
    assert rows("--where", "text^='of hex'", "--limit", "1", *only) == ["hex:41"]
    with filled.connect() as db, db.transaction() as t:
        t.set("docs", "b", "revision", b"1")
    assert rows("--where", "revision<'2'", *only) == ["b"]
    ended = filled("scan", "docs", "--where", "text")
    assert ended.code == 2
    assert "an operator such as =, in or is null is expected after text" in ended.error


def test_history_of_a_typed_cell(project: Project, shop: Any) -> None:
    with project.connect() as db, db.transaction() as t:
        t.update(shop.Order(shop="south", number=120, amount="21", customer="ada@a", receipt=None))
    found = project.ok("history", "orders", "shop=south number=120", "amount", "--json").json
    assert found["row"] == {"shop": "south", "number": 120}
    assert [version["value"] for version in found["versions"]] == ["21.00", "20.00"]
    assert "(deleted)" in project.ok("history", "orders", "shop=south number=120", "receipt").out
    assert project("history", "orders", "shop=south number=120", "shop").code == 2


def test_trace_of_a_typed_row(project: Project, shop: Any) -> None:
    found = project.ok("trace", "shop", "orders", "shop=north number=-7", "--json").json
    assert [change["column"] for change in found["changes"]] == ["paid"]
    assert "lacks number" in project("trace", "shop", "orders", "shop=north").error


def test_a_time_that_has_not_come_yet(filled: Project) -> None:
    ended = filled("scan", "docs", "--at", "2100-01-01T00:00:00Z", "--json")
    assert ended.code == 2
    assert "--at: 2100-01-01 00:00:00+00:00 has not come yet" in ended.json["error"]["message"]


TYPED = TableDefinition(
    "any",
    columns=tuple(
        Column(kind.partition("(")[0], kind)
        for kind in ("bool", "int", "float", "str", "bytes", "datetime", "date", "decimal(9,3)", "uuid")
    ),
    key=("bool", "int", "float", "str", "bytes", "datetime", "date", "decimal", "uuid"),
)
finite = st.floats(allow_nan=False)


@given(
    st.fixed_dictionaries(
        {
            "bool": st.booleans(),
            "int": st.integers(-(2**63), 2**63 - 1),
            "float": finite,
            "str": st.text().filter(lambda text: text.isprintable()),
            "bytes": st.binary(),
            "datetime": st.datetimes(timezones=st.just(UTC)),
            "date": st.dates(),
            "decimal": st.decimals(-999999, 999999, places=3),
            "uuid": st.uuids(),
        }
    )
)
def test_a_typed_key_that_is_shown_can_be_given_back(key: dict[str, Any]) -> None:
    row = KeyCodec(TYPED).encode([key[name] for name in TYPED.key])
    assert parse_row(TYPED, show_row(TYPED, row)) == row
    for name, value in key.items():
        alone = TYPED.with_(key=(name,))
        row = KeyCodec(alone).encode([value])
        assert parse_row(alone, show_row(alone, row)) == row


def test_typed_values_in_json() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert json_value(moment) == "2026-01-02T03:04:05.000006Z"
    assert json_value(float("nan")) == "nan"
    assert json_value(0.5) == 0.5
    assert json_value(Decimal("1.50")) == "1.50"
    assert json_value(b"\xff") == {"base64": "/w=="}
    assert json_value(False) is False
    assert show_typed(TYPED, "str", "two\nlines", 40) == "two\\nlines"
    assert len(show_typed(TYPED, "str", "x" * 100, 40)) == 40
