"""The command line. `main` is the console script ``percolator``.

One module a command or a family of them; ``app`` knows them by name and imports the one that is asked for.
A command is a plain function: its parameters are its arguments and options, the first line of its docstring
its help. What all share (``--json``, ``--debug``) it takes from ``output.current()``; it reports failure by
raising.
"""

from __future__ import annotations


def main() -> None:
    """Run the command named by the arguments of this process, and exit."""
    from percolator_core.cli.app import app

    try:
        app()
    except SystemExit as end:
        # Observers' threads that are still at work would keep the process, however it came to its end.
        if isinstance(end.code, int):
            from percolator_core.runtime.exit import end_process

            end_process(end.code)
        raise


__all__ = ["main"]
