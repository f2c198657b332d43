"""PageRank by full iteration: the fixed point to which the incremental ranks converge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from observers.webindex.definitions import DAMPING, FIRST_RANK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PRECISION: Final = 1e-10
"""The iteration ends when the mean change of the ranks in a round is below this."""


def exact_ranks(targets: Mapping[bytes, Sequence[bytes]]) -> dict[bytes, float]:
    """Return the rank of every known page; ``targets`` has each page's distinct targets, known or not."""
    return _solve(targets, dict.fromkeys(targets, 1 - DAMPING), FIRST_RANK)


def spread(targets: Mapping[bytes, Sequence[bytes]], errors: Mapping[bytes, float]) -> dict[bytes, float]:
    """Return, for each page, the largest possible distance of its rank from the fixed point.

    ``errors`` has, for each page, the largest distance (≥ 0) of its rank from the rank that its sources give.
    """
    return _solve(targets, errors, 0.0)


def _solve(
    targets: Mapping[bytes, Sequence[bytes]], source: Mapping[bytes, float], first: float
) -> dict[bytes, float]:
    """Return x with x(u) = source(u) + DAMPING * sum of x(v) / targets(v) over the v that link to u.

    Each round uses the values that it has just computed (Gauss-Seidel), which halves the number of rounds.
    """
    pages = list(targets)
    number = {url: position for position, url in enumerate(pages)}
    incoming: list[list[int]] = [[] for _ in pages]
    for url, names in targets.items():
        for name in names:
            if name in number:
                incoming[number[name]].append(number[url])
    weight = [DAMPING / len(targets[url]) if targets[url] else 0.0 for url in pages]
    constant = [source[url] for url in pages]
    shares = [first * w for w in weight]
    values = [first] * len(pages)
    change = float("inf")
    while change > PRECISION * len(pages):
        change = 0.0
        for page, sources in enumerate(incoming):
            value = constant[page] + sum([shares[s] for s in sources])
            change += abs(value - values[page])
            values[page] = value
            shares[page] = value * weight[page]
    return dict(zip(pages, values, strict=True))
