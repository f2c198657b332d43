"""Folders and servers for the tests of embedded stores."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from percolator_core.store.embedded.binary import OVERRIDE, Binary
from tests.servers.plain import Server, binaries
from tests.store.embedding import BINARIES, Disk, lives, needed


@pytest.fixture(params=list(binaries()))
def own(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A plain server for one test alone."""
    with closing(Server(binaries()[request.param])) as server:
        yield server


@pytest.fixture(params=list(BINARIES))
def binary(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Binary:
    found = needed(request.param)
    monkeypatch.setenv(OVERRIDE, str(found.path))
    return found


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """A place for states; fails the test that leaves a server behind."""
    yield tmp_path
    left = []
    for lock in tmp_path.rglob("redis.server"):
        if lives(lock.parent):
            left.append(lock.parent)
            os.kill(int((lock.parent / "redis.pid").read_text()), signal.SIGKILL)
    assert not left


@pytest.fixture
def state(here: Path) -> Path:
    return here / "state"


@pytest.fixture
def disk(tmp_path: Path, binary: Binary, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A disk that can be full, for the embedded servers of this test."""
    disk = Disk(tmp_path, binary)
    monkeypatch.setenv(OVERRIDE, str(disk.program))
    return disk
