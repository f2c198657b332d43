"""Airflow's home folder, settings and processes for one project on this machine.

This module does not import Airflow.

The processes are those of ``airflow standalone``, started one by one. ``airflow standalone`` has three
drawbacks. Its log servers listen on every address of the machine. It does not notice a dead process. It ends
the API server while tasks still report to that server. Here only the API server listens, and it ends last.
No log servers are needed, because all processes read the logs of tasks from the same disk.
"""

from __future__ import annotations

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
"""Running tasks have this many seconds to end by themselves, and then the same time again after SIGTERM."""
_OTHERS_LIMIT: Final = 5.0
"""Seconds for the DAG processor and the triggerer to end."""
_API_LIMIT: Final = 3.0
"""Seconds for the API server to end; the server waits while a browser has an open connection."""
_ANSWER_LIMIT: Final = 5.0


def program() -> Path:
    """Return the path of the ``airflow`` program in this Python's environment.

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
    """Return the environment variables of all Airflow processes.

    ``AIRFLOW__`` settings of this process are left out, because they may name the database of another
    Airflow. Airflow's connections and variables are kept.

    Args:
        home: Airflow's home folder.
        project: the project's folder.
        url: the store's URL, as `percolator_core.store.url.absolute` returns it.
        port: the port of the API server on the loopback address.
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
        # Everybody on this machine has full access; the server listens on the loopback address only.
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        # Airflow's default function asks the name service, at the start and whenever a log is shown.
        "AIRFLOW__CORE__HOSTNAME_CALLABLE": f"{hostname.__module__}.{hostname.__name__}",
        "AIRFLOW__API__HOST": LOOPBACK,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": base_url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        # A task that died without a report, for example with a killed scheduler, is retried after this time.
        # The default is five minutes, during which no other run of the DAG starts.
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
        # Watchers of assets start when the DAG file is read again, by default after 30 s.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "10",
        CONNECTION: json.dumps(connection(url)),
        # Tasks find `airflow`, `percolator` and Spark's Python of this environment.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
    }


def hostname() -> str:
    """Return the name of this machine for Airflow's processes."""
    return LOOPBACK


def connection(url: str) -> dict[str, Any]:
    """Return the fields of an Airflow connection to the store, with user and password in their own fields."""
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
    """Return True if the database exists and was made for the installed version of Airflow."""
    try:
        version = (home / _STAMP).read_text()
    except OSError:
        return False
    return version == _version() and (home / "airflow.db").exists()


def note_migrated(home: Path) -> None:
    """Record that the database is complete, so that the next start does not migrate it again."""
    (home / _STAMP).write_text(_version())


def _version() -> str:
    return metadata.version("apache-airflow-core")


def start_parts(airflow: Path, logs: Path, env: Mapping[str, str], cwd: Path) -> list[Child]:
    """Start Airflow's processes, the API server first."""
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
    """Return the parts that Airflow reports as unhealthy, or the API server if it does not answer."""
    import http.client

    server = http.client.HTTPConnection(LOOPBACK, port, timeout=_ANSWER_LIMIT)
    try:
        server.request("GET", "/api/v2/monitor/health")
        health = json.loads(server.getresponse().read())
        return [name for name in _HEALTHY if health[name]["status"] != "healthy"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return [API_SERVER]
    finally:
        server.close()


def stop_parts(children: Sequence[Child]) -> None:
    """End Airflow's processes. No process is left, even if this function is interrupted.

    Tasks get time to finish, and then SIGTERM. The API server ends last, because tasks report to it.
    """
    tasks = [child for child in children if child.name == "scheduler"]
    servers = [child for child in children if child.name == API_SERVER]
    others = [child for child in children if child not in tasks and child not in servers]
    try:
        for child in (*tasks, *others):
            child.send_signal(signal.SIGTERM)
        # The DAG processor and the triggerer can be killed: the next start repeats their work.
        await_end(others, _OTHERS_LIMIT)
        for child in others:
            child.kill()
        if not await_end(tasks, _TASKS_LIMIT):
            # The tasks' supervisors forward the signal, so that each operator can stop its work.
            for child in tasks:
                child.signal_group(signal.SIGTERM)
            await_end(tasks, _TASKS_LIMIT)
        for child in servers:
            child.send_signal(signal.SIGTERM)
        await_end(servers, _API_LIMIT)
    finally:
        for child in children:
            child.kill()


def _plugins(project: Path, home: Path) -> Path:
    """Return the project's plugins folder, or an empty one if the plugins are also installed as a package.

    Airflow would load such plugins twice.
    """
    own = project / "plugins"
    for entry in metadata.entry_points(group="airflow.plugins"):
        found = util.find_spec(entry.module.partition(".")[0])
        if found is not None and found.origin is not None and Path(found.origin).is_relative_to(own):
            return home / "plugins"
    return own if own.is_dir() else home / "plugins"
