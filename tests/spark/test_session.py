"""Starting Spark: what it needs, and that nobody hears of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from percolator_core.errors import ConfigurationError
from percolator_core.spark import check_java, default_master, spark_context
from percolator_core.spark.java import java_version
from percolator_core.spark.session import check_versions, python_path
from tests.servers.plain import PATIENCE
from tests.spark.gate import Gate, runs

if TYPE_CHECKING:
    from pyspark import SparkContext


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("something else", None),
    ],
)
def test_java_version(text: str, version: int | None) -> None:
    assert java_version(text) == version


def fake_java(home: Path, answer: str) -> None:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    java.chmod(0o755)


def test_java_is_missing_or_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(
        ConfigurationError, match=r"needs Java 17 or later and there is none in JAVA_HOME, .*install"
    ):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    fake_java(tmp_path, 'java version "1.8.0_402"')
    with pytest.raises(ConfigurationError, match=r"bin/java is Java 8: install one \(on Debian"):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="there is none on the PATH"):
        check_java()


def test_mixed_releases_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"runs Spark 1\.2\.3: reinstall pyspark and pyspark-client"):
        check_versions("1.2.3")


def test_python_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/a", "", str(tmp_path)]))
    package = Path(__file__).resolve().parents[2]
    assert python_path(tmp_path) == os.pathsep.join([str(tmp_path), str(package), "/a"])


def test_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERCOLATOR_SPARK_MASTER", raising=False)
    assert default_master() == f"local[{os.cpu_count()},4]"
    monkeypatch.setenv("PERCOLATOR_SPARK_MASTER", "spark://here:7077")
    assert default_master() == "spark://here:7077"


@pytest.mark.spark
def test_the_running_context_is_used(spark: SparkContext) -> None:
    from pyspark.sql import SparkSession

    assert spark_context() is spark
    session = SparkSession.builder.config(conf=spark.getConf()).getOrCreate()
    assert session.sparkContext is spark
    assert session.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert [row.id for row in session.range(3).collect()] == [0, 1, 2]


@pytest.mark.spark
def test_executors_run_this_python_and_import_the_project(spark: SparkContext) -> None:
    def look(_: int) -> tuple[str, str]:
        import percolator_core

        return sys.executable, percolator_core.__file__ or ""

    import percolator_core

    assert spark.parallelize([0], 1).map(look).collect() == [(sys.executable, percolator_core.__file__)]


SCRIPT = """
import percolator_core as percolator
from percolator_core.spark import load, open_source, spark_context
import sys
assert "pyspark" not in sys.modules
for master, reason in (("nonsense", "Master must"), ("local[x]", "Could not parse Master URL")):
    try:
        spark_context(master=master, log="spark.log")
    except percolator.ConfigurationError as error:
        assert reason in str(error) and "\\n" not in str(error), error
    else:
        raise AssertionError(master)
with percolator.connect("embedded:state", "n") as db:
    db.create_table("documents")
report = load("embedded:state", "n", "documents", open_source("site"), master="local[1]")
with percolator.connect("embedded:state", "n") as db:
    assert dict(db.snapshot().scan("documents")) == {
        b"doc://site/a.html": {"contents": b"hello", "content_type": b"text/html"}
    }
assert report.new == 1 and report.start_seconds > 0.3
from pyspark import SparkContext
assert SparkContext._active_spark_context is None
"""


@pytest.mark.slow
@pytest.mark.spark
def test_a_load_starts_spark_silently_and_stops_it(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "a.html").write_text("hello")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


STARTED = """
import signal, sys
from percolator_core.spark import spark_context
signal.signal(signal.SIGTERM, signal.default_int_handler)
try:
    spark_context(master="local[1]", log="spark.log")
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.spark
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_start_leaves_no_java_behind(tmp_path: Path, number: int) -> None:
    gate = Gate(tmp_path / "java")
    process = start(STARTED, tmp_path, **gate.environment)
    java = gate.pid()
    process.send_signal(number)
    try:
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        gate.open()  # to a Java that was forgotten
        assert not runs(java)
    finally:
        process.kill()
        if runs(java):
            os.kill(java, signal.SIGKILL)


MIDST = """
from pyspark import SparkContext
from percolator_core.spark import spark_context
started, javas = SparkContext._initialize_context, []
def interrupted(context, conf):
    javas.append(SparkContext._gateway.proc)
    SparkContext._initialize_context = started
    raise KeyboardInterrupt
SparkContext._initialize_context = interrupted
try:
    spark_context(master="local[1]", log="spark.log")
except KeyboardInterrupt:
    print("ended", javas[0].wait(100))
context = spark_context(master="local[1]", log="spark.log")
print(context.parallelize([1, 2], 1).sum(), SparkContext._gateway.proc is not javas[0])
context.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
def test_a_java_interrupted_in_a_call_is_given_up(tmp_path: Path) -> None:
    process = start(MIDST, tmp_path)
    try:
        assert process.communicate(timeout=PATIENCE)[0] == "ended 0\n3 True\n"
    finally:
        process.kill()


EARLY = """
from percolator_core import ConfigurationError
from percolator_core.spark import spark_context
try:
    spark_context(log="spark.log")
except ConfigurationError as error:
    print(error)
"""


@pytest.mark.spark
def test_a_java_that_ends_without_a_word_is_told(tmp_path: Path) -> None:
    Gate(tmp_path, "exit 0")
    process = start(EARLY, tmp_path, JAVA_HOME=str(tmp_path))
    try:
        assert process.communicate(timeout=PATIENCE)[0] == (
            "Spark's Java did not start: no output (all output: spark.log).\n"
        )
    finally:
        process.kill()


HANDLER = """
import signal
from percolator_core.spark import spark_context
for handler in signal.SIG_IGN, signal.default_int_handler:
    signal.signal(signal.SIGINT, handler)
    context = spark_context(master="local[1]", log="spark.log")
    print(signal.getsignal(signal.SIGINT) is handler)
    context.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
def test_the_handler_of_interrupts_stays_the_callers(tmp_path: Path) -> None:
    process = start(HANDLER, tmp_path)
    try:
        assert process.communicate(timeout=PATIENCE)[0] == "True\nTrue\n"
    finally:
        process.kill()


def start(code: str, folder: Path, **variables: str) -> subprocess.Popen[str]:
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(root)} | variables,
        stdout=subprocess.PIPE,
        text=True,
    )
