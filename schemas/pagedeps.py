"""The structured values of the dependency tracker's cells, each encoded as compact JSON.

As in ``schemas.webindex`` equal values are equal bytes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.webindex import Url, Value

Digest = str
Kind = Literal["style", "data"]


class Parsed(Value):
    """``pages.parsed``: the resources that a page names itself, sorted, and the digest of its HTML."""

    digest: Digest
    references: tuple[Url, ...]


class Facts(Value):
    """``resources.facts``: what a resource's content is, apart from the content.

    ``version`` is a timestamp that no other state of any resource has, in microseconds. ``digest`` and
    ``kind`` are None for a resource that was deleted: the row stays, so that its version is never forgotten.
    ``references`` are the resources that a style sheet names, sorted.
    """

    version: Annotated[int, Field(ge=1)]
    digest: Digest | None = None
    kind: Kind | None = None
    references: tuple[Url, ...] = ()


class Made(Value):
    """``pages.made``: what a page's snapshot was made from.

    ``source`` is the digest of the HTML, ``resources`` the digest of every resource that the page depends on,
    directly or by style sheets, None where there is none; sorted. ``renders`` counts the snapshots that were
    written since the page came.
    """

    source: Digest
    resources: dict[Url, Digest | None]
    renders: Annotated[int, Field(ge=1)]
