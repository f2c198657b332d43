"""The Lua scripts: the atomic operations on a tablet.

One file a script. Its header is a contract: ``uses`` names the shared parts (in ``parts``) that are put in
front, ``KEYS``, ``ARGV`` and ``reply`` say what goes in and comes out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

NAMES: Final = (
    "change_table",
    "changes",
    "claim",
    "clear",
    "collect",
    "commit",
    "define_table",
    "discard",
    "drop_table",
    "fence",
    "held",
    "history",
    "mark",
    "now",
    "notify",
    "observe",
    "postpone",
    "prewrite",
    "quarantine",
    "raise_safe_point",
    "read",
    "record_chain",
    "recover_oracle",
    "refresh",
    "renew",
    "requeue",
    "resolve_primary",
    "rollback",
    "scan",
    "select",
    "sweep",
    "sync",
    "timestamp",
)

_WHILE_MEMORY_IS_FULL: Final = frozenset(
    {
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
)
"""Scripts that finish or clean up what was begun: when Redis is out of memory, they are the way out."""

_READ_ONLY: Final = frozenset({"changes", "held", "history", "now", "read", "scan", "select"})
"""Scripts that write nothing. Unless it is told, a server whose memory is full refuses them too."""

_FIRST_WRITE: Final = "redis.call('HDEL', KEYS[1], '')"
"""What Redis 6.2 is given instead of a flag. It refuses a script's first write when memory is full, but never
a deletion, and lets what follows a write pass; so the script starts by deleting a field that never exists."""

_USES: Final = re.compile(r"^--   uses    (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A script as the server is given it, and the SHA-1 by which it is called afterwards."""

    name: str
    source: bytes
    sha: bytes


_COMMENT: Final = re.compile(r"--.*")
_DEFINED: Final = re.compile(r"^local (?:function )?(\w+(?:, \w+)*)", re.MULTILINE)


def _read(name: str) -> str:
    return files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8")


def used_parts(source: str) -> list[str]:
    """The shared parts that a script's header names."""
    found = _USES.search(source)
    return found.group(1).split(", ") if found else []


@cache
def load(shebang: bool) -> Mapping[str, Script]:
    """All scripts by name.

    ``shebang`` says whether the server knows the ``#!lua`` line (Redis 7, Valkey): with it the server
    refuses a script as a whole when memory is full, instead of stopping it between two writes.
    """
    return assemble(shebang)


def assemble(shebang: bool, parts: Mapping[str, str] | None = None) -> Mapping[str, Script]:
    """As `load`, with the source of some shared parts replaced: a test gives the server another clock."""
    return {name: _assemble(name, shebang, parts or {}) for name in NAMES}


def _joined(parts: Sequence[str], body: str) -> str:
    """The body, and in front of it of the parts what it needs, directly or not.

    A part is cut at its blank lines. A script makes its functions anew each time it is called, and to make
    one takes the server nearly as long as to call it.
    """
    source, needed = body, _COMMENT.sub("", body)
    for block in reversed("\n\n".join(parts).split("\n\n")):
        code = _COMMENT.sub("", block)
        defined = _DEFINED.search(code)
        assert len(_DEFINED.findall(code)) <= 1, f"two definitions without a blank line between them: {block}"
        if defined and re.search(rf"\b(?:{defined[1].replace(', ', '|')})\b", needed):
            source, needed = f"{block}\n\n{source}", code + needed
    return source


def _assemble(name: str, shebang: bool, replaced: Mapping[str, str]) -> Script:
    body = _read(name)
    parts = [replaced[part] if part in replaced else _read(f"parts/_{part}") for part in used_parts(body)]
    source = _joined(parts, body)
    when_full = name in _WHILE_MEMORY_IS_FULL
    if shebang:
        flags = " flags=no-writes" if name in _READ_ONLY else " flags=allow-oom" if when_full else ""
        source = f"#!lua{flags}\n{source}"
    elif when_full:
        source = f"{_FIRST_WRITE}\n{source}"
    encoded = source.encode()
    return Script(name, encoded, hashlib.sha1(encoded, usedforsecurity=False).hexdigest().encode())
