"""What rank, anchors and the page shown *are*: shared by the observers and by the checker.

Rank is PageRank in the form that knows no number of pages, so that a new page changes nothing far away::

    rank(u)  = (1 - DAMPING) + sum of share(v) over the pages v that link to u
    share(v) = DAMPING * rank(v) / number of distinct targets of v

A page that links nowhere keeps its rank to itself: it is not spread over all pages. Links to pages that were
never loaded count in the number of targets, and what they carry is lost likewise. Ranks are those of single
URLs; duplicates are not merged. The mean is at most 1.
"""

from __future__ import annotations

from collections import Counter
from math import fsum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

DAMPING: Final = 0.85

FIRST_RANK: Final = 0.5
"""The rank that a new page is given before its links are counted: the mean, so little is left to correct."""

TOLERANCE: Final = 0.05
"""A rank is published again when it has changed by more than this share of the published one.

At rest every published rank is within this share of what the published shares of its sources give, and the
sum of all errors is below TOLERANCE / (1 - DAMPING) of the sum of all ranks.
"""

MAX_ANCHORS: Final = 50
"""Distinct anchor texts kept of a page, and of a cluster."""

MAX_DUPLICATES: Final = 100
"""Members named in a serving entry besides the page shown."""

MAX_HOPS: Final = 8
"""Redirects and canonical URLs that are followed, one after another."""


def rank_of(shares: Iterable[float]) -> float:
    """The rank that the shares of the linking pages give, in whatever order they come."""
    return (1 - DAMPING) + fsum(shares)


def share_of(rank: float, targets: int) -> float:
    """What each link of a page carries; nothing if it has none."""
    return DAMPING * rank / targets if targets else 0.0


def differs(published: float, computed: float) -> bool:
    """Is the published rank too far off?"""
    return abs(computed - published) > TOLERANCE * published


def frequent_anchors(anchors: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """The texts that most sources use (of equally frequent ones the smallest), sorted.

    Without the counts, so that one more link with a usual text changes nothing.
    """
    counts: Counter[str] = Counter()
    for texts in anchors:
        counts.update(texts)
    if len(counts) <= MAX_ANCHORS:
        return tuple(sorted(counts))
    return tuple(sorted(sorted(counts, key=lambda text: (-counts[text], text))[:MAX_ANCHORS]))


def preference(url: str, rank: float) -> tuple[float, int, str]:
    """Of a cluster's indexable members the smallest by this key is shown: by rank, then the shortest URL."""
    return (-rank, len(url), url)
