"""The Lua scripts: the atomic operations on a tablet.

One file a script. Its header is a contract: ``uses`` names the shared parts (in ``parts``) that are put in
front, ``KEYS``, ``ARGV`` and ``reply`` say what goes in and comes out. A ``flags`` line is for the server:
``allow-oom`` for a script that finishes or cleans up what was begun, which is the way out when the server's
memory is full, and ``no-writes`` for one that only reads, which such a server would else refuse too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

_FIRST_WRITE: Final = "redis.call('HDEL', KEYS[1], '')"
"""What Redis 6.2 is given instead of a flag. It refuses a script's first write when memory is full, but never
a deletion, and lets what follows a write pass; so the script starts by deleting a field that never exists."""

_ALLOW_OOM: Final = "allow-oom"

_USES: Final = re.compile(r"^--   uses    (.+)$", re.MULTILINE)
_FLAGS: Final = re.compile(r"^--   flags   (.+)$", re.MULTILINE)

NAMES: Final = tuple(
    sorted(one.name.removesuffix(".lua") for one in files(__name__).iterdir() if one.name.endswith(".lua"))
)
"""The scripts: each is the file of its name."""


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
    flag = _FLAGS.search(body)
    if shebang:
        source = f"#!lua{f' flags={flag[1]}' if flag else ''}\n{source}"
    elif flag and flag[1] == _ALLOW_OOM:
        source = f"{_FIRST_WRITE}\n{source}"
    encoded = source.encode()
    return Script(name, encoded, hashlib.sha1(encoded, usedforsecurity=False).hexdigest().encode())
