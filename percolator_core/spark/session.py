"""A Spark that works on this machine as it is: the right Python, loopback only, and silent.

Nothing of pyspark is imported until one of the functions is called.
"""

from __future__ import annotations

import atexit
import logging
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
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from percolator_core.errors import ConfigurationError

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

MIN_JAVA: Final = 17
"""Oldest Java that Spark 4 runs on."""

MASTER_VARIABLE: Final = "PERCOLATOR_SPARK_MASTER"
"""The variable that names the Spark master where nobody else does."""
_RETRIES: Final = 4
_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A cancelled task is killed, not waited for: transactions make that harmless.
    "spark.python.task.killTimeout": "200ms",
}
_LOOPBACK: Final = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
"""Further settings where all of Spark is on this machine; executors elsewhere have to reach the driver."""

_HIGHER_LOG_LEVEL: Final = "ERROR"
_LOOK: Final = 0.02
"""Seconds between two looks whether Java is up."""
_CANCEL_AGAIN: Final = 0.2
"""Seconds between two calls that cancel a job."""
_END_LIMIT: Final = 10.0
"""Seconds for a Java that is not up yet to end; then it is killed."""


def default_master(cores: int | None = None) -> str:
    """``local[N,4]``: ``cores`` or all cores of this machine, and three retries of a failed task.

    Unless ``cores`` is given, the variable ``PERCOLATOR_SPARK_MASTER`` counts, where it is set.
    """
    named = os.environ.get(MASTER_VARIABLE, "") if cores is None else ""
    return named or f"local[{cores or os.cpu_count() or 1},{_RETRIES}]"


def spark_context(
    app: str = "percolator",
    master: str | None = None,
    *,
    project: str | os.PathLike[str] = ".",
    settings: Mapping[str, str] | None = None,
    log: str | os.PathLike[str] | None = None,
) -> SparkContext:
    """The running SparkContext, or a new one.

    The handler of SIGINT stays the caller's: a job of one's own goes on after a Ctrl-C until it is cancelled.

    Args:
        app: the name shown by Spark.
        master: any Spark master; `default_master` when None.
        project: the folder whose ``schemas`` and ``observers`` executors import.
        settings: further Spark settings; they win over the ones made here.
        log: where Java's messages go; when None, a temporary file that is removed when this process ends.

    Raises:
        ConfigurationError: no Java of version 17 or later, a broken pyspark installation, or a master or
            setting that Spark refuses.
    """
    from pyspark import SparkContext

    active: SparkContext | None = SparkContext._active_spark_context  # noqa: SLF001 - there is no other way to ask
    if active is not None:
        return active
    if SparkContext._gateway is None:  # noqa: SLF001 - a Java that outlived its session is used again
        check_java()
    conf = _configuration(app, master or default_master(), Path(project), settings or {})
    context = _launch(conf, Path(log) if log is not None else None)
    check_versions(context.version)
    return context


def spark_session(
    app: str = "percolator",
    master: str | None = None,
    *,
    project: str | os.PathLike[str] = ".",
    settings: Mapping[str, str] | None = None,
    log: str | os.PathLike[str] | None = None,
) -> SparkSession:
    """A session with what the data source ``percolator`` works best with.

    Of the running SparkContext, or of a new one. Arguments and errors as of `spark_context`.
    """
    from pyspark.sql import SparkSession

    from percolator_core.spark.tables.reading import SCANS_ARE_APART

    context = spark_context(app, master, project=project, settings=settings, log=log)
    session = SparkSession(context)
    # With it on, Spark plans anew for each query that has a filter: only where that is of use.
    session.conf.set(_PUSHDOWN, str(SCANS_ARE_APART).lower())
    return session


@contextmanager
def running_context(
    context: SparkContext | None, master: str | None, *, project: str | os.PathLike[str] = "."
) -> Iterator[SparkContext]:
    """The context itself, else the running one, else a new one, which is stopped afterwards.

    ``master`` and ``project`` are for a new one, and as of `spark_context`, which tells what is raised.
    """
    from pyspark import SparkContext

    active = context or SparkContext._active_spark_context  # noqa: SLF001 - there is no other way to ask
    if active is not None:
        yield active
        return
    started = spark_context(master=master, project=project)
    try:
        yield started
    finally:
        started.stop()


