"""``diff``: what changed between two times."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.cli import typed
from tests.servers.plain import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Project


class Times(NamedTuple):
    first: int
    last: int


@pytest.fixture
def times(project: Project) -> Iterator[Times]:
    """Before and after a change of the shop's tables; a later change follows."""
    models = typed.make(project)
    with project.connect() as db:
        first = db.timestamp()
        with db.transaction() as t:
            t.update(models.Order(shop="south", number=120, customer="bob@b", amount="30"))
            t.remove(models.Order, shop="north", number=-7)
            t.insert(models.Order(shop="west", number=1, customer="ada@a"))
            t.set("sums", "ada@a", "total", b"30")
            t.delete("sums", "bob@b", "total")
            t.set("sums", "\n", "note", b"\xff")
        last = db.timestamp()
        with db.transaction() as t:
            t.set("sums", "later", "total", b"0")
    yield Times(first, last)
    sys.modules.pop("cli_models", None)


def test_raw_rows(project: Project, times: Times) -> None:
    arguments = ["diff", "sums", "--from", str(times.first), "--to", str(times.last)]
    assert project.ok(*arguments).out.splitlines() == [
        "+ hex:0a",
        "    note  hex:ff",
        "~ ada@a",
        "    total  21.50 → 30",
        "- bob@b",
        "    total  0",
        "1 added, 1 removed, 1 changed",
    ]
    found = project.ok(*arguments, "--json").json
    assert found == {
        "table": "sums",
        "from": times.first,
        "to": times.last,
        "changes": [
            {
                "change": "added",
                "row": {"text": "\n"},
                "columns": {"note": {"old": None, "new": {"base64": "/w=="}}},
            },
            {
                "change": "changed",
                "row": {"text": "ada@a"},
                "columns": {"total": {"old": {"text": "21.50"}, "new": {"text": "30"}}},
            },
            {
                "change": "removed",
                "row": {"text": "bob@b"},
                "columns": {"total": {"old": {"text": "0"}, "new": None}},
            },
        ],
        "added": 1,
        "removed": 1,
        "changed": 1,
    }
    assert project.ok(*arguments, "--where", "total='30'").out.splitlines()[0] == "~ ada@a"
    assert project.ok(*arguments, "--columns", "note").out.splitlines()[-1] == "1 added, 0 removed, 0 changed"


def test_typed_rows(project: Project, times: Times) -> None:
    lines = project.ok("diff", "orders", "--from", str(times.first)).out.splitlines()
    assert "- shop=north number=-7" in lines
    assert lines[lines.index("~ shop=south number=120") :] == [
        "~ shop=south number=120",
        "    customer  ada@a → bob@b",
        "    amount  20.00 → 30.00",
        "+ shop=west number=1",
        "    customer  ada@a",
        "    amount  0.00",
        "    paid  false",
        "1 added, 1 removed, 1 changed",
    ]
    found = project.ok(
        "diff",
        "orders",
        "--from",
        str(times.first),
        "--where",
        "amount > 25",
        "--columns",
        "amount",
        "--json",
    ).json
    assert found["changes"] == [
        {
            "change": "changed",
            "row": {"shop": "south", "number": 120},
            "columns": {"amount": {"old": "20.00", "new": "30.00"}},
        }
    ]


def test_the_later_time_is_now(project: Project, times: Times) -> None:
    assert "+ later" in project.ok("diff", "sums", "--from", str(times.first)).out
    moment = datetime.fromtimestamp(times.last / 1e6, UTC).isoformat()
    found = project.ok("diff", "sums", "--from", str(times.last), "--to", str(times.last)).out
    assert found == "nothing changed\n"
    assert project.ok("diff", "sums", "--from", moment, "--json").json["added"] == 1


def test_a_time_may_be_a_length_before_now(project: Project, times: Times) -> None:
    found = project.ok("diff", "sums", "--from", "1ms", "--to", "0ms ago", "--json").json
    assert times.last < found["from"] < found["to"]
    assert project.ok("get", "sums", "later", "--at", "1ms").out
    before = project("get", "sums", "later", "--at", "1d")
    at = int(re.findall(r"snapshot at (\d+) lies below", before.error)[0])
    assert (found["to"] - at) / 1e6 == pytest.approx(86_400, abs=PATIENCE)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["sums"], 2, "Missing option '--from'"),
        (["sums", "--from", ""], 2, "--from is empty"),
        (["sums", "--from", "yesterday"], 2, "--from 'yesterday' is not a time"),
        (["sums", "--from", "9", "--to", "5"], 2, "--to 5 is before --from 9: give the earlier time first"),
        (["sums", "--from", "99999d"], 2, "--from: "),
        (["sums", "--from", "2100-01-01T00:00:00Z"], 2, "--from: 2100-01-01 00:00:00+00:00 has not come yet"),
        (["orders", "--from", "9", "--where", "nothing = 1"], 2, "orders has no column 'nothing'"),
        (["orders", "--from", "9", "--columns", "nothing"], 2, "orders has no column 'nothing'"),
        (["nothing", "--from", "9"], 2, "there is no table 'nothing'"),
    ],
)
def test_what_cannot_be(project: Project, times: Times, arguments: list[str], code: int, said: str) -> None:
    ended = project("diff", *arguments)
    assert ended.code == code
    assert said in ended.error
    assert project("diff", *arguments, "--json").json["error"]["exit_code"] == code


def test_a_time_below_the_safe_point_is_one_error(project: Project, times: Times) -> None:
    with project.connect() as db:
        db.drop_table("orders")
        db.drop_table("customers")
    project.ok("gc", "--keep", "0s")
    ended = project("diff", "sums", "--from", str(times.first), "--json")
    assert ended.code == 1
    error: Any = ended.json["error"]  # and not the beginning of a result
    assert error["kind"] == "SnapshotTooOld"
    assert "lies below the safe point" in error["message"]
