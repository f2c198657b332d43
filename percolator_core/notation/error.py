"""What is raised for a text that cannot be understood."""

from __future__ import annotations


class NotationError(ValueError):
    """A text that stands for no key, value or time; the message says what to write."""
