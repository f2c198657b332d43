"""Starting Spark: what it needs, and that nobody hears of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from percolator_core.errors import ConfigurationError
from percolator_core.spark import check_java, default_master, spark_context
from percolator_core.spark.session import check_versions, java_version, python_path

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


def test_master() -> None:
    assert default_master(3) == "local[3,4]"
    assert default_master() == f"local[{os.cpu_count()},4]"


@pytest.mark.spark
def test_the_running_context_is_used(spark: SparkContext) -> None:
    from pyspark.sql import SparkSession

    assert spark_context() is spark
    session = SparkSession.builder.config(conf=spark.getConf()).getOrCreate()
    assert session.sparkContext is spark
    assert session.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert session.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
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
