"""Each script keeps its contract, and loads on every server."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from percolator_core import Database, scripts
from tests.servers.plain import Server

FOLDER = files("percolator_core.scripts")
FILES = sorted(
    f"{place}{path.name.removesuffix('.lua')}"
    for place in ("", "parts/")
    for path in FOLDER.joinpath(place).iterdir()
    if path.name.endswith(".lua")
)


def text(name: str) -> str:
    return FOLDER.joinpath(f"{name}.lua").read_text(encoding="utf-8")


def test_names_are_the_files() -> None:
    assert sorted(scripts.NAMES) == [name for name in FILES if "/" not in name]


WAY_OUT = {
    "change_table",
    "clear",
    "collect",
    "commit",
    "discard",
    "drop_table",
    "fence",
    "raise_safe_point",
    "recover_oracle",
    "resolve_primary",
    "rollback",
    "sweep",
    "sync",
    "timestamp",
}
"""Scripts that finish or clean up what was begun, also when the server's memory is full."""

WRITES = re.compile(r"'(?:HSET|HDEL|ZADD|ZREM\w*|SET|DEL|UNLINK|PUBLISH|PEXPIRE|HINCRBY)'")


@pytest.mark.parametrize("name", scripts.NAMES)
def test_the_flags_of_the_header_are_true(name: str) -> None:
    flags = re.findall(r"^--   flags   (.+)$", text(name), re.MULTILINE)
    source = scripts.load(shebang=True)[name].source.decode()
    if name in WAY_OUT:
        assert flags == ["allow-oom"]
    else:
        assert flags == ([] if WRITES.search(source) else ["no-writes"])
    assert source.splitlines()[0] == "#!lua" + "".join(f" flags={flag}" for flag in flags)


@pytest.mark.parametrize("name", scripts.NAMES)
def test_the_header_is_a_contract(name: str) -> None:
    header = [line for line in text(name).split("\n\n")[0].splitlines() if line]
    assert header
    assert all(line.startswith("-- ") for line in header)
    joined = "\n".join(header)
    for word in ("KEYS", "reply"):
        assert re.search(rf"^--   {word} +\S", joined, re.MULTILINE), word
    body = text(name)[len(joined) :]
    assert ("ARGV" in body) == bool(re.search(r"^--   ARGV +\S", joined, re.MULTILINE))
    parts = scripts.used_parts(text(name))
    assert all(f"parts/_{part}" in FILES for part in parts)
    for part in parts:
        functions = re.findall(r"^local function (\w+)", text(f"parts/_{part}"), re.MULTILINE)
        others = "".join(text(f"parts/_{other}") for other in parts if other != part)
        assert any(re.search(rf"\b{one}\b", body + others) for one in functions), (
            f"{name} does not need {part}"
        )


def test_numbers_become_text_with_all_digits() -> None:
    for name in FILES:
        assert "tostring" not in re.sub(r"--.*", "", text(name))
        assert "cjson" not in text(name)


@pytest.mark.parametrize("shebang", [False, True])
def test_every_script_loads(server: Server, db: Database, shebang: bool) -> None:
    if shebang and db.store.server_info().version_pair < (7, 0):
        pytest.skip("this server does not know #!lua")
    with server.client() as client:
        for script in scripts.load(shebang).values():
            assert client.script_load(script.source).encode() == script.sha
            assert script.source.startswith(b"#!lua") == shebang
