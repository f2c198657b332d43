"""Faults of servers by which a client can run code on the server's machine, and the releases that fix them.

The list is as of `AS_OF`. Its sources are the release notes of Redis and Valkey and the CVE records. A server
reports only its version: a distribution or a provider may have fixed a fault under the same version number,
as Debian does with Redis 7.0.15.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

AS_OF: Final = "November 2026"

Lines = Mapping[tuple[int, int], int]
"""A map from major and minor version to the first patch release that has the fix."""


def version_numbers(version: str) -> tuple[int, int, int]:
    """Return major, minor and patch version, 0 for missing numbers."""
    major, minor, patch, *_ = (int(part) for part in [*re.findall(r"\d+", version), "0", "0", "0"])
    return major, minor, patch


def _lines(releases: str) -> Lines:
    return {(major, minor): patch for major, minor, patch in map(version_numbers, releases.split())}


@dataclass(frozen=True, slots=True)
class KnownFault:
    """A fault of some releases.

    ``way`` is how a client exploits it. For each product (``Redis``, ``Valkey``), ``names`` has the CVE
    numbers, and ``mended`` has the releases that fix the fault.
    """

    way: str
    names: Mapping[str, str]
    mended: Mapping[str, Lines]


FAULTS: Final[Sequence[KnownFault]] = (
    KnownFault(
        "a Lua script",
        dict.fromkeys(("Redis", "Valkey"), "CVE-2025-49844, CVE-2025-46817"),
        {
            "Redis": _lines("6.2.20 7.2.11 7.4.6 8.0.4 8.2.2"),
            "Valkey": _lines("7.2.11 8.0.6 8.1.4"),
        },
    ),
    KnownFault(
        "TLS, or the command RESTORE",
        {"Redis": "CVE-2026-81934, CVE-2026-66373", "Valkey": "CVE-2026-56684, CVE-2026-63639"},
        {
            "Redis": _lines("6.2.24 7.2.16 7.4.11 8.2.9 8.4.6 8.6.6 8.8.2 8.10.1"),
            "Valkey": _lines("7.2.14 8.0.10 8.1.9 9.0.5 9.1.1"),
        },
    ),
)
"""The oldest fault is first. A release with the fix of the newest fault has the fixes of all older ones."""


_WARNED: Final[set[str]] = set()
"""Run ids of the servers for which a warning was logged."""


@dataclass(frozen=True, slots=True)
class Exposure:
    """The known faults of one server: ``server`` is its product and version."""

    server: str
    faults: str
    mend: str


def exposure(info: Mapping[str, object]) -> Exposure | None:
    """Return the known faults of the server that has sent this reply to ``INFO``; None if `FAULTS` has none.

    A minor version that is newer than all in the list counts as fixed. An older one that is not in the list
    counts as never fixed.
    """
    product = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version") or "0")
    found = [fault for fault in FAULTS if _is_open(version, fault.mended[product])]
    if not found:
        return None
    line, lines = version_numbers(version)[:2], found[-1].mended[product]
    releases = ", ".join(f"{major}.{minor}.{patch}" for (major, minor), patch in sorted(lines.items()))
    here = "" if line in lines else f", and none of {line[0]}.{line[1]}"
    return Exposure(
        f"{product} {version}",
        "; ".join(f"by {fault.way} ({fault.names[product]})" for fault in found),
        f"upgrade: fixed in {releases} and newer releases of each line{here} (as of {AS_OF}); "
        "a distribution's own build may have the fixes under an old number, see its changelog",
    )


def warn_once(info: Mapping[str, object]) -> None:
    """Log a warning for a server with known faults, once in this process."""
    found, process = exposure(info), str(info.get("run_id"))
    if found is None or process in _WARNED:
        return
    _WARNED.add(process)
    from percolator_core.runtime.log import Log  # structlog is slow to import, and seldom needed here

    Log("percolator.store").warning(
        "the server's version has known faults that let clients run code on its machine",
        server=found.server,
        faults=found.faults,
        mend=found.mend,
    )


def _is_open(version: str, lines: Lines) -> bool:
    major, minor, patch = version_numbers(version)
    if (major, minor) in lines:
        return patch < lines[major, minor]
    return (major, minor) < max(lines)
