"""Lua and Python pack versions and locks alike."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from percolator_core import Database
from percolator_core.layout.acknowledgements import Ack, TracedWrite, pack_image, unpack_image
from percolator_core.layout.keys import decode_mark, encode_mark
from percolator_core.layout.records import MAX_TIMESTAMP, PUT, unpack_lock, unpack_version
from percolator_core.scripts import _read

timestamps = st.integers(1, MAX_TIMESTAMP)
kinds = st.integers(0, 2)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

PROGRAM = (
    _read("parts/_layout")
    + _read("parts/_dirty")
    + """
local commit_ts, start_ts, kind = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local wall, ttl = tonumber(ARGV[4]), tonumber(ARGV[5])
local version = pack_version(commit_ts, kind, start_ts, ARGV[8])
local lock = pack_lock(kind, start_ts, wall, ttl, ARGV[6], ARGV[7], ARGV[8])
local read_commit, read_start, read_kind = version_times(version)
local lock_kind, value = lock_write(lock)
local lock_wall, lock_ttl = lock_age(lock)
return {version, lock, read_commit, read_start, read_kind, lock_start(lock), lock_kind, value,
  lock_wall, lock_ttl,
  string.format('%.0f', commit_ts), dirty_mark(ARGV[6], ARGV[7]), lock_mark(start_ts, ARGV[6], ARGV[7]),
  tombstone_field(start_ts, ARGV[6]), lock_field(kind, start_ts, ARGV[6])}
"""
)


@quick
@given(
    timestamps,
    timestamps,
    kinds,
    timestamps,
    st.integers(0, 2**32 - 1),
    st.binary(max_size=40),
    st.binary(),
    st.binary(),
)
def test_versions_and_locks(  # noqa: PLR0917
    db: Database,
    commit: int,
    start: int,
    kind: int,
    wall: int,
    ttl: int,
    owner: bytes,
    primary: bytes,
    value: bytes,
) -> None:
    reply = db.store.one((b"EVAL", PROGRAM, 0, commit, start, kind, wall, ttl, owner, primary, value))
    version, lock = unpack_version(reply[0]), unpack_lock(reply[1])
    assert version == (commit, start, value if kind == PUT else None)
    assert (lock.kind, lock.start_ts, lock.wall, lock.ttl_ms) == (kind, start, wall, ttl)
    assert (lock.owner, lock.primary) == (owner, primary)
    assert reply[2:11] == [commit, start, kind, start, kind, value, wall, ttl, b"%d" % commit]
    assert reply[11] == encode_mark(owner, primary)
    assert decode_mark(reply[11]) == (owner, primary)
    stamp = start.to_bytes(8, "big")
    assert reply[12] == stamp + encode_mark(owner, primary)
    assert reply[13] == b"x" + stamp + owner
    assert reply[14] == (b"n" + stamp if kind == 2 else b"l") + owner


def test_an_image_comes_back_with_its_nulls() -> None:
    image = {b"\xff": b"", b"price": b"\x00" * 8, b"note": None}
    packed = pack_image(image)
    assert unpack_image(packed) == image
    assert pack_image(dict(reversed(image.items()))) == packed
    assert unpack_image(pack_image({})) == {}


@pytest.mark.parametrize("writes", [None, (TracedWrite("t", b"row", b"column", PUT),)])
@pytest.mark.parametrize("image", [None, b"", b"image"])
def test_an_acknowledgement_comes_back(writes: tuple[TracedWrite, ...] | None, image: bytes | None) -> None:
    ack = Ack(3, writes, len(writes or ()), image)
    assert Ack.unpack(ack.pack()) == ack
