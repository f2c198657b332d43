"""The examples of docs/reference/cli.md run, and print the outputs of the page except times and sizes.

With ``PERCOLATOR_WRITE_DOCS=1`` the outputs are written into the page instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.site.pages import PERCOLATOR, blocks, commands, comparable, rewrite, shell

if TYPE_CHECKING:
    from tests.cli.conftest import Project

PAGE = "reference/cli.md"
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
"""``timeout``, but its seconds begin at the start of the worker, which takes long on a busy machine."""


def run(project: Project, command: str, environment: dict[str, str]) -> str:
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_examples_print_what_the_page_says(project: Project) -> None:
    environment = shell(
        project.folder / "shims",
        percolator=PERCOLATOR,
        python=f'#!/bin/sh\nexec {sys.executable} "$@"\n',
        timeout=f"#!{sys.executable}\n{TIMEOUT}",
    )
    lines = [json.dumps({"id": row, "text": text}) for row, text in TEXTS.items()]
    (project.folder / "texts.jsonl").write_text("\n".join(lines) + "\n")
    page = blocks(PAGE)
    for block in page:
        if block.file is not None:
            (project.folder / block.file).write_text(block.text)
    examples = [block for block in page if block.language == "console"]
    made = []
    for block in examples:
        printed = []
        for command in commands(block):
            printed += [f"$ {command}", *run(project, command, environment).splitlines()]
        made.append("\n".join(printed) + "\n")
    if os.environ.get("PERCOLATOR_WRITE_DOCS"):
        rewrite(PAGE, made)
    else:
        assert [comparable("console", text) for text in made] == [
            comparable("console", block.text) for block in examples
        ]
