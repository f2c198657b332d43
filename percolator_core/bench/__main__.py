"""``python -m percolator_core.bench``: ``percolator bench`` without the command line's frame."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields
from pathlib import Path

from rich.console import Console

from percolator_core.bench.runner import SUITES, run
from percolator_core.bench.scale import Scale
from percolator_core.errors import PercolatorError


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m percolator_core.bench", description=__doc__)
    parser.add_argument(
        "suites", nargs="*", metavar="SUITE", help=f"{', '.join(SUITES)}; all if none is named"
    )
    for field in fields(Scale):
        parser.add_argument(f"--{field.name}", type=int, default=field.default, help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the JSON to this file too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures (png, svg, pdf)")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    wanted = _arguments()
    try:
        scale = Scale(**{field.name: getattr(wanted, field.name) for field in fields(Scale)})
        report = run(wanted.suites, scale, tell=lambda name: print(f"measuring {name}", file=sys.stderr))  # noqa: T201
        if wanted.output is not None:
            report.write(wanted.output)
        if wanted.plot is not None:
            from percolator_core.bench.plot import draw

            draw(report, wanted.plot)
    except (PercolatorError, ValueError) as error:
        sys.exit(f"error: {error}")
    if wanted.json:
        print(json.dumps(report.as_dict(), indent=1, ensure_ascii=False))  # noqa: T201
    else:
        Console().print(report.table())


if __name__ == "__main__":
    main()
