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

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the URL of the chain's page, or of the overview for a task without a chain."""
        return page_url(_chain_of(operator))


class QuarantineLink(BaseOperatorLink):
    """The link to the chain's cells in quarantine."""

    name = "Quarantine"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the URL of the chain's quarantine, or of the overview for a task without a chain."""
        return page_url(_chain_of(operator), "quarantine")


def page_url(chain: str, page: str = "") -> str:
    """Return the URL of a chain's page below Airflow's own URL; without a chain, the URL of the overview."""
    base = conf.get("api", "base_url", fallback="/").rstrip("/")
    return f"{base}{URL_PREFIX}/{quote(chain, safe='')}/{page}" if chain else f"{base}{URL_PREFIX}/"


def _chain_of(operator: Any) -> str:
    return str(getattr(operator, "chain_name", "") or "")
