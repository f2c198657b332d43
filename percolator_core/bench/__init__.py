"""The benchmarks: what the library costs, beside the raw store and beside a target.

A *suite* is a module that measures one thing and yields `Figure` values; `run` runs suites and returns a
`Report`, which is printed as a table, written as JSON and drawn as a plot. What each figure means is in
docs/explanation/performance.md.
"""

from percolator_core.bench.figure import Figure, Target
from percolator_core.bench.report import Note, Report
from percolator_core.bench.runner import SUITES, run
from percolator_core.bench.scale import Scale

__all__ = ["SUITES", "Figure", "Note", "Report", "Scale", "Target", "run"]
