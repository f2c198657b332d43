"""The error for text that cannot be parsed."""

from __future__ import annotations


class NotationError(ValueError):
    """A text is not a valid key, value or time; the message says what to write."""
