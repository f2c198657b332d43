"""A Spark that works on this machine as it is: the right Python, loopback only, and silent.

Nothing of pyspark is imported until one of the functions is called.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from percolator_core.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

MIN_JAVA: Final = 17
"""Oldest Java that Spark 4 runs on."""

_RETRIES: Final = 4
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A cancelled task is killed, not waited for: transactions make that harmless.
    "spark.python.task.killTimeout": "200ms",
    # Spark's Python data sources leave it off. Nothing here needs it yet: this version has no such source.
    "spark.sql.python.filterPushdown.enabled": "true",
}
_HIGHER_LOG_LEVEL: Final = "ERROR"


def default_master(cores: int | None = None) -> str:
    """``local[N,4]``: ``cores`` or all cores of this machine, and three retries of a failed task."""
    return f"local[{cores or os.cpu_count() or 1},{_RETRIES}]"


def spark_context(
    app: str = "percolator",
    master: str | None = None,
    *,
    project: str | os.PathLike[str] = ".",
    settings: Mapping[str, str] | None = None,
    log: str | os.PathLike[str] | None = None,
) -> SparkContext:
    """The running SparkContext, or a new one.

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
    context.setLogLevel(_HIGHER_LOG_LEVEL)
    check_versions(context.version)
    return context


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
    conf.set("spark.executorEnv.PYTHONPATH", python_path(project))
    conf.setAll(list(settings.items()))
    return conf


def python_path(project: Path) -> str:
    """The PYTHONPATH with which executors import this package and the project's own modules."""
    package = Path(__file__).resolve().parents[2]
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join(dict.fromkeys([str(project.resolve()), str(package), *inherited]))


def _launch(conf: SparkConf, log: Path | None) -> SparkContext:
    """Starts Java with its output in a file, so that nothing of it reaches a person's terminal."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException, PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    logging.getLogger().addFilter(_not_of_py4j)
    logging.getLogger("py4j").propagate = False
    gateway = SparkContext._gateway  # noqa: SLF001
    if gateway is None:
        path = log or _temporary_log()
        paths = {"PYTHONPATH": conf.get("spark.executorEnv.PYTHONPATH") or ""}
        with path.open("wb") as output, _environment({"PYSPARK_PYTHON": sys.executable, **paths}):
            try:
                gateway = launch_gateway(conf, {"stdout": output, "stderr": output})
            except PySparkRuntimeError:
                raise ConfigurationError(
                    f"Spark's Java did not start: {_complaint(path)} (all in {path})."
                ) from None
        if log is None:
            atexit.register(path.unlink, missing_ok=True)
    with _environment({"PYSPARK_PYTHON": sys.executable}):
        try:
            return SparkContext(conf=conf, gateway=gateway)
        except (Py4JError, PySparkException) as error:
            reason = next((line for line in str(error).splitlines() if line.startswith(": ")), f": {error}")
            master = conf.get("spark.master")
            raise ConfigurationError(f"Spark does not start with master {master!r}{reason}") from None


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
