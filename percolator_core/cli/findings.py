"""What ``percolator doctor`` finds, one line a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check. ``mend`` says what to do about it; empty when all is well.

    ``warn``: works, but something is missing or slower than it need be. ``fail``: something will not work.
    """

    check: str
    verdict: Verdict
    found: str
    mend: str = ""


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, "ok", found)


def warn(check: str, found: str, mend: str) -> Finding:
    """It works without."""
    return Finding(check, "warn", found, mend)


def fail(check: str, found: str, mend: str) -> Finding:
    """It does not work."""
    return Finding(check, "fail", found, mend)
