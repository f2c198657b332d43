"""The examples of docs/reference/cli.md are run, and print what stands there, times and sizes aside.

With ``PERCOLATOR_WRITE_DOCS=1`` the outputs are written into the page instead.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Project

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "cli.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TEXTS = {"dream": "to sleep perchance to dream", "mercy": "the quality of mercy", "storm": "boom"}

TIMEOUT = """\
import subprocess, sys, time
command = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
for line in command.stdout:
    print(line, end="", flush=True)
    if "worker started" in line:
        time.sleep(float(sys.argv[1]))
        command.terminate()
sys.exit(command.wait())
"""
"""The command, but that its seconds begin when the worker has started: on a busy machine that takes long."""


def commands(block: str) -> list[str]:
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def comparable(text: str) -> list[str]:
    """The lines without their numbers and without the width of columns."""
    return [" ".join(re.sub(r"\d+(\.\d+)?", "0", line).split()) for line in text.splitlines()]


def run(project: Project, command: str) -> str:
    shims = project.folder / "shims"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PERCOLATOR_")}
    environment |= {"PATH": f"{shims}:{environment['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=project.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_examples_print_what_the_page_says(project: Project) -> None:
    shim = project.folder / "shims" / "percolator"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m percolator_core "$@"\n')
    shim.chmod(0o755)
    lines = [json.dumps({"id": row, "text": text}) for row, text in TEXTS.items()]
    (project.folder / "texts.jsonl").write_text("\n".join(lines) + "\n")
    page = PAGE.read_text()
    python = shim.with_name("python")
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    timeout = shim.with_name("timeout")
    timeout.write_text(f"#!{sys.executable}\n{TIMEOUT}")
    timeout.chmod(0o755)
    for name, text in FILE.findall(page):
        (project.folder / name).write_text(text)
    made = []
    for block in BLOCK.findall(page):
        printed = []
        for command in commands(block):
            printed += [f"$ {command}", *run(project, command).splitlines()]
        made.append("\n".join(printed) + "\n")
    if os.environ.get("PERCOLATOR_WRITE_DOCS"):
        outputs = iter(made)
        PAGE.write_text(BLOCK.sub(lambda _: f"```console\n{next(outputs)}```", page))
    else:
        assert [comparable(text) for text in made] == [comparable(block) for block in BLOCK.findall(page)]
