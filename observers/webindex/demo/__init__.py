"""The demonstration of ``make demo``: index real documents, change some, and watch the updates.

The documents, the store and the index stay in a folder; a second run loads only changes.
"""

from observers.webindex.demo.show import Show
from observers.webindex.demo.story import Settings, run

__all__ = ["Settings", "Show", "run"]
