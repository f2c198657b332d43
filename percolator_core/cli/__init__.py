"""The command line. `main` is the console script ``percolator``.

Each command, or family of commands, is a module; ``app`` imports it when the command runs. A command is a
plain function: its parameters are the arguments and options, its docstring is the help. ``output.current()``
has the common options ``--json`` and ``--debug``. A command fails by raising an exception.
"""

from __future__ import annotations


def main() -> None:
    """Run the command named by the arguments of this process, and exit."""
    from percolator_core.cli.app import app

    try:
        app()
    except SystemExit as end:
        # Threads that still run observers would keep the process alive.
        if isinstance(end.code, int):
            from percolator_core.runtime.exit import end_process

            end_process(end.code)
        raise
