"""The definitions of rank, anchors and the shown page, for the observers and the checker.

Rank is PageRank in the form without the number of pages, so that a new page changes only ranks near it::

    rank(u)  = (1 - DAMPING) + sum of share(v) over the pages v that link to u
    share(v) = DAMPING * rank(v) / number of distinct targets of v

The rank of a page without links is not spread over all pages. Links to pages that were never loaded count in
the number of targets, and the shares of these links are lost, too. Ranks belong to single URLs; duplicates
are not merged. The mean rank is at most 1.
"""

from __future__ import annotations

from collections import Counter
from math import fsum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

DAMPING: Final = 0.85

FIRST_RANK: Final = 0.5
"""The rank of a new page before the links to it are counted: about the mean, so that corrections are
small."""

TOLERANCE: Final = 0.05
"""A rank is published again when it differs from the published one by more than this fraction.

When the chain is idle, every published rank differs by at most this fraction from the rank that follows from
the published shares of its sources. The sum of all errors is below TOLERANCE / (1 - DAMPING) of the sum of
all ranks.
"""

MAX_ANCHORS: Final = 50
"""A page, and a cluster, has at most this many distinct anchor texts."""

MAX_DUPLICATES: Final = 100
"""A serving entry names at most this many members besides the shown page."""

MAX_HOPS: Final = 8
"""At most this many redirects and canonical URLs are followed, one after the other."""


def rank_of(shares: Iterable[float]) -> float:
    """Return the rank from the shares of the linking pages; their order does not matter."""
    return (1 - DAMPING) + fsum(shares)


def share_of(rank: float, targets: int) -> float:
    """Return the share of the rank for each link of a page; 0 without links."""
    return DAMPING * rank / targets if targets else 0.0


def differs(published: float, computed: float) -> bool:
    """Return True if the published rank is out of tolerance."""
    return abs(computed - published) > TOLERANCE * published


def frequent_anchors(anchors: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Return the most frequent texts, sorted; equally frequent ones are taken in alphabetical order.

    The result has no counts, so that another link with a frequent text changes nothing.
    """
    counts: Counter[str] = Counter()
    for texts in anchors:
        counts.update(texts)
    if len(counts) <= MAX_ANCHORS:
        return tuple(sorted(counts))
    return tuple(sorted(sorted(counts, key=lambda text: (-counts[text], text))[:MAX_ANCHORS]))


def preference(url: str, rank: float) -> tuple[float, int, str]:
    """Return the sort key of an indexable member; the first member is shown.

    Higher ranks come first, then shorter URLs.
    """
    return (-rank, len(url), url)
