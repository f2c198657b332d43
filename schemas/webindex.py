"""The structured values of the web index's cells, each encoded as compact JSON.

The encoding is deterministic: equal values have equal bytes, so an observer detects a change by comparing the
new bytes with the stored ones.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, RootModel, StringConstraints

Url = Annotated[str, StringConstraints(min_length=1)]
Text = str


class Value(BaseModel):
    """The value of a cell: immutable, with its encoding."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def encode(self) -> bytes:
        """Return compact JSON in UTF-8."""
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Return the value that ``encode`` wrote. Raises pydantic.ValidationError."""
        return cls.model_validate_json(value)


class Pointer(Value):
    """``pages.pointer``: the cell that decides the page's cluster. A page with this cell is known.

    ``fingerprint`` is None for a page without content. ``next`` is the target of the page's redirect, or else
    its canonical URL. ``indexable`` is True if search results may show the page.
    """

    fingerprint: str | None = None
    next: Url | None = None
    indexable: bool = False


class Content(Value):
    """``contents.content``: the page's title and visible text."""

    title: Text = ""
    text: Text = ""


class Outlinks(RootModel[dict[Url, tuple[Text, ...]]]):
    """``pages.outlinks``: the distinct targets, sorted, each with the anchor texts of the links to it."""

    model_config = ConfigDict(frozen=True)

    def encode(self) -> bytes:
        """Return compact JSON in UTF-8."""
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, value: bytes | None) -> Outlinks:
        """Return the value from ``encode``, or an empty value for None. Raises pydantic.ValidationError."""
        return cls.model_validate_json(value) if value is not None else cls({})


class Anchors(RootModel[tuple[Text, ...]]):
    """``links.anchors``: the texts of one source in document order; ``pages.anchors``: all texts, sorted."""

    model_config = ConfigDict(frozen=True)

    def encode(self) -> bytes:
        """Return compact JSON in UTF-8."""
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, value: bytes | None) -> Anchors:
        """Return the value from ``encode``, or an empty value for None. Raises pydantic.ValidationError."""
        return cls.model_validate_json(value) if value is not None else cls(())


class Standing(Value):
    """``pages.rank``: the published rank, and the share of it that each outgoing link passes on."""

    rank: Annotated[float, Field(ge=0)]
    share: Annotated[float, Field(ge=0)]


class Entry(Value):
    """``serving.entry``: the cluster's entry in the serving index, without the text (``serving_texts.text``).

    ``fingerprint`` belongs to the shown page, so that a new text always changes the entry. ``rank`` is the
    sum over the members with content. ``duplicates`` are other members, the first ones in the order of their
    URLs; ``size`` counts all members.
    """

    url: Url
    title: Text
    fingerprint: str
    rank: Annotated[float, Field(ge=0)]
    anchors: tuple[Text, ...]
    duplicates: tuple[Url, ...]
    size: Annotated[int, Field(ge=1)]
