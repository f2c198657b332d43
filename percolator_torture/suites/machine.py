"""The machine of a run."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime

from percolator_core.store.embedded.binary import find_binary


def this_machine() -> str:
    """Cores, versions and the date, in a line."""
    server = ".".join(map(str, find_binary().version))
    today = datetime.now(UTC).date().isoformat()
    return f"{today}, {os.cpu_count() or 1} cores, Python {platform.python_version()}, Redis {server}"
