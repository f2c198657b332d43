"""An Airflow for this process: its home and its database; global changes are undone after each file.

Airflow reads its environment and configures logging, structlog and warnings while it is imported, which
happens once in a process, together with tests of other folders. So no module imports it at its top: the
fixture `airflow_home` comes first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog

from percolator_core import connect
from tests.airflow.pages import Site, connection_to, forget_dags
from tests.airflow.pages import site as pages_of_this_process
from tests.airflow.project import set_connection
from tests.airflow.running import Dags, forget_runs
from tests.airflow.shop import Shop
from tests.airflow.web import Web, web_of
from tests.airflow.words import Words, all_pages, words_of
from tests.servers.plain import Server, binaries

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# Warnings of Airflow and its dependencies are allowed; warnings of our own code are errors.
_WARNINGS = pytest.mark.filterwarnings(
    "default", "error:::percolator_core(\\.|$)", "error:::percolator_airflow(\\.|$)", "error:::tests(\\.|$)"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(_WARNINGS)


@dataclass
class Globals:
    """The global state that the import of Airflow and its tasks change."""

    environment: dict[str, str]
    path: list[str]
    structlog: dict[str, Any] | None
    handlers: list[logging.Handler]
    level: int
    showwarning: Any
    captured: Any
    """``logging`` keeps the original of `warnings.showwarning` there while it captures warnings."""

    @classmethod
    def now(cls) -> Globals:
        root = logging.getLogger()
        return cls(
            dict(os.environ),
            list(sys.path),
            structlog.get_config() if structlog.is_configured() else None,
            list(root.handlers),
            root.level,
            warnings.showwarning,
            getattr(logging, "_warnings_showwarning", None),
        )

    def put_back(self) -> None:
        for name in set(os.environ) - set(self.environment):
            del os.environ[name]
        os.environ.update(self.environment)
        sys.path[:] = self.path
        structlog.reset_defaults()
        if self.structlog is not None:
            structlog.configure(**self.structlog)
        root = logging.getLogger()
        root.handlers[:] = self.handlers
        root.setLevel(self.level)
        warnings.showwarning = self.showwarning
        logging._warnings_showwarning = self.captured  # type: ignore[attr-defined]


@dataclass
class Home:
    """One Airflow for each process; each worker of pytest-xdist has a database of its own."""

    folder: Path
    airflow: Globals | None = field(default=None)
    """The global state after Airflow's import, restored for the next file."""

    def environment(self) -> dict[str, str]:
        return {
            "AIRFLOW_HOME": str(self.folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.folder / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(self.folder / "plugins"),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__FERNET_KEY": "",
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",  # its 30 s are short on a busy machine
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.folder / 'airflow.db'}?timeout=60",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.folder / "logs"),
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
            "AIRFLOW__API_AUTH__JWT_SECRET": "no secret " * 8,
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "AIRFLOW__METRICS__STATSD_ON": "False",
        }

    def enter(self) -> None:
        if self.airflow is not None:
            self.airflow.put_back()
            return
        os.environ.update(self.environment())
        (self.folder / "dags").mkdir()
        (self.folder / "plugins").mkdir()
        import airflow  # noqa: F401 - reads its environment now
        from airflow.utils.db import initdb

        initdb()
        _disposed()


def _disposed() -> None:
    from airflow import settings

    assert settings.engine is not None
    settings.engine.dispose()


_HOMES: list[Home] = []


def _home() -> Home:
    if not _HOMES:
        _HOMES.append(Home(Path(tempfile.mkdtemp(prefix="pc-airflow-"))))
    return _HOMES[0]


def pytest_unconfigure() -> None:
    for home in _HOMES:
        if home.airflow is not None:
            with contextlib.suppress(Exception):
                _disposed()
        shutil.rmtree(home.folder, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def airflow_home() -> Iterator[Path]:
    """AIRFLOW_HOME with an empty folder ``dags`` and a database; tests may now import Airflow."""
    before = Globals.now()
    home = _home()
    try:
        home.enter()
        yield home.folder
    finally:
        home.airflow = Globals.now()
        before.put_back()
        for entry in (home.folder / "dags").iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


@pytest.fixture
def dags(airflow_home: Path) -> Iterator[Dags]:
    """The folder of DAG files, empty before and after the test."""
    folder = airflow_home / "dags"
    modules = set(sys.modules)
    yield Dags(folder)
    forget_runs()
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for name in set(sys.modules) - modules:
        file = getattr(sys.modules[name], "__file__", None)
        if name.startswith("unusual_prefix_") or (file and Path(file).is_relative_to(folder)):
            del sys.modules[name]


@pytest.fixture
def shop(tmp_path: Path, dags: Dags, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A chain, and the connection ``store`` to a store for it."""
    url = f"embedded:{tmp_path / 'state'}"
    set_connection(monkeypatch, "store", host=url)
    made = Shop(tmp_path, dags, url)
    made.declare()
    with connect(url):  # keeps the server, which would start for each task
        yield made


@pytest.fixture(scope="module")
def pages(airflow_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, str]]:
    """The pages, and the URL of the store behind the default connection."""
    with all_pages(tmp_path_factory.mktemp("store")) as made:
        yield made


@pytest.fixture
def words(pages: tuple[Site, str], tmp_path: Path) -> Iterator[Words]:
    """A new chain with its pages, for each test."""
    with words_of(*pages, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A redis-server."""
    with closing(Server(next(iter(binaries().values())))) as server:
        yield server


@pytest.fixture(scope="module")
def site(airflow_home: Path, server: Server) -> Iterator[Site]:
    """The pages, with that server behind the default connection."""
    with connection_to(server.unix), pages_of_this_process() as made:
        try:
            yield made
        finally:
            forget_dags()


@pytest.fixture
def web(site: Site, server: Server, tmp_path: Path) -> Iterator[Web]:
    """A new chain on that server, for each test."""
    with web_of(site, server.unix, tmp_path) as made:
        yield made
