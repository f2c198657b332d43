"""A commit marks each observed cell that it writes, wherever the cell stands among the others."""

from __future__ import annotations

import itertools
from typing import Literal

import pytest

from percolator_core import Database, TableDefinition
from tests.chains import chain_of, dirty_of, watch
from tests.servers.plain import commit_of


@pytest.mark.parametrize("one_call", [True, False], ids=["one call", "two phases"])
@pytest.mark.parametrize("other", ["docs.title", "docs.zoom", "sums.text"])
@pytest.mark.parametrize("order", [1, -1])
def test_an_observed_cell_is_marked_among_others(
    db: Database, other: str, order: int, one_call: bool
) -> None:
    chain = chain_of(watch("feed", lambda t, cell: None, "docs.text"))
    chain.create_tables(db)
    t = db.begin()
    for name in ["docs.text", other][::order]:
        table, column = name.split(".")
        t.set(table, "a", column, b"1")
    if one_call:
        t.commit()
    else:
        db.client.one_call_a_tablet = True
        commit_of(t).prewrite()
    leases, _ = dirty_of(db, chain).claim(10)
    assert [(lease.observer, lease.row, lease.column) for lease in leases] == [("feed", b"a", b"text")]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("columns", [2, 13, 14, 15, 40])
@pytest.mark.parametrize("mode", ["strong", "weak"])
def test_the_last_of_many_columns_is_marked(
    db: Database, mode: Literal["strong", "weak"], columns: int, rows: int
) -> None:
    names = tuple(f"column{number:02}" for number in range(columns))
    watched = watch("feed", lambda t, cell: None, f"wide.{names[-1]}", mode=mode)
    chain = chain_of(watched, tables=(TableDefinition("wide", 4, names if mode == "weak" else ()),))
    chain.create_tables(db)
    with db.transaction() as t:
        for row, name in itertools.product("abc"[:rows], names):
            if mode == "weak":
                t.notify("wide", row, name)
            else:
                t.set("wide", row, name, b"1")
    leases, _ = dirty_of(db, chain).claim(10)
    assert [lease.column for lease in leases] == [names[-1].encode()] * rows
