"""The benchmarks: the costs of the library, compared with the raw store and with targets.

A *suite* is a module that measures one thing and yields `Figure` values. `run` runs suites and returns a
`Report`, which is printed as a table, written as JSON and drawn as a plot. docs/explanation/performance.md
explains each figure.
"""

from typing import TYPE_CHECKING

from percolator_core.runtime.lazy_imports import lazily

if TYPE_CHECKING:
    from percolator_bench.figure import Figure, Target
    from percolator_bench.report import Note, Report
    from percolator_bench.runner import SUITES, run
    from percolator_bench.scale import Scale

__all__ = ["SUITES", "Figure", "Note", "Report", "Scale", "Target", "run"]

# ``percolator --help`` imports this package for the help of ``bench``.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "figure": ("Figure", "Target"),
        "report": ("Note", "Report"),
        "runner": ("SUITES", "run"),
        "scale": ("Scale",),
    },
)
