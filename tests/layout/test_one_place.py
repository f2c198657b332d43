"""Keys of the store and packed values are made in one package."""

from __future__ import annotations

import re
from pathlib import Path

import percolator_core

BY_HAND = re.compile(
    r"""\btag(?:\([^()]*\))? \+ b"|tags\[\w+\] \+ b"|keyspace\.prefix\b|b"%b(?:rows|locks|meta|[rv]:)"""
)
"""A key that is built by hand."""

STRUCT = re.compile(r"^import struct$", re.MULTILINE)

OTHER_BYTES = {"recipes", "schema", "replication", "views"}
"""Packages that pack the values of cells, as users do, or read the messages of PostgreSQL."""


def is_at_fault(path: Path, source: str) -> bool:
    if path.parts[0] == "layout":
        return False
    packs = STRUCT.search(source) is not None and path.parts[0] not in OTHER_BYTES
    return packs or BY_HAND.search(source) is not None


def test_keys_and_packed_values_are_made_in_layout_only() -> None:
    root = Path(percolator_core.__file__).parent
    modules = [path.relative_to(root) for path in root.rglob("*.py")]
    assert [one for one in sorted(modules) if is_at_fault(one, (root / one).read_text())] == []


def test_a_key_or_a_value_made_elsewhere_is_found() -> None:
    assert is_at_fault(Path("admin/status.py"), 'rows = (b"ZCARD", tag + b"rows")')
    assert is_at_fault(Path("worker/loop.py"), 'key = db.store.keyspace.prefix + b"workers"')
    assert is_at_fault(Path("worker/loop.py"), "import struct\n")
    assert not is_at_fault(Path("recipes/rows.py"), "import struct\n")
    assert not is_at_fault(Path("layout/keys.py"), 'return tag + b"rows"')
