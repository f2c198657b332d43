"""Log lines of a command: as JSON or for people, from a level on, with tracebacks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from percolator_core.cli import logs
from percolator_core.cli.output import Output
from percolator_core.runtime.log import Log

if TYPE_CHECKING:
    from collections.abc import Iterator

LEVELS: tuple[logs.LogLevel, ...] = ("debug", "info", "warning", "error")


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before, configured = structlog.get_config(), structlog.is_configured()
    yield
    structlog.reset_defaults()
    if configured:
        structlog.configure(**before)


def fail() -> None:
    secret = "not for the log"  # noqa: F841 - the value of a variable
    raise ValueError("no such thing")


def log_an_exception() -> None:
    try:
        fail()
    except ValueError:
        Log("test").exception("it went wrong", row=b"\x00\xff", run=7)


def test_the_traceback_of_an_exception_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Output(as_json=True))
    log_an_exception()
    (line,) = capsys.readouterr().err.splitlines()
    logged: dict[str, Any] = json.loads(line)
    assert logged.pop("exception").splitlines()[0] == "Traceback (most recent call last):"
    assert logged.pop("timestamp")
    assert logged == {"event": "it went wrong", "level": "error", "row": "hex:00ff", "run": 7}
    assert "ValueError: no such thing" in line


def test_the_traceback_of_an_exception_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Output(as_json=False))
    log_an_exception()
    told = capsys.readouterr().err
    assert "Traceback (most recent call last):" in told
    assert told.endswith("ValueError: no such thing\n")
    assert "not for the log" not in told  # the value of a variable


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_and_what_is_above_it(level: logs.LogLevel, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Output(as_json=True), level)
    log = Log("test")
    for name in LEVELS:
        getattr(log, name)(name)
    told = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert told == list(LEVELS[LEVELS.index(level) :])
