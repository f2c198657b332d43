"""The last log lines of a worker: only those of a worker of this machine that logs to a file."""

from __future__ import annotations

import html
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from percolator_core.notifications.activation import Registration, live_workers
from percolator_core.ui import worker_log
from percolator_core.ui.local import LocalChain
from percolator_core.ui.worker_log import last_lines
from tests.servers.plain import until
from tests.ui.conftest import Pages

EVIL = "<script>alert(1)</script>"


@contextmanager
def running(pages: Pages, errors: int | IO[bytes], *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``percolator worker`` for the chain of the pages."""
    (pages.folder / "steps.py").write_text(
        "def split(t, cell):\n    pass\n\n\ndef join(t, cell):\n    pass\n"
    )
    env = os.environ | {"PERCOLATOR_URL": pages.url, "PERCOLATOR_NAMESPACE": pages.name}
    command = [sys.executable, "-m", "percolator_core", "worker", str(pages.folder), *options]
    env["PYTHONPATH"] = os.pathsep.join([str(pages.folder), str(Path(__file__).parents[2])])
    with subprocess.Popen(command, stderr=errors, stdout=subprocess.DEVNULL, env=env) as process:
        try:
            yield process
        finally:
            process.terminate()


def logs(pages: Pages) -> list[str]:
    """Return the links to logs on the page of the graph, as paths below the chain's."""
    links = re.findall(rf'href="/{pages.name}/(workers/[^"]*)"', pages.get(""))
    return [html.unescape(one) for one in links]


@pytest.mark.parametrize("processes", [1, 2])
def test_the_page_of_a_worker_has_the_last_lines_of_its_file(
    pages: Pages, tmp_path: Path, processes: int
) -> None:
    file = tmp_path / "worker.log"
    with file.open("wb") as errors, running(pages, errors, "--processes", str(processes)):
        until(lambda: len(live_workers(pages.db)) == processes)
        until(lambda: b"worker started" in file.read_bytes())
        paths = logs(pages)
        assert len(paths) == processes
        assert all("worker started" in pages.get(path) for path in paths)
        assert f'href="/{pages.name}/{paths[0]}"' in pages.get("observers/split")
        with file.open("a") as more:
            more.write(f"{EVIL}\x1b[2J\n")
        page = pages.get(paths[0])
        assert EVIL not in page
        assert f"{EVIL}⟨U+001B⟩[2J" in html.unescape(page)
    until(lambda: not live_workers(pages.db))
    assert "this worker has ended" in pages.get(paths[0], 404)


def test_the_secrets_of_the_store_are_no_part_of_the_page(
    pages: Pages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "worker.log"
    monkeypatch.setattr(LocalChain, "redact", lambda _, text: text.replace("swordfish", "***"))
    with file.open("wb") as errors, running(pages, errors):
        until(lambda: live_workers(pages.db))
        with file.open("a") as more:
            more.write("redis://:swordfish@host\n")
        [path] = logs(pages)
        page = pages.get(path)
        assert "redis://:***@host" in page
        assert "swordfish" not in page


def test_a_pipe_is_not_read(pages: Pages) -> None:
    with running(pages, subprocess.PIPE) as process:
        until(lambda: live_workers(pages.db))
        [path] = logs(pages)
        assert "does not log to a file" in pages.get(path)
        process.terminate()
        assert process.stderr is not None
        assert b"worker started" in process.stderr.read()


def test_a_record_cannot_name_another_process_or_machine(pages: Pages, tmp_path: Path) -> None:
    file = tmp_path / "private"
    file.write_text("a private line\n")
    with (
        file.open("a") as errors,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=errors) as process,
    ):
        where = f"process {process.pid} on {socket.gethostname()}"
        assert last_lines(where, 10) is None
        Registration(pages.db, "digest", where)
        [path] = logs(pages)
        page = pages.get(path)
        assert "does not log to a file" in page
        assert "private" not in page
    for other in (f"process 1 on not-{socket.gethostname()}", "/etc/passwd", "process ../../etc on x", ""):
        assert last_lines(other, 10) is None
    assert pages.get("workers/..%2F..%2Fetc%2Fpasswd", 404)


def test_only_the_end_of_a_long_log_is_read(pages: Pages, tmp_path: Path) -> None:
    file = tmp_path / "worker.log"
    file.write_text("".join(f"line {number:06}\n" for number in range(20_000)))
    with file.open("ab") as errors, running(pages, errors):
        until(lambda: live_workers(pages.db))
        (worker,) = live_workers(pages.db)
        until(lambda: b"worker started" in file.read_bytes())
        lines = last_lines(worker.where, 100_000)
        assert lines is not None
        assert len("\n".join(lines)) < worker_log._BYTES
        assert re.fullmatch(r"line \d{6}", lines[0])
        assert last_lines(worker.where, 3) == lines[-3:]
