"""Links from tasks to the pages of their chain."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

from percolator_airflow.names import URL_PREFIX


class ChainLink(BaseOperatorLink):
    """The link to the chain's graph, which shows the backlog of each observer."""

    name = "Chain"
    page = ""

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the URL of the chain's page, or of the overview for a task without a chain."""
        chain = str(getattr(operator, "chain_name", "") or "")
        overview = f"{conf.get('api', 'base_url', fallback='/').rstrip('/')}{URL_PREFIX}/"
        return f"{overview}{quote(chain, safe='')}/{self.page}" if chain else overview


class QuarantineLink(ChainLink):
    """The link to the chain's cells in quarantine."""

    name = "Quarantine"
    page = "quarantine"
