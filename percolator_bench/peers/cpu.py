"""CPU time of a server and of all processes that it has started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_LOOKS: Final = 5
"""The tree is read at most this many times while its processes change."""


def tree_cpu_seconds(pid: int) -> float:
    """Return user and system time, in seconds, of process ``pid`` and its descendants.

    Ended processes count if their parent has waited for them. The resolution is the kernel's clock tick,
    mostly 10 ms. Linux only.

    Raises:
        ProcessLookupError: there is no such process.
    """
    # A child that ends after it was read, and before its parent is read, would count twice: so read again.
    found = _tree(pid)
    for _ in range(_LOOKS):
        before, found = found, _tree(pid)
        if before.keys() == found.keys():
            break
    return sum(found.values()) / os.sysconf("SC_CLK_TCK")


def _tree(root: int) -> dict[int, int]:
    """Return the clock ticks of each process of the tree, and those of its ended children."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_bytes()
        except OSError:
            continue  # it has ended since
        # The second field, a name in parentheses, may contain any characters.
        fields = stat[stat.rindex(b")") + 2 :].split()
        pid, parent = int(entry.name), int(fields[1])
        ticks[pid] = sum(map(int, fields[11:15]))
        children.setdefault(parent, []).append(pid)
    if root not in ticks:
        raise ProcessLookupError(f"there is no process {root}")
    found: dict[int, int] = {}
    left = [root]
    while left:
        pid = left.pop()
        found[pid] = ticks[pid]
        left.extend(children.get(pid, ()))
    return found
