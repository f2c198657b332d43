"""``percolator init``: create a project that runs without changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path, PurePosixPath
from string import Template
from typing import TYPE_CHECKING, Annotated, Final

import typer

from percolator_core.cli import output as outputs
from percolator_core.errors import ConfigurationError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_SUFFIX: Final = ".tmpl"
"""Each template has this suffix, so that test runners and linters ignore the template."""


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The project's folder: new, or empty.")],
) -> None:
    """Create a project: a chain of two observers, its schemas, a test, and a README with the commands."""
    written = write_project(folder)
    outputs.current().result(
        {"folder": str(folder), "files": [str(path.relative_to(folder)) for path in written]},
        f"{len(written)} files are in {folder}. Try them:",
        f"\n  cd {folder}\n  pytest\n  percolator check observers/words\n",
        "Its README.md has the other commands.",
    )


def write_project(folder: Path) -> list[Path]:
    """Write the project into ``folder``, which is created if it is missing; return the files.

    Raises:
        ConfigurationError: the folder is not empty or cannot be written.
    """
    from percolator_core.observers.schema import write_schemas

    name = folder.resolve().name or "project"
    package = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "project"
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigurationError(
                f"{folder} is not empty: name a new folder, so that none of your files is overwritten."
            )
        written = []
        for path, text in _templates():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(Template(text).substitute(name=name, package=package), encoding="utf-8")
            written.append(target)
        return sorted([*written, *write_schemas(folder / "schemas")])
    except OSError as error:
        raise ConfigurationError(
            f"{folder} cannot be written ({error.strerror}): name another folder."
        ) from None


def _templates() -> Iterator[tuple[PurePosixPath, str]]:
    def walk(folder: Traversable, path: PurePosixPath) -> Iterator[tuple[PurePosixPath, str]]:
        for entry in folder.iterdir():
            if entry.is_dir():
                yield from walk(entry, path / entry.name)
            elif entry.name.endswith(_SUFFIX):
                name = entry.name.removesuffix(_SUFFIX)
                # A template with the name .gitignore would apply to this repository.
                yield path / (".gitignore" if name == "gitignore" else name), entry.read_text("utf-8")

    yield from walk(resources.files("percolator_core.cli") / "templates" / "project", PurePosixPath())
