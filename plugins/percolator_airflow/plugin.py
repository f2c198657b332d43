"""The package's part of Airflow's web interface: the pages, a menu entry, and a tab on each DAG."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

from percolator_airflow.names import URL_PREFIX


class OnDemand:
    """The application, created by the first request.

    Every process of Airflow loads the plugins, but only the API server serves the pages.
    """

    def __init__(self) -> None:
        self._making = threading.Lock()
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if self._app is None:
            with self._making:
                if self._app is None:
                    from percolator_airflow.ui.app import make_app

                    self._app = make_app()
        await self._app(scope, receive, send)


class PercolatorPlugin(AirflowPlugin):
    """The pages, at ``/percolator``."""

    name = "percolator"
    fastapi_apps: ClassVar[list[Any]] = [{"app": OnDemand(), "url_prefix": URL_PREFIX, "name": "Percolator"}]
    external_views: ClassVar[list[Any]] = [
        {
            "name": "Percolator",
            "href": f"{URL_PREFIX[1:]}/",
            "destination": "nav",
            "nav_top_level": True,
            "url_route": "percolator",
        },
        {
            "name": "Percolator",
            "href": f"{URL_PREFIX[1:]}/dag/{{DAG_ID}}",
            "destination": "dag",
            "url_route": "percolator-chain",
        },
    ]
