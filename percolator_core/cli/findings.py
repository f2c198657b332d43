"""The findings of ``percolator doctor``, one per check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check. ``mend`` says how to fix the problem; it is empty if there is no problem."""

    check: str
    verdict: Verdict
    found: str
    mend: str = ""


def ok(check: str, found: str) -> Finding:
    """The check passed."""
    return Finding(check, "ok", found)


def warn(check: str, found: str, mend: str) -> Finding:
    """The library works, but a part is missing or slow."""
    return Finding(check, "warn", found, mend)


def fail(check: str, found: str, mend: str) -> Finding:
    """A part does not work."""
    return Finding(check, "fail", found, mend)
