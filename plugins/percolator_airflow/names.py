"""The names by which the package's parts find each other in Airflow."""

from __future__ import annotations

from typing import Final

TAG: Final = "percolator"
"""The tag of every DAG of a chain; a second one is the chain's name."""

PARTS: Final = ("load", "observe", "monitor", "maintain")
"""What a chain's four DAGs do."""

LAST_TASK: Final = "until_idle"
"""The last task of the observers' DAG, whose fields name the chain's folder, connection and namespace."""

URL_PREFIX: Final = "/percolator"
"""Where the pages are, below Airflow's own URL."""


def dag_ids(chain: str) -> dict[str, str]:
    """The ids of a chain's four DAGs, by what each does."""
    return {part: f"{chain}_{part}" for part in PARTS}
