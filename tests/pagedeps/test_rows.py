from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from observers.pagedeps.rows import Dependent, Edge, edge, prefix, row

# Mostly bytes that have a meaning in the encoding.
keys = st.lists(st.sampled_from([b"\0", b"\x01", b"\xff", b"p", b"s", b"a"]), max_size=6).map(b"".join)
kinds: st.SearchStrategy[Dependent] = st.sampled_from(["page", "style"])
edges = st.builds(Edge, keys, kinds, keys)


@settings(max_examples=50)
@given(edges)
def test_what_a_row_says_can_be_read_back(entry: Edge) -> None:
    assert edge(row(entry)) == entry


@settings(max_examples=50)
@given(edges, keys)
def test_a_prefix_finds_one_resource_only(entry: Edge, other: bytes) -> None:
    assert row(entry).startswith(prefix(other)) == (other == entry.resource)


@pytest.mark.parametrize("wrong", [b"", b"a", b"a\0\x01", b"a\0\x01x", b"a\0b\0\x01px"])
def test_other_rows_are_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="not a row of dependents"):
        edge(wrong)
