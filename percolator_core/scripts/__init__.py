"""The Lua scripts: the atomic operations on a tablet.

Each script is one file. Its header is a contract: ``uses`` names the shared parts (in ``parts``) that are put
in front of the script. ``KEYS`` and ``ARGV`` describe the arguments, and ``reply`` describes the reply. A
server whose memory is full runs only scripts with a ``flags`` line. The flag is ``allow-oom`` if the script
finishes or cleans up work that was begun, and so frees memory. It is ``no-writes`` if the script only reads.

Unless a header says otherwise, ``start`` is the bound to go on from, ``-`` at first, and ``resume`` the next
bound, empty at the end. ``base`` is the reference of the tablet's base, empty without a base. ``version`` is
that of the table, and ``observers`` are those of the table. ``position`` is that of a cell's tag, from 1.
``deadline`` is that of a lease, and ``before`` the deadline before its last renewal. ``mode`` is "strong" or
"weak". ``start_ts`` is that of the run or transaction.
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
"""Replaces the flag ``allow-oom`` on Redis 6.2. When memory is full, that server stops a script at its first
write, unless this write is a deletion. So the script starts with the deletion of a field that never
exists."""

_ALLOW_OOM: Final = "allow-oom"

_USES: Final = re.compile(r"^--   uses    (.+)$", re.MULTILINE)
_FLAGS: Final = re.compile(r"^--   flags   (.+)$", re.MULTILINE)

NAMES: Final = tuple(
    sorted(one.name.removesuffix(".lua") for one in files(__name__).iterdir() if one.name.endswith(".lua"))
)
"""The names of the scripts: the names of their files, without ``.lua``."""


@dataclass(frozen=True, slots=True)
class Script:
    """The source that the server loads, and its SHA-1, with which clients call the script."""

    name: str
    source: bytes
    sha: bytes


_BRANCH: Final = re.compile(
    r"^( *)-- The functions that are needed only from here on are created here.\n((?:\1.*\n|\n)*)",
    re.MULTILINE,
)
"""A branch: this comment, and the lines after it that are indented at least as far."""

_COMMENT: Final = re.compile(r"--.*")
_WORD: Final = re.compile(r"\w+")
_DEFINED: Final = re.compile(r"^local (?:function )?(\w+(?:, \w+)*)", re.MULTILINE)


def _read(name: str) -> str:
    return files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8")


def used_parts(source: str) -> list[str]:
    """Return the names of the shared parts that the header of a script lists."""
    found = _USES.search(source)
    return found.group(1).split(", ") if found else []


@cache
def load(shebang: bool) -> Mapping[str, Script]:
    """Return all scripts by name.

    ``shebang`` is True if the server knows the ``#!lua`` line (Redis 7, Valkey). With this line, a server
    whose memory is full refuses a script before the script starts, instead of stopping it between two writes.
    """
    return assemble(shebang)


def assemble(shebang: bool, parts: Mapping[str, str] | None = None) -> Mapping[str, Script]:
    """Like `load`, but with other sources for the shared parts in ``parts``: a test replaces the clock."""
    return {name: _assemble(name, shebang, parts or {}) for name in NAMES}


def _joined(parts: Sequence[str], body: str) -> str:
    """Return the body of a script with the blocks of its parts that it needs, directly or through others.

    Blank lines separate the blocks of a part. Each call of a script creates its functions anew, which takes
    the server nearly as long as to call them. So blocks that a script does not need are left out. If only one
    `_BRANCH` of the body needs a block, the block replaces the comment of this branch. The other blocks stand
    in front of the body.
    """
    blocks = "\n\n".join(parts).split("\n\n")
    always = _needed(blocks, _BRANCH.sub("", body))
    by_branch = [_needed(blocks, branch[2]) for branch in _BRANCH.finditer(body)]
    often = [one for one in blocks if one in always or sum(one in needed for needed in by_branch) > 1]
    own = iter([[one for one in needed if one not in often] for needed in by_branch])
    return "\n\n".join([*often, _BRANCH.sub(lambda branch: "\n".join([*next(own), branch[2]]), body)])


def _needed(blocks: Sequence[str], body: str) -> list[str]:
    """Return the blocks that a body needs, directly or through other blocks, in the order of ``blocks``."""
    needed, words = list[str](), _words(body)
    for block in reversed(blocks):
        defined = _DEFINED.findall(_COMMENT.sub("", block))
        assert len(defined) <= 1, f"two definitions without a blank line between them: {block}"
        if defined and not words.isdisjoint(defined[0].split(", ")):
            needed.insert(0, block)
            words |= _words(block)
    return needed


def _words(code: str) -> set[str]:
    return set(_WORD.findall(_COMMENT.sub("", code)))


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
