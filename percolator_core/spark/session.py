"""A Spark context or session for this machine: the same Python, only loopback addresses, and no output."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from percolator_core.errors import ConfigurationError
from percolator_core.spark.java import check_java, environment, forget, is_on_this_machine, start_java

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

MASTER_VARIABLE: Final = "PERCOLATOR_SPARK_MASTER"
"""The environment variable with the default Spark master."""
_ATTEMPTS: Final = 4
"""The number of attempts at a task after which Spark fails the job."""
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Kill a cancelled task early. Transactions make this harmless.
    "spark.python.task.killTimeout": "200ms",
}
_LOOPBACK: Final = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
"""Further settings if all executors are on this machine; executors elsewhere could not reach this address."""


def check_pyspark() -> None:
    """Raise ConfigurationError if pyspark is not installed."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "Spark is not installed: pip install 'percolator-core[spark]', and install Java 17 or later"
        ) from None


def default_master() -> str:
    """Return the variable ``PERCOLATOR_SPARK_MASTER``, or else ``local[N,4]`` with all cores of this machine.

    The 4 allows three retries of a failed task.
    """
    return os.environ.get(MASTER_VARIABLE) or f"local[{os.cpu_count() or 1},{_ATTEMPTS}]"


def spark_context(
    app: str = "percolator",
    master: str | None = None,
    *,
    project: str | os.PathLike[str] = ".",
    settings: Mapping[str, str] | None = None,
    log: str | os.PathLike[str] | None = None,
) -> SparkContext:
    """Return the running SparkContext, or start one.

    The caller's handler of SIGINT stays: after a Ctrl-C a job continues until the caller cancels the job.

    Args:
        app: the name that Spark shows.
        master: any Spark master, by default `default_master`.
        project: the folder from which executors import ``schemas`` and ``observers``.
        settings: further Spark settings, which override the settings of this function.
        log: the file for Java's output, by default a temporary file that is removed at the end of this
            process.

    Raises:
        ConfigurationError: pyspark or Java 17 or later is not installed, the installation of pyspark is
            broken, or Spark refuses the master or a setting.
    """
    check_pyspark()
    from pyspark import SparkContext

    active: SparkContext | None = SparkContext._active_spark_context  # noqa: SLF001 - Spark has no public name
    if active is not None:
        return active
    if SparkContext._gateway is None:  # noqa: SLF001 - otherwise Java still runs after an earlier session
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
    """Return a session of the running SparkContext, or of a new one.

    Arguments and errors are those of `spark_context`.
    """
    context = spark_context(app, master, project=project, settings=settings, log=log)
    from pyspark.sql import SparkSession

    return SparkSession(context)


@contextmanager
def running_context(
    context: SparkContext | None, master: str | None, *, project: str | os.PathLike[str] = "."
) -> Iterator[SparkContext]:
    """Yield the given context, else the running context, else a new one that is stopped afterwards.

    ``master`` and ``project`` are for a new context. Raises the errors of `spark_context`.
    """
    check_pyspark()
    from pyspark import SparkContext

    active = context or SparkContext._active_spark_context  # noqa: SLF001 - Spark has no public name
    if active is not None:
        yield active
        return
    with spark_context(master=master, project=project) as started:
        yield started


def check_versions(running: str) -> None:
    """Raise ConfigurationError if the Python part and the Java part of Spark are of different releases.

    pyspark and pyspark-client install the same files, so that an installation may mix two releases.
    """
    import pyspark

    if pyspark.__version__ != running:
        raise ConfigurationError(
            f"pyspark {pyspark.__version__} runs Spark {running}: reinstall pyspark and pyspark-client "
            "in the same version."
        )


def python_path(project: Path) -> str:
    """Return the PYTHONPATH with which executors import this package and the project's modules."""
    package = Path(__file__).resolve().parents[2]
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join(dict.fromkeys([str(project.resolve()), str(package), *inherited]))


def _configuration(app: str, master: str, project: Path, settings: Mapping[str, str]) -> SparkConf:
    from pyspark import SparkConf

    here = _LOOPBACK if is_on_this_machine(master) else {}
    path = {"spark.executorEnv.PYTHONPATH": python_path(project)}
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(app)
    return conf.setAll(list({**_SETTINGS, **here, **path, **settings}.items()))


def _launch(conf: SparkConf, log: Path | None) -> SparkContext:
    """Start Spark, in the running Java or in a new one."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException

    logging.getLogger().addFilter(_is_not_of_py4j)
    logging.getLogger("py4j").propagate = False
    gateway = SparkContext._gateway or start_java(conf, log)  # noqa: SLF001
    with environment({"PYSPARK_PYTHON": sys.executable}), _own_interrupts():
        try:
            context = SparkContext(conf=conf, gateway=gateway)
            context.setLogLevel("ERROR")
        except (Py4JError, PySparkException) as error:
            reason = next((line for line in str(error).splitlines() if line.startswith(": ")), f": {error}")
            master = conf.get("spark.master")
            raise ConfigurationError(f"Spark does not start with master {master!r}{reason}") from None
        except (KeyboardInterrupt, SystemExit):
            forget(gateway)
            raise
        else:
            return context


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep the caller's handler of SIGINT, even one that ignores the signal.

    Spark's handler would call Java during another call, or after Spark has stopped.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGINT, before)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Filter out py4j's records of failed calls, which have tracebacks: the caller gets an exception."""
    return Path(record.pathname).parent.name != "py4j"
