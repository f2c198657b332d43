"""The fenced blocks of the documentation's pages, and a run of the programs of a page.

A block whose first line is ``# folder/name.yaml``, ``.py`` or ``-- name.sql`` is a file of the reader's
project. Any other Python block is a program. A block ``console`` has commands behind ``$``. A block ``text``
behind a program is its output.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PERCOLATOR = f'#!/bin/sh\nexec {sys.executable} -m percolator_core "$@"\n'
"""The command ``percolator`` of this checkout, as a script."""
PYTEST = f'#!/bin/sh\nexec {sys.executable} -P -m pytest -p no:cacheprovider "$@"\n'

_FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"(?:#|--) (\S+\.(?:yaml|py|sql))\n")

_RUNNER = """
import contextlib, io, json, subprocess, sys
done, names = [], {"__name__": "__main__"}
for kind, text in json.load(sys.stdin):
    if kind == "console":
        ran = subprocess.run(["bash", "-c", text], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        done.append(ran.stdout)
    else:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(text, "<program>", "exec"), names)
        done.append(out.getvalue())
with contextlib.suppress(KeyError, AttributeError):
    names["db"].close()
print(json.dumps(done))
"""
"""Runs all programs of a page in one process: they share their names, and the imports take long."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the name of its file, if it is a file."""

    page: str
    language: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        found = _NAME.match(self.text)
        return found[1] if found and self.language in {"python", "sql", "yaml"} else None


def pages() -> list[str]:
    """Return the paths in docs/ of all pages except the decisions."""
    found = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    return sorted(path for path in found if not path.startswith("decisions/"))


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [
        Block(page, found[1], found[2], text.count("\n", 0, found.start()) + 1)
        for found in _FENCE.finditer(text)
    ]


def commands(block: Block) -> list[str]:
    """Return the commands of a block ``console``."""
    return [line.removeprefix("$ ") for line in block.text.splitlines() if line.startswith("$ ")]


def steps(found: list[Block]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the steps to run, each a kind and a text, and their expected outputs."""
    wanted: list[tuple[str, str]] = []
    printed: list[str] = []
    for block in found:
        if block.language == "python" and block.file is None:
            wanted.append(("python", block.text))
            printed.append("")
        elif block.language == "text" and wanted and wanted[-1][0] == "python":
            printed[-1] = block.text
        elif block.language == "console":
            outputs = re.split(r"^\$ .*\n", block.text, flags=re.MULTILINE)[1:]
            wanted += [("console", command) for command in commands(block)]
            printed += outputs
    return wanted, printed


def shell(shims: Path, **scripts: str) -> dict[str, str]:
    """Write ``scripts`` into the folder ``shims``; return a shell's environment whose path begins with it."""
    shims.mkdir()
    for name, text in scripts.items():
        (shims / name).write_text(text)
        (shims / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PERCOLATOR_")}
    imported = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    return environment | {"PATH": f"{shims}:{environment['PATH']}", "PYTHONPATH": imported, "COLUMNS": "100"}


def rewrite(page: str, texts: Iterable[str]) -> None:
    """Replace the blocks ``console`` of a page by the texts."""
    path, made = DOCS / page, iter(texts)
    text = path.read_text(encoding="utf-8")
    path.write_text(_CONSOLE.sub(lambda _: f"```console\n{next(made)}```", text), encoding="utf-8")


def run(folder: Path, *names: str) -> tuple[list[tuple[str, str]], list[str], list[str]]:
    """Run the programs of pages in ``folder``; return the steps, the expected and the actual outputs."""
    found = [block for name in names for block in blocks(name)]
    for block in found:
        if block.file is not None:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
    environment = shell(folder / ".shims", percolator=PERCOLATOR, pytest=PYTEST)
    wanted, expected = steps(found)
    done = subprocess.run(
        [sys.executable, "-c", _RUNNER],
        cwd=folder,
        env=environment,
        input=json.dumps(wanted),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return wanted, expected, json.loads(done.stdout)


def comparable(kind: str, text: str) -> list[str]:
    """Return the lines; those of commands without numbers and the width of columns."""
    if kind == "python":
        return text.splitlines()
    return [" ".join(re.sub(r"\d+(\.\d+)?", "0", line).split()) for line in text.splitlines()]
