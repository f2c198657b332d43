"""How much to measure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Each 1 or more.

    ``operations`` of a contestant in a round (five times as many under the hub), ``rounds``, ``writes`` whose
    latency is taken, ``cells`` that are weighed.
    """

    operations: int = 2000
    rounds: int = 7
    writes: int = 500
    cells: int = 200_000

    def __post_init__(self) -> None:
        for name in ("operations", "rounds", "writes", "cells"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is 1 or more, not {getattr(self, name)}")
