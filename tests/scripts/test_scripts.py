"""Each script keeps its contract, and loads on every server."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from types import CodeType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from percolator_core import Database, scripts
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Call
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
    "evict",
    "fence",
    "lease_base",
    "leave_base",
    "publish_base",
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


SECTION = re.compile(r"^--   (uses|flags|KEYS|ARGV|reply) +(.+)$")
NOTE = re.compile(r"^--             \S")
WORD = re.compile(r"[a-z][a-z ]{2,}")


def contract(name: str) -> dict[str, str]:
    """The sections of a header, without the notes, which are indented further."""
    sections: dict[str, str] = {}
    last = None
    for line in text(name).split("\n\n")[0].splitlines():
        if found := SECTION.match(line):
            last, sections[found[1]] = found[1], found[2]
        elif last is not None and line.startswith("--           ") and not NOTE.match(line):
            sections[last] += " " + line[13:]
    return sections


def parameters(section: str) -> list[str]:
    """The names that a section lists: not those in parentheses, which a list has again and again."""
    outer = section
    while "(" in outer:
        outer = re.sub(r"\([^()]*\)", "", outer)
    return re.findall(r"\w+", outer)


def function_of(name: str) -> Callable[..., Call[Any]]:
    function: Callable[..., Call[Any]] = getattr(calls, name)
    return function


def sample(name: str, hint: Any) -> Any:
    """A value of a parameter that is known by its name."""
    origin = get_origin(hint)
    if origin is Literal:
        return get_args(hint)[0]
    if origin is not None and issubclass(origin, Mapping):
        return {f"{name} 1": f"{name} 2"}
    if origin is not None and issubclass(origin, Iterable):
        return [f"{name} 1", f"{name} 2"]
    return name


def called(name: str) -> tuple[Call[Any], dict[str, Any]]:
    """A call of the script, and its arguments by parameter."""
    function = function_of(name)
    hints = get_type_hints(function)
    given = {one: sample(one, hints[one]) for one in inspect.signature(function).parameters}
    return function(**given), given


def words_of(one: Any) -> set[str]:
    """The words of replies in a type."""
    if get_origin(one) is Literal:
        return set(get_args(one))
    if isinstance(one, type) and hasattr(one, "_fields"):
        return set().union(*(words_of(hint) for hint in get_type_hints(one).values()))
    return set().union(*(words_of(part) for part in get_args(one)))


def words_in(code: CodeType | None) -> set[str]:
    """The words that a decoding function compares with."""
    constants = () if code is None else code.co_consts
    return {one.decode() for one in constants if isinstance(one, bytes)}.union(
        *(words_in(one) for one in constants if isinstance(one, CodeType))
    )


@pytest.mark.parametrize("name", scripts.NAMES)
def test_a_function_calls_the_script_as_its_header_says(name: str) -> None:
    header = contract(name)
    keys, arguments = parameters(header["KEYS"]), parameters(header.get("ARGV", ""))
    (script, called_keys, called_arguments, _), given = called(name)
    assert list(given) == keys + [one for one in arguments if one != "counted"]
    assert script == name

    def spread(names: Sequence[str], section: str) -> list[Any]:
        expected: list[Any] = []
        for one in names:
            value = given[one]
            if isinstance(value, Mapping):
                value = [*value.keys(), *value.values()]
            if f"{one} (counted)" in section:
                expected.append(len(value))
            expected += value if isinstance(value, list) else [value]
        return expected

    assert list(called_keys) == spread(keys, header["KEYS"])
    asked = spread([one for one in arguments if one != "counted"], header.get("ARGV", ""))
    for found, wanted in zip(called_arguments, asked, strict=True):
        assert found in (wanted, f"{wanted}")


@pytest.mark.parametrize("name", scripts.NAMES)
def test_each_word_that_a_script_replies_stands_in_its_header_and_is_decoded(name: str) -> None:
    declared = {one for one in re.findall(r'"([^"]*)"', contract(name)["reply"]) if WORD.fullmatch(one)}
    code = re.sub(r"--.*|redis\.call\(.*\)", "", text(name))
    returned = re.findall(r"\breturn\b(.*)|\breply\b[^=\n]*= *(\{.*)", code)
    replied = {word for line in returned for word in re.findall(r"'([^']*)'", "".join(line))}
    assert {word for word in replied if WORD.fullmatch(word)} == declared
    decode = called(name)[0][-1]
    table = getattr(decode, "__self__", None)
    decoded = {one.decode() for one in table} if isinstance(table, dict) else set()
    decoded |= words_in(getattr(decode, "__code__", None))
    decoded |= words_of(get_type_hints(function_of(name))["return"])
    assert decoded == declared


def test_nothing_but_the_functions_knows_the_scripts() -> None:
    defined = {
        name
        for name, one in vars(calls).items()
        if inspect.isfunction(one) and one.__module__ == calls.__name__ and not name.startswith("_")
    }
    assert defined == set(scripts.NAMES)
