"""The story of ``make demo``: real documents become a web index, some change, the index follows.

The documents and everything made from them stay in a folder; a second run sees only what has changed since.
"""

from observers.webindex.demo.changes import Change
from observers.webindex.demo.report import Report
from observers.webindex.demo.show import Show
from observers.webindex.demo.story import Settings, run

__all__ = ["Change", "Report", "Settings", "Show", "run"]
