"""Names that several parts of the package share in Airflow."""

from __future__ import annotations

from typing import Final

TAG: Final = "percolator"
"""The tag of every DAG of a chain; a second tag is the chain's name."""

PARTS: Final = ("load", "observe", "monitor", "maintain")
"""The four DAGs of a chain."""

LAST_TASK: Final = "until_idle"
"""The last task of the observers' DAG. Its fields name the chain's folder, connection and namespace."""

URL_PREFIX: Final = "/percolator"
"""The path of the pages below Airflow's own URL."""


def dag_ids(chain: str) -> dict[str, str]:
    """Return the ids of a chain's four DAGs by part."""
    return {part: f"{chain}_{part}" for part in PARTS}
