"""What goes over the pipeline is what was meant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from percolator_core.store.packing import first_key, pack_fields, pack_read, parts
from percolator_core.store.request import pack

bytestrings = st.binary(max_size=40)


@given(bytestrings, bytestrings, bytestrings)
def test_a_read_of_packed_fields_is_hmget(key: bytes, version: bytes, lock: bytes) -> None:
    assert pack_read(key, pack_fields(version, lock)) == pack((b"HMGET", key, version, lock))


@given(st.lists(st.one_of(bytestrings, st.integers(), st.text(max_size=10)), min_size=1, max_size=20))
def test_a_packed_command_has_the_same_parts(command: list[bytes | int | str]) -> None:
    assert parts(command) is command
    expected = [part if isinstance(part, bytes) else str(part).encode() for part in command]
    assert parts(pack(command)) == expected


@pytest.mark.parametrize("length", [0, 1, 1023, 1024, 1025, 100_000])
def test_parts_of_any_length(length: int) -> None:
    assert parts(pack((b"GET", b"x" * length))) == [b"GET", b"x" * length]


def test_other_types_of_parts() -> None:
    odd = (bytearray(b"a"), memoryview(b"bcd")[::2], True, 1.5, np.float64(0.25))
    assert parts(pack(odd)) == [b"a", b"bd", b"1", b"1.5", b"0.25"]  # type: ignore[arg-type]
    for part in (None, np.int64(7), np.zeros(2), object()):
        with pytest.raises(TypeError, match=f"not {type(part).__name__}"):
            pack((b"SET", part))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one part"):
        pack(())


def test_the_key_that_tells_the_place() -> None:
    assert first_key((b"GET", b"{a:b}k")) == b"{a:b}k"
    assert first_key((b"EVALSHA", b"sha", 1, b"{a:b}")) == b"{a:b}"
    assert first_key(pack_read(b"{a:b}r:\r\nrow", pack_fields(b"c", b"l"))) == b"{a:b}r:\r\nrow"
    assert first_key((b"PING",)) is None
