"""The size of a measurement."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes, each 1 or more. The help of `percolator bench` describes each."""

    operations: int = 2000
    rounds: int = 7
    width: int = 256
    writes: int = 500
    cells: int = 200_000
    cells_max: int = 5_000_000
    customers: int = 1000
    documents: int = 300
    pages: int = 5000
    marks: int = 10_000_000
    events: int = 100_000
    numbers: int = 20_000
    observed: int = 1_000_000
    changes: int = 4000
    rows: int = 1_000_000

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} is 1 or more, not {getattr(self, field.name)}")
