"""Airflow on this machine for one project: its home folder, its settings, its processes. Imports no Airflow.

These are the parts of ``airflow standalone``, started one by one. Standalone itself lets its log servers
listen on every address of the machine, does not notice when a part dies, and ends its API server while tasks
still report to it. Here nothing listens but the API server, and it ends last. All parts share a disk, so that
logs of tasks are read as files and no log server is missed.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import sys
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from percolator_core.cli.sessions import Child, await_end
from percolator_core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOOPBACK: Final = "127.0.0.1"
CONNECTION: Final = "AIRFLOW_CONN_PERCOLATOR_DEFAULT"
API_SERVER: Final = "api-server"
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    API_SERVER: ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
"""The processes of Airflow, with the arguments of each."""

_HEALTHY: Final = ("metadatabase", "scheduler", "dag_processor", "triggerer")
_STAMP: Final = "percolator.version"
_TASKS_LIMIT: Final = 10.0
"""Seconds that running tasks get to end by themselves, and again once they were told to end."""
_OTHERS_LIMIT: Final = 5.0
"""Seconds for what reads DAG files and waits for triggers."""
_API_LIMIT: Final = 3.0
"""Seconds for the API server, which waits for as long as a browser has a connection open."""
_ANSWER_LIMIT: Final = 5.0


def program() -> Path:
    """Airflow's program in this Python's environment.

    Raises:
        ConfigurationError: Airflow is not installed.
    """
    beside = Path(sys.executable).with_name("airflow")
    if util.find_spec("airflow") is not None:
        found = beside if beside.exists() else shutil.which("airflow")
        if found is not None:
            return Path(found)
    raise ConfigurationError(
        "`percolator up` needs Airflow: pip install 'percolator-core[airflow]'; "
        "`percolator worker` runs a chain's observers without it"
    )


def environment(home: Path, project: Path, url: str, port: int) -> dict[str, str]:
    """The environment of all of Airflow's processes.

    Settings of an Airflow elsewhere, in variables of this process, are left out: its database must not be
    taken for this one's. Connections and variables of Airflow stay.

    Args:
        home: Airflow's home folder.
        project: the project's folder.
        url: the store's URL, as `percolator_core.store.url.absolute` returns it.
        port: where the API server listens on the loopback.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW__", "PERCOLATOR_URL", "PERCOLATOR_NAMESPACE"))
    }
    base_url = f"http://{LOOPBACK}:{port}"
    return inherited | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW_CONFIG": str(home / "airflow.cfg"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(project / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(_plugins(project, home)),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{base_url}/execution/",
        # Whoever gets at the loopback of this machine may do everything: the server listens nowhere else.
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        # Airflow's own choice asks the name service, here and when a log is shown.
        "AIRFLOW__CORE__HOSTNAME_CALLABLE": f"{hostname.__module__}.{hostname.__name__}",
        "AIRFLOW__API__HOST": LOOPBACK,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": base_url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        # Tasks that died without a word, as with a scheduler that was killed, are given up and tried again:
        # after five minutes by default, in which no other run of their DAG begins.
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
        # What watches an asset, too, starts when the file of its DAG is read again: after 30 s by default.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "10",
        CONNECTION: json.dumps(connection(url)),
        # Tasks that start `airflow`, `percolator` or Spark's Python find those of this environment.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
    }


def hostname() -> str:
    """What Airflow's processes take for the name of this machine."""
    return LOOPBACK


def connection(url: str) -> dict[str, Any]:
    """The fields of an Airflow connection to the store; user and password have fields of their own."""
    scheme, colon, rest = url.partition("://")
    user, at, place = rest.rpartition("@")
    if url.startswith("embedded:") or not at:
        return {"conn_type": "percolator", "host": url}
    login, _, password = user.partition(":")
    return {
        "conn_type": "percolator",
        "host": f"{scheme}{colon}{place}",
        "login": unquote(login),
        "password": unquote(password),
    }


def is_migrated(home: Path) -> bool:
    """Whether the database is there already, made for the version of Airflow that is installed."""
    try:
        made_for = (home / _STAMP).read_text()
    except OSError:
        return False
    return made_for == _version() and (home / "airflow.db").exists()


def note_migrated(home: Path) -> None:
    """The database is whole: the next start need not look."""
    (home / _STAMP).write_text(_version())


def _version() -> str:
    return metadata.version("apache-airflow-core")


def start_parts(airflow: Path, logs: Path, env: Mapping[str, str], cwd: Path) -> list[Child]:
    """Start Airflow's processes; the API server is the first of them."""
    children: list[Child] = []
    try:
        for name, arguments in PARTS.items():
            children.append(Child.start(name, [airflow, *arguments], logs / f"{name}.log", env=env, cwd=cwd))
    except BaseException:
        for child in children:
            child.kill()
        raise
    return children


def missing_parts(port: int) -> list[str]:
    """What Airflow says is not well yet; all of it while it does not answer."""
    server = http.client.HTTPConnection(LOOPBACK, port, timeout=_ANSWER_LIMIT)
    try:
        server.request("GET", "/api/v2/monitor/health")
        told = json.loads(server.getresponse().read())
        return [name for name in _HEALTHY if told[name]["status"] != "healthy"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return [API_SERVER]
    finally:
        server.close()


def stop_parts(children: Sequence[Child]) -> None:
    """End Airflow in order; nothing of it runs afterwards, also when this is interrupted.

    Tasks first: they may finish, then they are told to end. The API server, to which they report, comes last.
    """
    tasks = [child for child in children if child.name == "scheduler"]
    servers = [child for child in children if child.name == API_SERVER]
    others = [child for child in children if child not in tasks and child not in servers]
    try:
        for child in (*tasks, *others):
            child.tell(signal.SIGTERM)
        # What these were at is done again: nobody's work is lost with them.
        await_end(others, _OTHERS_LIMIT)
        for child in others:
            child.kill()
        if not await_end(tasks, _TASKS_LIMIT):
            # Reaches what supervises the tasks, which passes it on, so that an operator ends its work.
            for child in tasks:
                child.tell_group(signal.SIGTERM)
            await_end(tasks, _TASKS_LIMIT)
        for child in servers:
            child.tell(signal.SIGTERM)
        await_end(servers, _API_LIMIT)
    finally:
        for child in children:
            child.kill()


def _plugins(project: Path, home: Path) -> Path:
    """The project's own plugins, unless they are installed here as well: Airflow would load those twice."""
    own = project / "plugins"
    for entry in metadata.entry_points(group="airflow.plugins"):
        found = util.find_spec(entry.module.partition(".")[0])
        if found is not None and found.origin is not None and Path(found.origin).is_relative_to(own):
            return home / "plugins"
    return own if own.is_dir() else home / "plugins"
