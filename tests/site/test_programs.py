"""The programs of the documentation run and print the outputs of the pages, and no program is left out.

With ``PERCOLATOR_WRITE_DOCS=1`` the outputs of commands are written into the pages.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml

from percolator_core import Chain, Database, Transaction, recipes
from percolator_core.cli.app import COMMANDS, app, installed
from percolator_core.observers.declaration import ChainDeclaration
from percolator_core.observers.drawing.render import render
from tests.site.pages import DOCS, ROOT, Block, blocks, commands, comparable, pages, rewrite, run

RUN = {
    "how-to/analyse.md": ["how-to/typed-tables.md"],
    "how-to/asyncio.md": [],
    "how-to/backup.md": [],
    "how-to/change-tables.md": [],
    "how-to/combine-queue.md": [],
    "how-to/counter.md": [],
    "how-to/export-queue.md": [],
    "how-to/export-table.md": [],
    "how-to/feedback.md": [],
    "how-to/large-tables.md": [],
    "how-to/load-files.md": [],
    "how-to/publish.md": [],
    "how-to/rows.md": [],
    "how-to/python-observers.md": [],
    "how-to/secondary-index.md": [],
    "how-to/test.md": [],
    "how-to/trace.md": ["tutorial.md"],
    "how-to/typed-tables.md": [],
    "how-to/views.md": [],
    "how-to/weak-notifications.md": [],
    "reference/api/database.md": [],
    "reference/api/transactions.md": [],
    "tutorial.md": [],
}
"""The pages whose programs run here, each with the pages whose programs run before."""

SPARK = {"how-to/spark.md": ["how-to/typed-tables.md"]}
"""Like `RUN`, for pages that need Spark."""

ELSEWHERE = {
    ("how-to/airflow.md", "python"): "tests/airflow/test_docs.py loads the DAG files",
    ("how-to/airflow.md", "yaml"): "tests/airflow/test_docs.py validates the settings",
    ("reference/cli.md", "console"): "tests/cli/test_docs.py runs the commands",
    ("reference/cli.md", "python"): "tests/cli/test_docs.py writes the file",
    ("how-to/clean-up.md", "python"): "tests/maintenance/test_collection_in_parts.py collects in parts",
    (
        "how-to/kafka.md",
        "python",
    ): "tests/kafka/test_command.py, tests/spark/test_kafka_page.py run the programs",
    ("how-to/kafka.md", "yaml"): "test_yaml_is_yaml reads it",
    ("how-to/postgresql.md", "python"): "tests/replication/test_command.py runs the program",
    ("how-to/postgresql.md", "sql"): "tests/replication/test_command.py runs the statements",
    ("explanation/stores.md", "python"): "tests/store/test_durability.py has each form of the setting",
    ("how-to/postgresql.md", "yaml"): "test_yaml_is_yaml reads it",
    (
        "how-to/run-workers.md",
        "yaml",
    ): "part of a pod's description: test_yaml_is_yaml reads it",
}
"""By page and language: the test of the blocks that do not run here."""

PROSE = {"text", "json", "ini", "dockerfile"}
"""Languages of outputs and of files for other programs."""


@pytest.mark.parametrize("page", sorted(RUN))
def test_its_programs_print_what_the_page_says(page: str, tmp_path: Path) -> None:
    prints_as_said(page, [*RUN[page], page], tmp_path)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("page", sorted(SPARK))
def test_its_spark_programs_print_what_the_page_says(page: str, tmp_path: Path) -> None:
    prints_as_said(page, [*SPARK[page], page], tmp_path)


def prints_as_said(page: str, names: list[str], folder: Path) -> None:
    steps, expected, printed = run(folder, *names)
    if os.environ.get("PERCOLATOR_WRITE_DOCS"):
        asked = [commands(block) for block in blocks(page) if block.language == "console"]
        found = [out for (kind, _), out in zip(steps, printed, strict=True) if kind == "console"]
        # The first outputs belong to the pages whose programs run before.
        outputs = iter(found[len(found) - sum(map(len, asked)) :])
        texts = ["".join(f"$ {command}\n{next(outputs)}" for command in block) for block in asked]
        rewrite(page, [re.sub(r" +$", "", text, flags=re.MULTILINE) for text in texts])
        return
    for (kind, text), wanted, got in zip(steps, expected, printed, strict=True):
        assert comparable(kind, got) == comparable(kind, wanted), text


def every_block() -> list[Block]:
    return [block for page in pages() for block in blocks(page)]


def test_every_block_is_run_or_listed() -> None:
    left = [
        f"{block.page}:{block.line}: {block.language or 'no language'}"
        for block in every_block()
        if block.language not in {*PROSE, "sh"}
        and block.page not in {*RUN, *SPARK}
        and (block.page, block.language) not in ELSEWHERE
    ]
    assert left == []


def test_what_is_listed_is_there() -> None:
    there = {(block.page, block.language) for block in every_block()}
    assert set(ELSEWHERE) - there == set()
    runnable = {page for page, language in there if language in {"python", "console"}}
    assert {*RUN, *SPARK} - runnable == set()


def test_yaml_is_yaml() -> None:
    for block in every_block():
        if block.language == "yaml":
            found = yaml.safe_load(block.text)
            assert found, f"{block.page}:{block.line}"
            if "tables" in found:
                ChainDeclaration.model_validate({"version": 1, "chain": "x", "schemas": "x"} | found)


def test_the_commands_of_shell_blocks_have_these_options() -> None:
    """Commands that need a cluster or a project do not run; the test checks their names and options."""
    known = typer.main.get_command(app)
    context = typer.Context(known)
    seen = 0
    for block in every_block():
        for line in block.text.replace("\\\n", "").splitlines() if block.language == "sh" else ():
            words = shlex.split(line, comments=True)
            if words[:1] != ["percolator"]:
                continue
            seen += 1
            command = known.get_command(context, words[1])  # type: ignore[attr-defined]
            assert command is not None, line
            options = {name for parameter in command.params for name in parameter.opts}
            assert {word for word in words[2:] if word.startswith("-")} <= options, line
    assert seen > 10


@pytest.mark.parametrize("page", pages())
def test_the_commands_that_it_names_exist(page: str) -> None:
    named = re.findall(r"`percolator ([a-z]+)", (DOCS / page).read_text(encoding="utf-8"))
    assert set(named) <= {*COMMANDS, *installed()}


@pytest.mark.parametrize("page", pages())
def test_the_calls_that_it_names_are_there(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    for owner, name in re.findall(r"`(t|db)\.(\w+)\(", text):
        assert hasattr(Transaction if owner == "t" else Database, name), name


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("CombineQueue", "combine-queue"),
        ("Counter", "counter"),
        ("ExportQueue", "export-queue"),
        ("SecondaryIndex", "secondary-index"),
    ],
)
def test_the_page_of_a_recipe_names_each_public_call(name: str, page: str) -> None:
    text = (DOCS / "how-to" / f"{page}.md").read_text(encoding="utf-8")
    for call in vars(getattr(recipes, name)):
        if not call.startswith("_"):
            assert f"`{call}(" in text


def test_the_drawing_of_the_dependency_tracker_is_its_graph() -> None:
    chain = Chain.load(ROOT / "observers" / "pagedeps", import_functions=False)
    assert (DOCS / "assets" / "pagedeps.svg").read_text(encoding="utf-8") == render(chain.graph, "svg")
