"""The command line of this application, for messages that name a command."""

from __future__ import annotations

import sys
from pathlib import Path


def program() -> str:
    """Return the start of a command line of this application: ``PYTHON -m observers.webindex``.

    The path of Python is relative if it is below the current folder.
    """
    python = Path(sys.executable)
    try:
        python = python.relative_to(Path.cwd())
    except ValueError:
        python = Path(python.name)
    return f"{python} -m observers.webindex"
