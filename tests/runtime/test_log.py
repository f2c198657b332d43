"""The library's log."""

from __future__ import annotations

from typing import Any

import pytest
import structlog.testing

from percolator_core.runtime import log as logs


def test_an_event_of_many_runs_is_logged_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("percolator_core.runtime.log.time.monotonic", lambda: now)
    monkeypatch.setattr(structlog, "is_configured", lambda: True)
    log = logs.Log("test")
    with structlog.testing.capture_logs() as lines:
        for now in (0.0, 1.0, 9.9, 10.0, 10.1, 40.0):
            log.warning_once_in(10, "away", at=now)
            log.warning_once_in(10, "another", at=now)

    def fields(event: str) -> list[dict[str, Any]]:
        return [
            {k: v for k, v in line.items() if k in {"at", "left_out"}}
            for line in lines
            if line["event"] == event
        ]

    expected = [{"at": 0.0}, {"at": 10.0, "left_out": 2}, {"at": 40.0, "left_out": 1}]
    assert fields("away") == expected
    assert fields("another") == expected
    assert {line["log_level"] for line in lines} == {"warning"}