def cancel(spark: SparkContext, group: str, job: Future[Any]) -> None:
    """Cancels the job of this group, for which another thread waits, and returns when it has ended.

    It cancels repeatedly: Spark ignores the call for a job that it does not know yet.
    """
    while not job.done():
        spark.cancelJobGroup(group)
        wait([job], _CANCEL_AGAIN)


def is_on_this_machine(master: str) -> bool:
    """Whether all executors of this Spark master are here, as far as its URL tells."""
    return bool(re.match(r"local\b|spark://(localhost|127\.[\d.]+|\[::1\])(:\d+)?$", master))


def check_java() -> int:
    """The major version of the Java that Spark will start.

    Raises:
        ConfigurationError: there is none, or it is older than 17.
    """
    mend = "install one (on Debian: apt install default-jre-headless) or point JAVA_HOME to it"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME, {home}" if home else "on the PATH"
        raise ConfigurationError(f"Spark needs Java {MIN_JAVA} or later and there is none {where}: {mend}.")
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"Spark needs Java and {java} does not start ({error}): {mend}.") from None
    version = java_version(answer.stderr + answer.stdout)
    if version is None or version < MIN_JAVA:
        found = f"Java {version}" if version else "no Java that tells its version"
        raise ConfigurationError(f"Spark needs Java {MIN_JAVA} or later and {java} is {found}: {mend}.")
    return version


def java_version(text: str) -> int | None:
    """The major version in what ``java -version`` says: 8 for 1.8.0, 17 for 17.0.15."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def check_versions(running: str) -> None:
    """That the Python and the Java half of Spark are of the same release.

    pyspark and pyspark-client install the same files, so two releases mix without a word.

    Raises:
        ConfigurationError: they are not.
    """
    import pyspark

    if pyspark.__version__ != running:
        raise ConfigurationError(
            f"pyspark {pyspark.__version__} runs Spark {running}: reinstall pyspark and pyspark-client "
            "in one and the same version."
        )


def _configuration(app: str, master: str, project: Path, settings: Mapping[str, str]) -> SparkConf:
    from pyspark import SparkConf

    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(app)
    conf.setAll(list(_SETTINGS.items()))
    if is_on_this_machine(master):
        conf.setAll(list(_LOOPBACK.items()))
    conf.set("spark.executorEnv.PYTHONPATH", python_path(project))
    conf.setAll(list(settings.items()))
    return conf


def python_path(project: Path) -> str:
    """The PYTHONPATH with which executors import this package and the project's own modules."""
    package = Path(__file__).resolve().parents[2]
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join(dict.fromkeys([str(project.resolve()), str(package), *inherited]))


def _launch(conf: SparkConf, log: Path | None) -> SparkContext:
    """Starts Java, unless there is one, and Spark in it."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException

    logging.getLogger().addFilter(_not_of_py4j)
    logging.getLogger("py4j").propagate = False
    gateway = SparkContext._gateway or _start_silently(conf, log)  # noqa: SLF001
    with _environment({"PYSPARK_PYTHON": sys.executable}), _own_interrupts():
        try:
            context = SparkContext(conf=conf, gateway=gateway)
            context.setLogLevel(_HIGHER_LOG_LEVEL)
        except (Py4JError, PySparkException) as error:
            reason = next((line for line in str(error).splitlines() if line.startswith(": ")), f": {error}")
            master = conf.get("spark.master")
            raise ConfigurationError(f"Spark does not start with master {master!r}{reason}") from None
        except (KeyboardInterrupt, SystemExit):
            _forget(gateway)
            raise
        else:
            return context


def _start_silently(conf: SparkConf, log: Path | None) -> JavaGateway:
    """A new Java with its output in a file, so that nothing of it reaches a person's terminal."""
    path = log or _temporary_log()
    try:
        gateway = _connected(conf, path)
    except ConfigurationError:
        raise  # it names the log, which stays
    except BaseException:
        if log is None:
            path.unlink(missing_ok=True)
        raise
    if log is None:
        atexit.register(path.unlink, missing_ok=True)
    return gateway


