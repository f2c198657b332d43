"""Find, start and end the Java process in which Spark runs."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from percolator_core.errors import ConfigurationError

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark import SparkConf

MIN_JAVA: Final = 17
"""The oldest Java for Spark 4."""

_POLL: Final = 0.02
"""Seconds between two checks of a starting Java."""
_END_LIMIT: Final = 10.0
"""A starting Java that has not ended this many seconds after SIGTERM is killed."""


def check_java() -> int:
    """Return the major version of the Java that Spark will start.

    Raises:
        ConfigurationError: there is no Java, or it is older than 17.
    """
    advice = "install one (on Debian: apt install default-jre-headless) or point JAVA_HOME to it"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME, {home}" if home else "on the PATH"
        raise ConfigurationError(f"Spark needs Java {MIN_JAVA} or later and there is none {where}: {advice}.")
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"Spark needs Java and {java} does not start ({error}): {advice}.") from None
    version = java_version(answer.stderr + answer.stdout)
    if version is None or version < MIN_JAVA:
        found = f"Java {version}" if version else "no Java whose version can be read"
        raise ConfigurationError(f"Spark needs Java {MIN_JAVA} or later and {java} is {found}: {advice}.")
    return version


def java_version(text: str) -> int | None:
    """Read the major version from the output of ``java -version``: 8 for 1.8.0, 17 for 17.0.15."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def is_on_this_machine(master: str) -> bool:
    """Return True if the URL of the Spark master means that all executors are on this machine."""
    return bool(re.match(r"local\b|spark://(localhost|127\.[\d.]+|\[::1\])(:\d+)?$", master))


def start_java(conf: SparkConf, log: Path | None) -> JavaGateway:
    """Start Java and connect to it; its output goes to ``log``, or to a file that this process removes."""
    path = log or _temporary_log()
    try:
        gateway = _connect(conf, path)
    except ConfigurationError:
        raise  # the message names the log file, so the file stays
    except BaseException:
        if log is None:
            path.unlink(missing_ok=True)
        raise
    if log is None:
        atexit.register(path.unlink, missing_ok=True)
    return gateway


def forget(gateway: JavaGateway) -> None:
    """End Java after an interrupted call: the next call would receive the reply to the interrupted one."""
    from pyspark import SparkContext

    process: subprocess.Popen[bytes] | None = gateway.proc
    if process is None:
        return
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001
    assert process.stdin is not None
    process.stdin.close()


@contextmanager
def environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set variables in the environment of this process, for child processes."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _connect(conf: SparkConf, log: Path) -> JavaGateway:
    """Start Java and connect to it.

    pyspark can start Java, too, but has two faults. After an early interrupt it removes the folder in which
    Java writes its port: Java then fails, but its process never ends. And if Java ends early with exit code
    0, pyspark waits forever.
    """
    from pyspark.java_gateway import launch_gateway

    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java
        return launch_gateway(conf)
    cancelled = threading.Event()
    # A signal handler raises only in the main thread. So it cannot interrupt the pool's thread, which ends
    # its process if ``cancelled`` is set.
    with ThreadPoolExecutor(1, "percolator-java") as pool:
        starting = pool.submit(_start_process, conf, log, cancelled)
        try:
            java = starting.result()
        except BaseException:
            cancelled.set()
            raise
    with environment({"PYSPARK_GATEWAY_PORT": str(java.port), "PYSPARK_GATEWAY_SECRET": java.secret}):
        gateway = launch_gateway(conf)
    gateway.proc = java.process
    return gateway


@dataclass(frozen=True, slots=True)
class _Java:
    """A running Java. It ends when its stdin is closed; the end of this process also closes its stdin."""

    process: subprocess.Popen[bytes]
    port: int
    secret: str


def _start_process(conf: SparkConf, log: Path, cancelled: threading.Event) -> _Java:
    from pyspark.find_spark_home import _find_spark_home

    command = [str(Path(_find_spark_home()) / "bin" / "spark-submit")]
    for name, value in conf.getAll():
        command += ["--conf", f"{name}={value}"]
    command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    with tempfile.TemporaryDirectory(prefix="percolator-java-") as folder, log.open("wb") as output:
        port_file = Path(folder) / "port"
        settings = {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": conf.get("spark.executorEnv.PYTHONPATH") or "",
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(port_file),
        }
        if is_on_this_machine(conf.get("spark.master") or ""):
            settings["SPARK_LOCAL_IP"] = "127.0.0.1"  # executors of local-cluster listen on this address
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=os.environ | settings,
            process_group=0,  # Ctrl-C in a terminal reaches only Python, which then ends Java in order
        )
        try:
            return _wait_until_up(process, port_file, log, cancelled)
        except BaseException:
            _end(process)
            raise


def _wait_until_up(
    process: subprocess.Popen[bytes], port_file: Path, log: Path, cancelled: threading.Event
) -> _Java:
    """Wait for the file with Java's port; once the file exists, it is complete."""
    from pyspark.serializers import UTF8Deserializer, read_int

    while not port_file.exists():
        if process.poll() is not None:
            raise ConfigurationError(f"Spark's Java did not start: {_first_error(log)} (all output: {log}).")
        if cancelled.wait(_POLL):
            raise InterruptedError
    with port_file.open("rb") as file:
        return _Java(process, read_int(file), UTF8Deserializer().loads(file))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a starting Java and the shell scripts that start it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_LIMIT)
            break
    assert process.stdin is not None
    process.stdin.close()


def _temporary_log() -> Path:
    handle, path = tempfile.mkstemp(prefix="percolator-spark-", suffix=".log")
    os.close(handle)
    return Path(path)


def _first_error(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"(Exception|Error)\b.*: ", line)]
    return (errors or lines or ["no output"])[0]
