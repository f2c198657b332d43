"""The structured values of the dependency tracker's cells, each encoded as compact JSON.

As in ``schemas.webindex``, equal values have equal bytes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.webindex import Url, Value

Digest = str
Kind = Literal["style", "data"]


class Parsed(Value):
    """``pages.parsed``: the resources that a page names directly, sorted, and the digest of its HTML."""

    digest: Digest
    references: tuple[Url, ...]


class Facts(Value):
    """``resources.facts``: the properties of a resource's content.

    ``version`` is a timestamp (µs) that is different for every state of every resource. ``digest`` and
    ``kind`` are None for a deleted resource, whose row stays so that its version is not lost. ``references``
    are the resources that a style sheet names, sorted.
    """

    version: Annotated[int, Field(ge=1)]
    digest: Digest | None = None
    kind: Kind | None = None
    references: tuple[Url, ...] = ()


class Made(Value):
    """``pages.made``: the inputs of a page's snapshot.

    ``source`` is the digest of the HTML. ``resources`` has the digest of every resource on which the page
    depends, directly or through style sheets, sorted; None means that the resource is missing. ``renders``
    counts the snapshots since the page was loaded.
    """

    source: Digest
    resources: dict[Url, Digest | None]
    renders: Annotated[int, Field(ge=1)]
