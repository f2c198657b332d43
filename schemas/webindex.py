"""The structured values of the web index's cells, each encoded as compact JSON.

The encoding is deterministic: equal values are equal bytes, so an observer finds out whether a cell changed
by comparing what it would write with what is there.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, RootModel, StringConstraints

Url = Annotated[str, StringConstraints(min_length=1)]
Text = str


class Value(BaseModel):
    """What a cell holds: immutable, and its own codec."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def encode(self) -> bytes:
        """Compact JSON in UTF-8."""
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """The value that ``encode`` wrote. Raises pydantic.ValidationError."""
        return cls.model_validate_json(value)


class Pointer(Value):
    """``pages.pointer``: what decides to which cluster a page belongs. Its presence makes a page known.

    ``fingerprint`` is None for a page without content; ``next`` is where its redirect leads, or else the
    canonical URL it declares; ``indexable`` says whether a reader may be sent to it.
    """

    fingerprint: str | None = None
    next: Url | None = None
    indexable: bool = False


class Content(Value):
    """``pages.content``: what a reader sees of the page."""

    title: Text = ""
    text: Text = ""


class Outlinks(RootModel[dict[Url, tuple[Text, ...]]]):
    """``pages.outlinks``: each distinct target with the anchor texts of the links to it, targets sorted."""

    model_config = ConfigDict(frozen=True)

    def encode(self) -> bytes:
        """Compact JSON in UTF-8."""
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, value: bytes | None) -> Outlinks:
        """The value that ``encode`` wrote; no links for an absent cell. Raises pydantic.ValidationError."""
        return cls.model_validate_json(value) if value is not None else cls({})


class Anchors(RootModel[tuple[Text, ...]]):
    """``links.anchors``, of one source in document order, and ``pages.anchors``, of all sources, sorted."""

    model_config = ConfigDict(frozen=True)

    def encode(self) -> bytes:
        """Compact JSON in UTF-8."""
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, value: bytes | None) -> Anchors:
        """The value that ``encode`` wrote; no texts for an absent cell. Raises pydantic.ValidationError."""
        return cls.model_validate_json(value) if value is not None else cls(())


class Standing(Value):
    """``pages.rank``: the published rank, and the share of it that each outgoing link carries."""

    rank: Annotated[float, Field(ge=0)]
    share: Annotated[float, Field(ge=0)]


class Entry(Value):
    """``serving.entry``: what the serving index holds of a cluster, but for the text (``serving.text``).

    ``fingerprint`` is that of the page shown, so that a new text always makes a new entry. ``rank`` is the
    sum over the members with content. ``duplicates`` are the first of the other members, in the order of
    their URLs; ``size`` counts all members.
    """

    url: Url
    title: Text
    fingerprint: str
    rank: Annotated[float, Field(ge=0)]
    anchors: tuple[Text, ...]
    duplicates: tuple[Url, ...]
    size: Annotated[int, Field(ge=1)]