def _connected(conf: SparkConf, log: Path) -> JavaGateway:
    """A new Java, connected.

    pyspark would start one, too. But interrupted before Java is up, it removes the folder in which Java is to
    leave its port. Java fails on that and stays for good: the thread that would notice our end is gone, and
    the one that serves the port lives. And for a Java that ends early with exit code 0 it waits for ever.
    """
    from pyspark.java_gateway import launch_gateway

    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java
        return launch_gateway(conf)
    over = threading.Event()
    # No signal handler raises in a thread: Java is known from its first moment, and ended in every case.
    with ThreadPoolExecutor(1, "percolator-java") as pool:
        starting = pool.submit(_start_java, conf, log, over)
        try:
            java = starting.result()
        except BaseException:
            over.set()
            raise
    with _environment({"PYSPARK_GATEWAY_PORT": str(java.port), "PYSPARK_GATEWAY_SECRET": java.secret}):
        gateway = launch_gateway(conf)
    gateway.proc = java.process
    return gateway


@dataclass(frozen=True, slots=True)
class _Java:
    """A Java that is up. It ends by itself when its stdin is closed, be it by our end."""

    process: subprocess.Popen[bytes]
    port: int
    secret: str


def _start_java(conf: SparkConf, log: Path, over: threading.Event) -> _Java:
    """Starts Java and waits until it is up; ends it when ``over`` is set before."""
    from pyspark.find_spark_home import _find_spark_home

    command = [str(Path(_find_spark_home()) / "bin" / "spark-submit")]
    for name, value in conf.getAll():
        command += ["--conf", f"{name}={value}"]
    command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    with tempfile.TemporaryDirectory(prefix="percolator-java-") as folder, log.open("wb") as output:
        told = Path(folder) / "port"
        settings = {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": conf.get("spark.executorEnv.PYTHONPATH") or "",
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told),
        }
        if is_on_this_machine(conf.get("spark.master") or ""):
            settings["SPARK_LOCAL_IP"] = "127.0.0.1"  # where executors of local-cluster listen
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=os.environ | settings,
            process_group=0,  # a terminal's Ctrl-C is for us alone, who end Java in order
        )
        try:
            return _once_up(process, told, log, over)
        except BaseException:
            _end(process)
            raise


def _once_up(process: subprocess.Popen[bytes], told: Path, log: Path, over: threading.Event) -> _Java:
    """Waits until Java has told its port, in a file that appears as a whole."""
    from pyspark.serializers import UTF8Deserializer, read_int

    while not told.exists():
        if process.poll() is not None:
            raise ConfigurationError(f"Spark's Java did not start: {_complaint(log)} (all in {log}).")
        if over.wait(_LOOK):
            raise InterruptedError
    with told.open("rb") as file:
        return _Java(process, read_int(file), UTF8Deserializer().loads(file))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a Java that is not up yet, with the shell scripts that start it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_LIMIT)
            break
    assert process.stdin is not None
    process.stdin.close()


def _forget(gateway: JavaGateway) -> None:
    """Ends a Java in the midst of a call: its answer, still to come, would be taken for that of the next."""
    from pyspark import SparkContext

    process: subprocess.Popen[bytes] | None = gateway.proc
    if process is None:
        return
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001
    assert process.stdin is not None
    process.stdin.close()


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keeps the caller's handler of SIGINT, be it to ignore it.

    Spark puts one of its own there, which cancels all jobs: it would speak to Java in the midst of another
    call, and to a Spark long stopped. A load that is interrupted cancels its job itself.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGINT, before)


def _not_of_py4j(record: logging.LogRecord) -> bool:
    """A filter of the root logger.

    There py4j logs, with a traceback, every call that an interrupt or the end of Java breaks off. The
    caller gets the same as an exception and says it in a sentence.
    """
    return Path(record.pathname).parent.name != "py4j"


def _temporary_log() -> Path:
    handle, path = tempfile.mkstemp(prefix="percolator-spark-", suffix=".log")
    os.close(handle)
    return Path(path)


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """The settings in this process's environment, for the child that inherits them."""
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


def _complaint(path: Path) -> str:
    """The line of Java's messages that says what went wrong."""
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"(Exception|Error)\b.*: ", line)]
    return (telling or lines or ["it said nothing"])[0]
