"""A real ``airflow standalone`` for a test: on free ports, with users, and always ended afterwards.

Airflow runs in processes of its own, and nothing of it is imported here.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

PROGRAM: Final = Path(sys.executable).with_name("airflow")
COMPONENTS: Final = ("scheduler", "dag-processor", "api-server", "triggerer")
USERS: Final = {"admin": "admin", "viewer": "viewer"}

PATIENCE: Final = 400.0
"""Seconds after which a test fails that waits for something: a busy machine takes minutes."""

STOP_LIMIT: Final = 12.0


class AirflowGone(AssertionError):
    """Airflow did not start, or ended by itself; the message ends with its last words."""


def free_ports(count: int) -> list[int]:
    """Return different free ports of the loopback interface."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@dataclass
class Standalone:
    """A running ``airflow standalone``."""

    home: Path
    base_url: str
    passwords: Mapping[str, str]
    environment: Mapping[str, str]
    """The environment of its processes, for further commands of ``airflow``."""
    process: subprocess.Popen[bytes]
    program: Path = PROGRAM
    _tokens: dict[str, str] = field(default_factory=dict)
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _components: dict[str, int] = field(default_factory=dict)

    @property
    def group(self) -> int:
        """The process group, and the session, of all its processes; tasks have groups of their own in it."""
        return self.process.pid

    @property
    def log(self) -> Path:
        """The output of all its processes. The logs of tasks are under ``home/logs``."""
        return self.home / "standalone.log"

    def password(self, user: str = "admin") -> str:
        """The password for the form at ``/auth/login``."""
        return self.passwords[user]

    def token(self, user: str = "admin") -> str:
        """Return a bearer token of the user."""
        if user not in self._tokens:
            given = {"username": user, "password": self.passwords[user]}
            answer = self.request("POST", "/auth/token", given, user=None)
            answer.raise_for_status()
            self._tokens[user] = answer.json()["access_token"]
        return self._tokens[user]

    def request(
        self, method: str, path: str, json: Any = None, *, user: str | None = "admin", timeout: float = 180
    ) -> httpx.Response:
        """Return the server's response, even an error; ``user`` None: without a token."""
        headers = {} if user is None else {"Authorization": f"Bearer {self.token(user)}"}
        with httpx.Client(trust_env=False, timeout=timeout) as client:
            return client.request(method, self.base_url + path, headers=headers, json=json)

    def api(
        self, method: str, path: str, json: Any = None, *, user: str = "admin", timeout: float = 180
    ) -> Any:
        """Call the REST API (``path`` below ``/api/v2``); return the decoded response, fail on an error.

        SQLite refuses a transaction while others write. Airflow has then changed nothing, and the call is
        repeated, as a user does.
        """
        end = time.monotonic() + PATIENCE
        while True:
            answer = self.request(method, f"/api/v2{path}", json, user=user, timeout=timeout)
            if "Database error" not in answer.text[:200] or time.monotonic() > end:
                break
            time.sleep(1)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text[:2000]}"
        return answer.json() if answer.content else None

    def until(self, condition: Callable[[], Any], what: str, limit: float = PATIENCE) -> Any:
        """Poll ``condition`` and return its first true value; fail if Airflow ends."""
        end = time.monotonic() + limit
        while True:
            found = condition()
            if found:
                return found
            if self.process.poll() is not None:
                raise AirflowGone(f"airflow standalone ended: {self.last_words()}")
            assert time.monotonic() < end, f"{what}: not within {limit:.0f} s; {self.last_words()}"
            time.sleep(0.1)

    def await_dags(self, *names: str, limit: float = PATIENCE) -> None:
        """Wait until Airflow has read the DAGs; fail with the import errors, if there are any."""

        def read() -> bool:
            known = {dag["dag_id"] for dag in self.api("GET", "/dags?limit=100")["dags"]}
            if set(names) <= known:
                return True
            errors = self.api("GET", "/importErrors")["import_errors"]
            assert not errors, "\n".join(error["stack_trace"] for error in errors)
            return False

        self.until(read, f"DAGs {', '.join(names)}", limit)

    def unpause(self, *names: str) -> None:
        """Unpause the DAGs."""
        for name in names:
            self.api("PATCH", f"/dags/{name}", {"is_paused": False})

    def trigger(self, dag: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a manual run of the DAG; return its id."""
        given = {"logical_date": None, "conf": dict(conf or {})}
        return str(self.api("POST", f"/dags/{dag}/dagRuns", given)["dag_run_id"])

    def await_run(self, dag: str, run: str, limit: float = PATIENCE) -> str:
        """Wait until the run has ended; return ``success`` or ``failed``."""

        def state() -> str | None:
            found = str(self.api("GET", f"/dags/{dag}/dagRuns/{run}")["state"])
            return found if found in {"success", "failed"} else None

        return str(self.until(state, f"run {run} of {dag}", limit))

    def component(self, name: str) -> psutil.Process:
        """Return the process of the scheduler, dag-processor, api-server or triggerer."""
        return psutil.Process(self._components[name])

    def restart(self, name: str) -> None:
        """Restart a killed component; standalone itself does not."""
        with self.log.open("ab") as out:
            process = subprocess.Popen(
                [self.program, name],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=dict(self.environment),
                start_new_session=True,
            )
        self._started.append(process)
        self._components[name] = process.pid

    def healthy(self, *names: str) -> bool:
        """Return True if the API server reports these parts as healthy; without names, all parts."""
        try:
            answer = self.request("GET", "/api/v2/monitor/health", user=None, timeout=5)
        except httpx.TransportError:
            return False
        if not answer.is_success:
            return False
        told = answer.json()
        wanted = names or ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all(told[name]["status"] == "healthy" for name in wanted)

    def last_words(self) -> str:
        """Return the end of the log."""
        return self.log.read_bytes()[-3000:].decode(errors="replace")

    def processes(self) -> list[psutil.Process]:
        """Return the processes of its session, and of the sessions of restarted components."""
        sessions = {self.group, *(one.pid for one in self._started)}
        return [one for one in psutil.process_iter() if _session(one) in sessions]

    def _note_components(self) -> bool:
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                # Later the processes change their titles, which spell the name in another way.
                line = " ".join(child.cmdline()).replace("_", "-")
            except psutil.Error:
                continue
            for name in COMPONENTS:
                if f"airflow {name}" in line:
                    self._components.setdefault(name, child.pid)
        return len(self._components) == len(COMPONENTS)

    def stop(self) -> None:
        """End the components in order by Ctrl-C, then kill the processes that are left."""
        for process in (self.process, *self._started):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        until = time.monotonic() + STOP_LIMIT
        for process in (self.process, *self._started):
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
        while left := self.processes():
            for one in left:
                try:
                    one.kill()
                except psutil.NoSuchProcess:
                    pass
            psutil.wait_procs(left, timeout=5)
        for process in (self.process, *self._started):
            process.wait(5)


def _session(process: psutil.Process) -> int:
    try:
        return os.getsid(process.pid) if process.status() != psutil.STATUS_ZOMBIE else 0
    except (psutil.NoSuchProcess, ProcessLookupError):
        return 0


def settings(
    home: Path,
    dags_folder: Path,
    ports: tuple[int, int, int],
    plugins: Path | None,
    users: Mapping[str, str],
    *,
    program: Path,
) -> dict[str, str]:
    """The environment of Airflow, beside that of this process."""
    port, worker_logs, trigger_logs = ports
    base_url = f"http://127.0.0.1:{port}"
    return {
        # standalone starts its components as `airflow`.
        "PATH": f"{program.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags_folder),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins if plugins is not None else home / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
        "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "300",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{base_url}/execution/",
        # The default needs the name service.
        "AIRFLOW__CORE__HOSTNAME_CALLABLE": "socket.gethostname",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
            f"{name}:{role}" for name, role in users.items()
        ),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        # SQLite waits so many seconds for the writers of other processes; its default is 5.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}?timeout=60",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": base_url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker_logs),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_logs),
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        # Airflow starts watchers sooner, and notices killed tasks sooner.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "2",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "12",
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "3",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "10",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
    }


@contextmanager
def standalone(
    home: Path,
    dags_folder: Path,
    plugins: Path | None = None,
    users: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    *,
    program: Path = PROGRAM,
) -> Iterator[Standalone]:
    """Airflow in ``home``, a folder of the test's own, from when all its parts are well until the block ends.

    ``users`` are names with their roles: admin, op, user or viewer. ``env`` goes over all other settings.
    A home that was used before keeps its database. ``program`` is Airflow's, in any environment.

    Raises:
        AirflowGone: it did not start.
    """
    users = USERS if users is None else users
    home.mkdir(parents=True, exist_ok=True)
    passwords = {name: secrets.token_urlsafe(12) for name in users}
    (home / "passwords.json").write_text(json.dumps(passwords) + "\n")
    port, worker_logs, trigger_logs = free_ports(3)
    own = settings(home, dags_folder, (port, worker_logs, trigger_logs), plugins, users, program=program)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    environment = {**inherited, **own, **(env or {})}
    with (home / "standalone.log").open("ab") as out:
        process = subprocess.Popen(
            [program, "standalone"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment,
            cwd=home,
            start_new_session=True,
        )
    made = Standalone(home, f"http://127.0.0.1:{port}", passwords, environment, process, program)
    try:
        made.until(made._note_components, "the components")
        made.until(made.healthy, "health")
        yield made
    finally:
        made.stop()
