"""docker-compose.yaml: valid, without default passwords, and each of its command lines runs.

No container engine is needed: the smoke test runs every service as a process of this machine, with the
command line, the variables and the health check that the file gives it, at other ports and in other folders.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import urlsafe_b64encode
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from percolator_bench.peers.postgres import why_missing
from percolator_core.cli.sessions import await_end
from tests.airflow import compose
from tests.airflow.compose import FILE, LOOPBACK, PROJECT, ROOT, Machine, Unset
from tests.airflow.standalone import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVICES = compose.read()["services"]
SECRET = re.compile(r"PASSWORD|SECRET|KEY|TOKEN|AUTH$")


@pytest.fixture(scope="module", autouse=True)
def airflow_home() -> None:
    """Airflow is not imported here, so it needs no home."""


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for one in value.values():
            yield from texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts(one)
    else:
        yield str(value)


def test_it_is_a_compose_file() -> None:
    program = Path(sys.executable).with_name("check-jsonschema")
    done = subprocess.run(
        [program, "--builtin-schema", "vendor.compose-spec", FILE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_starts_without_every_secret() -> None:
    example = compose.variables_of_example()
    assert set(example.values()) == {""}
    with pytest.raises(Unset):
        compose.deep(SERVICES, example)
    for name in example:
        others = {other: "x" for other in example if other != name}
        with pytest.raises(Unset, match=name):
            compose.deep(SERVICES, others)
    compose.deep(SERVICES, dict.fromkeys(example, "x"))


def test_no_secret_stands_in_the_file_or_on_a_command_line() -> None:
    for name, service in SERVICES.items():
        for variable, text in service.get("environment", {}).items():
            if SECRET.search(variable) and not variable.endswith(("_FILE", "AUTH_MANAGER")):
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", text), f"{name}: {variable}"
            # Passwords in the middle of a URL count, too.
            for password in re.findall(r"://[^:/]*:(.+)@", text):
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", password), f"{name}: {variable}"
        for text in texts([service.get("command"), service.get("healthcheck", {}).get("test")]):
            assert not re.search(r"(?<!\$)\$\{?\w*(PASSWORD|SECRET|KEY)", text), f"{name}: {text}"


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_can_be_kept_running(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] in {"unless-stopped", "on-failure"}
    assert isinstance(service["command"], list), "a shell in between would keep signals to itself"
    assert "healthcheck" in service or service["x-no-healthcheck"]
    assert not service.get("image", "").endswith(":latest")
    assert ":" in service["image"]
    for given in service.get("volumes", []):
        volume = given.partition(":")[0]
        assert volume in compose.read()["volumes"]
    # Only the web interface has a port, by default for this machine only.
    for port in service.get("ports", []):
        assert port.startswith("${AIRFLOW_ADDRESS:-127.0.0.1}:")
    for other in service.get("depends_on", {}):
        assert other in SERVICES


def test_volumes_and_folders_belong_to_the_images_user() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    given = {
        word: re.findall(rf"{PROJECT}/[\w/]+", found[0])
        for word in ("mkdir", "chown")
        if (found := re.search(rf"\b{word} [^&]*?(?=&&|\n\n)", dockerfile))
    }
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            folder = volume.partition(":")[2]
            if folder.startswith(PROJECT):
                assert folder in given["mkdir"], f"{name}: {folder} is not in the image"
                owned = any(folder == one or folder.startswith(f"{one}/") for one in given["chown"])
                assert owned, f"{name}: {folder} would belong to root"
    assert re.search(r"^USER percolator$", dockerfile, re.MULTILINE)


def test_what_is_loaded_and_put_aside_is_where_tasks_and_executors_see_it() -> None:
    for name in ("scheduler", "spark-worker"):
        assert "loads:/srv/percolator/airflow/percolator" in SERVICES[name]["volumes"]


def test_the_image_is_made_from_the_lock_and_from_what_is_there() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    installs = [line for line in re.split(r"&&|\n(?=[A-Z])", dockerfile) if "pip install" in line]
    assert len(installs) == 3
    assert all("--require-hashes" in line or "--no-index" in line for line in installs)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (.+) \S+$", dockerfile, re.MULTILINE):
        for source in line.split():
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored


def test_secrets_are_made_once(tmp_path: Path) -> None:
    for name in ("tools/env.sh", ".env.example"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    run = [str(tmp_path / "tools/env.sh")]
    assert subprocess.run(run, check=False, capture_output=True).returncode == 0
    made = (tmp_path / ".env").read_text()
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0
    found = dict(re.findall(r"^([A-Z_]+)=(.+)$", made, re.MULTILINE))
    assert set(found) == set(compose.variables_of_example())
    assert len(set(found.values())) == len(found)
    assert all(re.fullmatch("[0-9a-f]{48}", text) for name, text in found.items() if "FERNET" not in name)
    from cryptography.fernet import Fernet

    Fernet(found["AIRFLOW_FERNET_KEY"])
    again = subprocess.run(run, check=False, capture_output=True, text=True)
    assert again.returncode == 1
    assert "there is an .env already" in again.stderr
    assert (tmp_path / ".env").read_text() == made


def why_not() -> str | None:
    missing = [name for name in ("redis-server", "redis-cli", "java") if shutil.which(name) is None]
    if missing:
        return f"NOT TESTED: {', '.join(missing)} is missing: apt install redis-server default-jre-headless"
    if util.find_spec("airflow") is None:
        return "NOT TESTED: Airflow is not installed: make test installs it"
    return None if why_missing() is None else f"NOT TESTED: {why_missing()}"


@pytest.fixture
def variables() -> dict[str, str]:
    made = {name: secrets.token_hex(12) for name in compose.variables_of_example()}
    return made | {"AIRFLOW_FERNET_KEY": urlsafe_b64encode(secrets.token_bytes(32)).decode()}


@pytest.fixture
def machine(tmp_path: Path, variables: dict[str, str]) -> Iterator[Machine]:
    made = Machine.make(tmp_path / "m", variables, free_ports(9))
    yield made
    made.close()


def answer(url: str, given: Any = None) -> tuple[int, Any]:
    data = None if given is None else json.dumps(given).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as found:
            return found.status, json.load(found)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, None


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_every_command_line_runs(machine: Machine, variables: dict[str, str]) -> None:
    for name in ("redis", "postgres", "spark-master"):
        machine.start(name)
    machine.await_well("postgres")
    machine.create_database()
    machine.start("airflow-init")
    machine.await_well("redis")
    machine.start("worker")
    machine.await_well("spark-master")
    machine.start("spark-worker")
    init = machine.children["airflow-init"]
    assert await_end([init], 60)
    assert init.code == 0, init.log.read_text()[-2000:]
    for name in ("api-server", "scheduler", "dag-processor", "triggerer"):
        machine.start(name)
    waiting = [name for name in SERVICES if name != "airflow-init"]
    assert set(waiting) == set(machine.children) - {"airflow-init"}
    # The fast checks come first: each of the last two starts an Airflow of its own.
    for name in sorted(waiting, key=lambda name: name in {"dag-processor", "triggerer"}):
        machine.await_well(name)

    base = f"http://{LOOPBACK}:{machine.ports['8080']}"
    login = {"username": "admin", "password": variables["AIRFLOW_ADMIN_PASSWORD"]}
    assert answer(f"{base}/api/v2/dags")[0] == 401
    assert answer(f"{base}/auth/token", login | {"password": "admin"})[0] == 401
    assert answer(f"{base}/auth/token", login)[0] == 201

    words = " ".join(word for child in mine(machine) for word in child.cmdline())
    assert [name for name, text in variables.items() if text in words] == []
    away = [place for child in mine(machine) for place in listening(child) if place != LOOPBACK]
    assert away == []

    stop(machine)


def mine(machine: Machine) -> list[psutil.Process]:
    sessions = {child.pid for child in machine.children.values()}
    found = []
    for one in psutil.process_iter():
        try:
            if os.getsid(one.pid) in sessions and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def listening(process: psutil.Process) -> list[str]:
    try:
        found = process.net_connections()
    except psutil.NoSuchProcess:
        return []
    return [one.laddr.ip.removeprefix("::ffff:") for one in found if one.status == psutil.CONN_LISTEN]


def stop(machine: Machine) -> None:
    """Stop the services in the order of their dependencies, like the engine; no service needs a kill."""
    first = ["worker", "scheduler", "dag-processor", "triggerer", "spark-worker"]
    for names in (first, ["api-server", "spark-master"], ["redis", "postgres"]):
        for name in names:
            number = machine.services[name].get("stop_signal", "SIGTERM")
            if name == "postgres":
                number = "SIGINT"  # the image's own
            machine.children[name].send_signal(signal.Signals[number])
        until = time.monotonic() + 20
        for name in names:
            assert await_end([machine.children[name]], until - time.monotonic()), f"{name} does not stop"
