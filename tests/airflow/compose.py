"""Read docker-compose.yaml like a container engine, and run its services as processes of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from percolator_bench.peers.postgres import _identity, folder_of_programs
from percolator_core.cli.sessions import Child

ROOT: Final = Path(__file__).resolve().parents[2]
FILE: Final = ROOT / "docker-compose.yaml"
EXAMPLE: Final = ROOT / ".env.example"
LOOPBACK: Final = "127.0.0.1"
PROJECT: Final = "/srv/percolator"

_VARIABLE: Final = re.compile(r"\$(?:(\$)|\{(\w+)(?::([?-])([^}]*))?\})")
_PORTS: Final = ("6379", "5432", "8080", "8974", "7077", "7078", "8180", "8181", "9464")


class Unset(Exception):
    """A required variable is missing, so the engine starts nothing."""


def read() -> dict[str, Any]:
    """Read the file, with its anchors resolved."""
    found = yaml.safe_load(FILE.read_text())
    assert isinstance(found, dict)
    return found


def variables_of_example() -> dict[str, str]:
    """Return the variables of .env.example."""
    lines = [line for line in EXAMPLE.read_text().splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """Substitute variables: ``$$``, ``${NAME}``, ``${NAME:-default}`` and ``${NAME:?message}``."""

    def value(found: re.Match[str]) -> str:
        dollar, name, how, rest = found.groups()
        if dollar:
            return "$"
        if how == "?" and not variables.get(name):
            raise Unset(name)
        return variables.get(name) or (rest if how == "-" else "")

    return _VARIABLE.sub(value, text)


def deep(value: Any, variables: Mapping[str, str]) -> Any:
    """Return the value with `interpolated` applied to all texts in it."""
    if isinstance(value, str):
        return interpolated(value, variables)
    if isinstance(value, list):
        return [deep(one, variables) for one in value]
    if isinstance(value, dict):
        return {name: deep(one, variables) for name, one in value.items()}
    return value


@dataclass
class Machine:
    """The services on this machine: other ports, other folders, one host, and no DAGs."""

    folder: Path
    services: dict[str, Any]
    ports: dict[str, int]
    children: dict[str, Child] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path, variables: Mapping[str, str], ports: Sequence[int]) -> Machine:
        programs = folder / "bin"
        for name in ("bin", "dags", "data", "airflow/logs", "login", "serving", "spark"):
            (folder / name).mkdir(parents=True)
        (programs / "airflow-init").symlink_to(ROOT / "tools" / "airflow-init.sh")
        services = deep(read()["services"], variables)
        return cls(folder, services, dict(zip(_PORTS, ports, strict=True)))

    def here(self, text: str) -> str:
        """Replace the addresses and folders of containers by those of this machine."""
        hosts = "|".join(map(re.escape, self.services))
        text = re.sub(rf"\b({hosts})(?=:\d)", LOOPBACK, text)
        text = text.replace("0.0.0.0", LOOPBACK)
        text = text.replace(PROJECT, str(self.folder)).replace("--dir /data", f"--dir {self.folder / 'data'}")
        # In its container the service listens on every address.
        text = text.replace("redis-server -", f"redis-server - --bind {LOOPBACK}")
        return re.sub(
            rf"(?<![\d.\w-])({'|'.join(_PORTS)})(?!\d)", lambda found: str(self.ports[found[1]]), text
        )

    def command(self, given: Sequence[str]) -> list[str]:
        """Return a command line in the form for this machine."""
        made = [self.here(part) for part in given]
        for place, part in enumerate(given):
            if part == "--host" and given[place + 1] in self.services:
                made[place + 1] = LOOPBACK
        return made

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables of a service and of its image."""
        own = {
            key: self.here(str(value)) for key, value in self.services[name].get("environment", {}).items()
        }
        folders = [self.folder / "bin", Path(sys.executable).parent, *_postgres_programs()]
        image = {
            "PATH": os.pathsep.join([*map(str, folders), os.environ.get("PATH", os.defpath)]),
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_WORKER_DIR": str(self.folder / "spark"),
            "PYTHONUNBUFFERED": "1",
        }
        kept = {key: os.environ[key] for key in ("JAVA_HOME", "TMPDIR") if key in os.environ}
        return {**kept, **image, **own}

    def start(self, name: str) -> None:
        """Start a service with its command line."""
        command = self.command(self.services[name]["command"])
        log = self.folder / f"{name}.log"
        if name == "postgres":
            self.children[name] = self._start_postgres(command, log)
        else:
            self.children[name] = Child.start(name, command, log, env=self.environment(name), cwd=ROOT)

    def _start_postgres(self, command: list[str], log: Path) -> Child:
        """Create the cluster like the image's entrypoint, as a user who is not root."""
        who, programs = _identity(), _postgres_programs()[0]
        variables = self.environment("postgres")
        # Other users cannot enter pytest's folders.
        data = Path(tempfile.mkdtemp(prefix="percolator-compose-"))
        self.postgres = data
        password = data / "password"
        password.write_text(variables["POSTGRES_PASSWORD"])
        if who:
            for path in (data, password):
                os.chown(path, who["user"], who["group"])
        user = variables["POSTGRES_USER"]
        subprocess.run(
            [
                programs / "initdb",
                f"--username={user}",
                f"--pwfile={password}",
                f"--pgdata={data / 'data'}",
                "--no-sync",
                *variables["POSTGRES_INITDB_ARGS"].split(),
            ],
            check=True,
            capture_output=True,
            cwd=data,
            **who,
        )
        with log.open("wb") as out:
            process = subprocess.Popen(
                [programs / command[0], *command[1:], "-c", f"unix_socket_directories={data}"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=data,
                env={**variables, "PGDATA": str(data / "data")},
                start_new_session=True,
                **who,
            )
        return Child("postgres", process.pid, "", log, process)

    def create_database(self) -> None:
        """Create POSTGRES_DB like the image's entrypoint; it does not exist yet."""
        import psycopg

        variables = self.environment("postgres")
        with psycopg.connect(
            host=LOOPBACK,
            port=self.ports["5432"],
            user=variables["POSTGRES_USER"],
            password=variables["POSTGRES_PASSWORD"],
            dbname="postgres",
            autocommit=True,
        ) as connection:
            connection.execute(f"CREATE DATABASE {variables['POSTGRES_DB']}")

    def well(self, name: str) -> bool:
        """Return True if the command of the service's health check succeeds."""
        kind, *rest = self.services[name]["healthcheck"]["test"]
        command = self.command(rest if kind == "CMD" else ["sh", "-c", rest[0]])
        done = subprocess.run(
            command, env=self.environment(name), cwd=ROOT, capture_output=True, timeout=60, check=False
        )
        return done.returncode == 0

    def await_well(self, name: str, limit: float = 60.0) -> None:
        """Wait until the service is healthy; fail if it ends or takes too long."""
        until = time.monotonic() + limit
        child = self.children[name]
        while not self.well(name):
            assert child.code is None, f"{name} ended with {child.code}: {child.log.read_text()[-2000:]}"
            assert time.monotonic() < until, f"{name} is not well: {child.log.read_text()[-2000:]}"
            time.sleep(0.1)

    def close(self) -> None:
        """End the processes that still run, and remove the files outside the folder."""
        for child in self.children.values():
            child.kill()
        if hasattr(self, "postgres"):
            shutil.rmtree(self.postgres, ignore_errors=True)


def _postgres_programs() -> list[Path]:
    found = folder_of_programs()
    return [] if found is None else [found]
