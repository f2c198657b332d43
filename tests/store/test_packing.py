"""What goes over the pipeline is what was meant."""

from __future__ import annotations

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


def test_the_key_that_tells_the_place() -> None:
    assert first_key((b"GET", b"{a:b}k")) == b"{a:b}k"
    assert first_key((b"EVALSHA", b"sha", 1, b"{a:b}")) == b"{a:b}"
    assert first_key(pack_read(b"{a:b}r:\r\nrow", pack_fields(b"c", b"l"))) == b"{a:b}r:\r\nrow"
    assert first_key((b"PING",)) is None
