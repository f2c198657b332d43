"""The memory suite, tiny: every shape is weighed."""

from __future__ import annotations

import pytest

from percolator_bench import Scale, Target, memory


def test_every_shape() -> None:
    found = {(figure.name, figure.at): figure for figure in memory.measure(Scale(cells=200))}
    assert len(found) == len(memory.SHAPES)
    assert all((figure.unit, figure.axis) == ("bytes", "versions") for figure in found.values())
    targeted = {name: figure.target for name, figure in found.items() if figure.target}
    assert targeted == {
        ("5 columns, 20-byte values", 1): Target("at most", 120),
        ("5 columns, 100-byte values", 1): Target("at most", 120),
    }
    assert {at for name, at in found if name == "5 columns, 1,000-byte values"} == {1, 3, 10}


def test_what_a_cell_costs_is_told_from_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version has 16 bytes of timestamps and a column of 7 letters: not less, nor as much as its value."""
    shapes = (memory.Shape(1, 20), memory.Shape(10, 20), memory.Shape(5, 10_000))
    monkeypatch.setattr(memory, "SHAPES", shapes)
    one, ten, large = (figure.value for figure in memory.measure(Scale(cells=5000)))
    assert 23 < ten < one < 1000
    assert 23 < large < 5000
