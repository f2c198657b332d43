"""``percolator init``: create a project that runs without changes."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shlex
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path, PurePosixPath
from string import Template
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from percolator_core.cli import output as outputs
from percolator_core.errors import ConfigurationError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

Kind = Literal["typed", "html", "words"]

_LOADS: Final[dict[Kind, tuple[str, ...]]] = {
    "typed": ("data", "--format", "csv", "--table", "orders"),
    "html": ("data", "--format", "html", "--base-url", "/", "--table", "documents"),
    "words": ("data", "--table", "documents", "--key", "id"),
}
"""The arguments of ``percolator load`` for the project's data; ``--chain`` follows."""

_SHOWS: Final[dict[Kind, str]] = {
    "typed": "percolator scan shops  # show the sums, which are also in $module.sqlite",
    "html": "python -m $module.search water",
    "words": "percolator scan totals  # show the counts",
}
"""The command that shows the result."""

_SUFFIX: Final = ".tmpl"
"""Each template has this suffix, so that test runners and linters ignore the template."""

_ABOUT: Final = PurePosixPath("ABOUT.md")
"""The template of the README's first part; the rest is the same in all projects."""

_HIDDEN: Final = {"gitignore": ".gitignore", "dockerignore": ".dockerignore"}
"""A template with the name .gitignore would apply to this repository."""

_FOLDERS: Final = {"data", "dags", "schemas", "tests", "wheels"}
"""The folders of a project; its package needs another name."""


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The project's folder: new, or empty.")],
    template: Annotated[
        Kind,
        typer.Option(
            help="typed: sums over rows of typed tables, exported to SQLite. html: a search index of HTML "
            "pages. words: counts of words, in raw tables.",
        ),
    ] = "typed",
) -> None:
    """Create a project: a chain with code, data and tests, a DAG, an image, and a README with the commands.

    The chain, its package and its DAGs get the name of the folder.
    """
    written = write_project(folder, template)
    outputs.current().result(
        {"folder": str(folder), "files": [str(path.relative_to(folder)) for path in written]},
        f"{len(written)} files are in {folder}. Try them:",
        f"\n  cd {shlex.quote(str(folder))}\n  pip install -e '.[dev]'\n  pytest\n",
        "Its README.md has the other commands.",
    )


def write_project(folder: Path, template: Kind = "typed") -> list[Path]:
    """Write the project into ``folder``, which is created if it is missing; return the files.

    Raises:
        ConfigurationError: the folder is not empty or cannot be written.
    """
    name = folder.resolve().name or "project"
    module = module_name(name)
    words = {"name": name, "module": module, "package": module.replace("_", "-")}
    loads = [*_LOADS[template], "--chain", module]
    words |= {"load": ", ".join(loads), "load_command": " ".join(loads)}
    words["show"] = Template(_SHOWS[template]).substitute(words)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigurationError(
                f"{folder} is not empty: name a new folder, so that none of your files is overwritten."
            )
        own = dict(_templates(template))
        words["about"] = Template(own.pop(_ABOUT)).substitute(words)
        written = []
        for path, text in {**dict(_templates("common")), **own}.items():
            target = folder / str(path).replace("MODULE", module)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(Template(text).substitute(words), encoding="utf-8")
            written.append(target)
        return sorted([*written, *_schemas_of(folder, module)])
    except OSError as error:
        raise ConfigurationError(
            f"{folder} cannot be written ({error.strerror}): name another folder."
        ) from None


def module_name(name: str) -> str:
    """Return the name of a Python package and chain that is made from the name of a folder.

    It is no keyword, no folder of the project, and no module that Python finds already.
    """
    module = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:50] or "project"
    if not module[0].isalpha():
        module = f"project_{module}"
    taken = keyword.iskeyword(module) or module in _FOLDERS or module in sys.stdlib_module_names
    return f"{module}_chain" if taken or importlib.util.find_spec(module) else module


def _schemas_of(folder: Path, module: str) -> list[Path]:
    """Write the JSON Schemas with the chain's tables and columns."""
    from percolator_core.observers.chain import Chain
    from percolator_core.observers.project_modules import in_project
    from percolator_core.observers.schema import write_schemas

    # In the project, the current directory is the project's folder.
    place = folder.absolute()
    with in_project(place):
        written = write_schemas(place / "schemas", Chain.load(place / module))
    return [folder / path.relative_to(place) for path in written]


def _templates(kind: str) -> Iterator[tuple[PurePosixPath, str]]:
    def walk(folder: Traversable, path: PurePosixPath) -> Iterator[tuple[PurePosixPath, str]]:
        for entry in folder.iterdir():
            if entry.is_dir():
                yield from walk(entry, path / entry.name)
            elif entry.name.endswith(_SUFFIX):
                name = entry.name.removesuffix(_SUFFIX)
                yield path / _HIDDEN.get(name, name), entry.read_text("utf-8")

    yield from walk(resources.files("percolator_core.cli") / "templates" / kind, PurePosixPath())
