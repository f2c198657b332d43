"""``percolator up``: run store, workers and Airflow for a project on this machine, until Ctrl-C."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from percolator_core.cli import airflow_home
from percolator_core.cli import output as outputs
from percolator_core.cli.options import chain_folders, load_chain
from percolator_core.cli.output import Failure, Output
from percolator_core.cli.sessions import Child, await_end
from percolator_core.cli.signals import Received, stopping
from percolator_core.errors import ConfigurationError
from percolator_core.runtime.log import Log

if TYPE_CHECKING:
    from percolator_core.observers import Chain

log: Final = Log("percolator.up")
_STATE: Final = "state.json"
_LOOK: Final = 0.1
"""Seconds between two checks for a signal and for processes that ended."""
_START_LIMIT: Final = 300.0
_WORKER_LIMIT: Final = 60.0
"""Seconds for a worker to finish its runs or give them back; a worker needs about 15."""


def up(
    project: Annotated[
        Path, typer.Argument(metavar="[PROJECT]", help="The project: the folder with observers/ and dags/.")
    ] = Path(),
    *,
    with_workers: Annotated[
        bool,
        typer.Option(
            "--worker/--no-worker",
            help="Run a worker for each chain, or let Airflow's DAGs run the observers.",
        ),
    ] = True,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Airflow's port on 127.0.0.1; 0: a free one.")
    ] = 0,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            envvar="PERCOLATOR_URL",
            help="The store. Default: an embedded one in PROJECT/.percolator.",
            rich_help_panel="Store",
        ),
    ] = None,
) -> None:
    """Run store, workers and Airflow for a project on this machine, until Ctrl-C or SIGTERM.

    Airflow listens on 127.0.0.1 only. It has no login: every user of this machine has full access.
    """
    output = outputs.current()
    output.carry_on = "`percolator up` starts it again"
    _Up(output, project.resolve(), with_workers, port, url).run()


class _Stopped(Exception):
    """A signal came during the start."""


@dataclass(slots=True)
class _Up:
    output: Output
    project: Path
    with_workers: bool
    port: int
    given_url: str | None
    url: str = ""
    chains: list[Chain] = field(default_factory=list)
    children: list[Child] = field(default_factory=list)
    received: Received = field(default_factory=Received)
    began: float = 0.0

    @property
    def folder(self) -> Path:
        """The folder for the state and the logs of the command."""
        return self.project / ".percolator" / "up"

    @property
    def home(self) -> Path:
        return self.project / ".percolator" / "airflow"

    @property
    def address(self) -> str:
        return f"http://{airflow_home.LOOPBACK}:{self.port}"

    def run(self) -> None:
        from percolator_core.store.url import absolute

        airflow = airflow_home.program()
        folders = chain_folders(self.project, "name a project's folder")
        self.chains = [load_chain(folder, import_functions=False) for folder in folders]
        self.url = absolute(self.given_url or f"embedded:{self.project / '.percolator'}")
        self.began = time.monotonic()
        for folder in (self.project / ".percolator", self.folder, self.home):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Closing the terminal stops the command as Ctrl-C does, unless the caller ignores SIGHUP (nohup).
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        others = () if ignored else (signal.SIGHUP,)
        with _alone(self.project, self.folder), stopping(lambda: None, *others) as self.received:
            self._end_left_behind()
            try:
                self._serve(airflow)
            except _Stopped:
                pass
            finally:
                # The next run ends the processes that this run leaves.
                if not any(child.lives() for child in self.children):
                    (self.folder / _STATE).unlink(missing_ok=True)
        if self.received.number == signal.SIGINT:
            raise KeyboardInterrupt
        self.output.result(self._data())

    def _serve(self, airflow: Path) -> None:
        from percolator_core.database import connect
        from percolator_core.store.redaction import redacted

        with ExitStack() as stack:
            with self.output.status("starting: the store") as line:
                # Stay connected until all processes have ended, so that an embedded store is stopped last.
                for chain in self.chains:
                    stack.enter_context(connect(self.url, chain.name))
                log.info("store ready", store=redacted(self.url))
                stack.callback(self._stop_workers)
                if self.with_workers:
                    line.update("starting: the workers")
                    self._start_workers()
                stack.callback(self._stop_airflow)
                line.update("starting: Airflow's database")
                self._start_airflow(airflow, line.update)
            log.info("airflow ready", url=self.address, seconds=round(time.monotonic() - self.began, 1))
            self._announce()
            while not self.received.number:
                self._check_processes()
                time.sleep(_LOOK)

    def _start_workers(self) -> None:
        command = [sys.executable, "-m", "percolator_core", "worker"]
        # The URL may contain a password, so it is not passed on the command line.
        inherited = {name: value for name, value in os.environ.items() if name != "PERCOLATOR_NAMESPACE"}
        env = inherited | {"PERCOLATOR_URL": self.url}
        for chain in self.chains:
            self._start(f"worker-{chain.name}", [*command, str(chain.path)], env)
        for worker in self._workers():
            self._await(partial(_log_contains, worker.log, b"worker started"))
            log.info("worker started", chain=worker.name.removeprefix("worker-"))

    def _start_airflow(self, airflow: Path, show: Any) -> None:
        try:
            self.port = _free_port(self.port)
        except OSError:
            raise ConfigurationError(
                f"port {self.port} is in use: name another --port, or leave it out to use a free one"
            ) from None
        env = airflow_home.environment(self.home, self.project, self.url, self.port)
        if not airflow_home.is_migrated(self.home):
            migration = self._start("database", [str(airflow), "db", "migrate"], env)
            self._await(lambda: migration.code == 0, migration)
            self.children.remove(migration)
            airflow_home.note_migrated(self.home)
            log.info("database ready")
        self.children += airflow_home.start_parts(airflow, self.folder, env, self.project)
        self._save()

        def is_healthy() -> bool:
            missing = airflow_home.missing_parts(self.port)
            show(f"starting: {', '.join(name.replace('_', '-') for name in missing)}")
            return not missing

        self._await(is_healthy)

    def _start(self, name: str, command: Sequence[str], env: dict[str, str]) -> Child:
        child = Child.start(name, command, self.folder / f"{name}.log", env=env, cwd=self.project)
        self.children.append(child)
        self._save()
        return child

    def _await(self, condition: Callable[[], bool], done: Child | None = None) -> None:
        """Wait until the condition is true. If the process ``done`` exits with code 0, the wait continues.

        Raises:
            _Stopped: a signal came.
            Failure: any other process ended, or the start took too long.
        """
        until = time.monotonic() + _START_LIMIT
        while not condition():
            self._check_processes(done)
            if time.monotonic() > until:
                raise Failure(f"the start took over {_START_LIMIT:.0f} s: read the logs in {self.folder}")
            time.sleep(_LOOK)

    def _check_processes(self, done: Child | None = None) -> None:
        if self.received.number:
            raise _Stopped
        for child in self.children:
            if child.code is not None and not (child is done and child.code == 0):
                raise Failure(
                    f"{child.name} ended unexpectedly: {child.last_log_line().rstrip('.')}; fix the cause "
                    f"and run `percolator up` again (the log is {child.log})"
                )

    def _workers(self) -> list[Child]:
        return [child for child in self.children if child.name.startswith("worker-")]

    def _stop_airflow(self) -> None:
        with self.output.status("stopping Airflow; Ctrl-C stops it without waiting for its tasks"):
            airflow_home.stop_parts([child for child in self.children if child not in self._workers()])
        log.info("airflow stopped")

    def _stop_workers(self) -> None:
        with self.output.status("stopping the workers"):
            _stop_in_order(self._workers())
        if self._workers():
            log.info("workers stopped")

    def _end_left_behind(self) -> None:
        """End the processes of an earlier run that was killed."""
        kept = _state(self.folder).get("children", {})
        left = [
            child
            for name, (pid, born) in kept.items()
            if (child := Child.left_behind(name, pid, born, self.folder / f"{name}.log")) is not None
        ]
        if left:
            log.info("ending processes of an earlier run", processes=[child.name for child in left])
            airflow_home.stop_parts([child for child in left if not child.name.startswith("worker-")])
            _stop_in_order([child for child in left if child.name.startswith("worker-")])

    def _save(self) -> None:
        state = {
            "pid": os.getpid(),
            "url": self.address,
            "children": {child.name: [child.pid, child.born] for child in self.children},
        }
        draft = self.folder / f"{_STATE}.new"
        draft.write_text(json.dumps(state))
        draft.replace(self.folder / _STATE)

    def _announce(self) -> None:
        if self.output.as_json:
            return  # a log line and the final result have the address
        data = self._data()
        self.output.result(
            None,
            "",
            f"Airflow   {self.address}   open to every user of this machine, without a login",
            f"chains    {', '.join(data['chains'])}",
            f"workers   {'one per chain' if self.with_workers else 'none: DAGs run the observers'}",
            f"store     {data['store']}",
            f"logs      {self.folder}",
            "",
            "Ctrl-C stops everything.",
        )
        sys.stdout.flush()

    def _data(self) -> dict[str, Any]:
        from percolator_core.store.redaction import redacted

        return {
            "project": str(self.project),
            "url": self.address if self.port else None,
            "store": redacted(self.url),
            "chains": [chain.name for chain in self.chains],
            "workers": self.with_workers,
            "seconds": round(time.monotonic() - self.began, 1),
        }


@contextmanager
def _alone(project: Path, folder: Path) -> Iterator[None]:
    from percolator_core.store.embedded.locks import Lock

    lock = Lock(folder / "up.lock")
    try:
        if not lock.take(fcntl.LOCK_EX):
            state = _state(folder)
            raise Failure(
                f"`percolator up` already runs for {project}: open {state.get('url', 'it')}, or stop it with "
                f"Ctrl-C in its terminal (process {state.get('pid', 'unknown')})"
            )
        yield
    finally:
        lock.close()


def _free_port(wanted: int) -> int:
    """Return the port, or for 0 any free port. Raises OSError if the port is in use."""
    with socket.socket() as probe:
        # The server sets this option, too. With it, closed connections do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((airflow_home.LOOPBACK, wanted))
        port: int = probe.getsockname()[1]
        return port


def _log_contains(log: Path, words: bytes) -> bool:
    return words in log.read_bytes()


def _stop_in_order(workers: Sequence[Child]) -> None:
    """End workers, which finish their runs or give them back. No process of a worker is left."""
    try:
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        await_end(workers, _WORKER_LIMIT)
    finally:
        for worker in workers:
            worker.kill()


def _state(folder: Path) -> dict[str, Any]:
    try:
        state = json.loads((folder / _STATE).read_text())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}
