"""Each name in a script is defined where it is used, in every branch.

A server notices an undefined name only when it gets there. So the server compiles each script, and the test
looks in the result for global names.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

import pytest

from percolator_core import scripts
from tests.servers.plain import Server

OF_THE_SERVER = {
    *("KEYS", "ARGV", "redis", "struct", "string", "table", "math"),
    *("tonumber", "ipairs", "pairs", "unpack", "setmetatable"),
}
READS_GLOBAL, SETS_GLOBAL = 5, 7
"""Operations of Lua 5.1: the lower six bits of an instruction; from bit 14 on, the place of the name."""

COMPILED = "return string.dump(assert(loadstring(ARGV[1])))"


class Compiled:
    """Reads a function as `string.dump` writes it: Lua 5.1, numbers of 8 bytes, little-endian."""

    def __init__(self, dumped: bytes) -> None:
        self._dumped, self._at = dumped, 12

    def _take(self, form: str) -> tuple[int, ...]:
        self._at += struct.calcsize(form)
        return struct.unpack_from(form, self._dumped, self._at - struct.calcsize(form))

    def _count(self) -> range:
        return range(self._take("<i")[0])

    def _text(self) -> str:
        length = self._take("<Q")[0]
        self._at += length
        return self._dumped[self._at - length : self._at - 1].decode("latin-1")

    def _constant(self) -> str | None:
        kind = self._take("<B")[0]
        if kind == 4:
            return self._text()
        self._take({0: "<", 1: "<B", 3: "<d"}[kind])
        return None

    def globals(self) -> Iterator[str]:
        """Yield the global names in this function and in those inside it."""
        self._text()
        self._take("<2i4B")
        code = self._take(f"<{self._take('<i')[0]}I")
        constants = [self._constant() for _ in self._count()]
        for _ in self._count():
            yield from self.globals()
        self._take(f"<{self._take('<i')[0]}i")
        for _ in self._count():
            self._text()
            self._take("<2i")
        for _ in self._count():
            self._text()
        for one in code:
            if one & 63 in {READS_GLOBAL, SETS_GLOBAL}:
                yield constants[one >> 14] or ""


@pytest.mark.parametrize("name", scripts.NAMES)
def test_each_name_is_defined_where_it_is_used(server: Server, name: str) -> None:
    source = scripts.load(shebang=False)[name].source
    with server.client() as client:
        dumped = client.eval(COMPILED, 0, source)
    assert set(Compiled(dumped).globals()) <= OF_THE_SERVER


@pytest.mark.parametrize("name", scripts.NAMES)
def test_no_part_is_in_a_script_twice(name: str) -> None:
    """Two of them would not share what they note, such as the time of the call."""
    source = scripts.load(shebang=False)[name].source.decode()
    defined = re.findall(r"^local (?:function )?(\w+)", source, re.MULTILINE)
    assert sorted(defined) == sorted(set(defined))
