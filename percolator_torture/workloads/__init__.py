"""The workloads, by name."""

from __future__ import annotations

from typing import Final

from percolator_torture.workloads.append import Append
from percolator_torture.workloads.bank import Bank
from percolator_torture.workloads.counter import Counter
from percolator_torture.workloads.long_fork import LongFork
from percolator_torture.workloads.ring import Ring
from percolator_torture.workloads.twin import Twin
from percolator_torture.workloads.workload import TABLE, State, Workload

__all__ = ["TABLE", "WORKLOADS", "State", "Workload"]

WORKLOADS: Final[dict[str, type[Workload]]] = {
    workload.name: workload for workload in (Bank, Append, Counter, LongFork, Ring, Twin)
}
