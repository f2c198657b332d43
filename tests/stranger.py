"""Environments of somebody who has installed the library and has never seen its repository.

In the environment of the tests the library is installed in place, which puts the repository on the path of
every process: the repository has a package ``observers``, and every project has one. Here the library is
copied as its wheel has it, and nothing of the repository can be imported.
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]

PROGRAM = """\
#!{python}
import sys
from {module} import main

sys.exit(main())
"""
PROGRAMS = {"percolator": "percolator_core.cli", "airflow": "airflow.__main__"}


@dataclass(frozen=True)
class Stranger:
    """A virtual environment with the library, in ``folder``."""

    folder: Path

    @property
    def bin(self) -> Path:
        """The folder with ``python``, ``percolator`` and ``airflow``."""
        return self.folder / "bin"

    @property
    def python(self) -> str:
        return str(self.bin / "python")

    @property
    def airflow(self) -> Path:
        return self.bin / "airflow"

    def environment(self, **variables: str) -> dict[str, str]:
        """That of this process, without its ways to the repository and its settings of the library."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PERCOLATOR", "AIRFLOW", "PYTHONPATH", "VIRTUAL_ENV", "PYSPARK"))
        }
        path = f"{self.bin}{os.pathsep}{inherited.get('PATH', os.defpath)}"
        return inherited | {"PATH": path, "COLUMNS": "200"} | variables

    def run(self, folder: Path, *command: str, timeout: float = 150) -> subprocess.CompletedProcess[str]:
        """Run a command in ``folder``; the first word may be one of `PROGRAMS`, or ``python``."""
        program, *arguments = command
        if (self.bin / program).exists():
            program = str(self.bin / program)
        return subprocess.run(
            [program, *arguments],
            cwd=folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


def stranger_in(folder: Path) -> Stranger:
    """Make the environment, which takes about two seconds: packages of others are those of the tests."""
    venv.create(folder, with_pip=False, symlinks=True)
    made = Stranger(folder)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for package in wheel["packages"]:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, site / Path(package).name, ignore=ignored)
        # As pip does: else each process would compile it anew where PYTHONDONTWRITEBYTECODE is set.
        compileall.compile_dir(site / Path(package).name, quiet=1)
    # Plain entries of sys.path: the .pth file there, of the installation in place, is not followed.
    others = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "others.pth").write_text("".join(f"{path}\n" for path in others))
    for name, module in PROGRAMS.items():
        program = made.bin / name
        program.write_text(PROGRAM.format(python=made.python, module=module))
        program.chmod(0o755)
    found = subprocess.run(
        [made.python, "-c", "import percolator_core, importlib.util as u; print(u.find_spec('observers'))"],
        cwd=folder,
        env=made.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == "None\n", found.stdout + found.stderr
    assert sys.prefix != str(folder)
    return made


def installed_in(folder: Path) -> Stranger:
    """Install the built wheel in a new environment, with its base dependencies and no other package.

    The dependencies are those of the tests: links to their files take the place of a package index.
    """
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    made = Stranger(folder / "env")
    venv.create(made.folder, with_pip=False, symlinks=True)
    install = [sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-cache", "--no-deps"]
    subprocess.run([*install, "--python", made.python, str(wheel)], check=True, capture_output=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(made.folder), "platbase": str(made.folder)}))
    (library,) = metadata.distributions(path=[str(site)])
    wanted = _requirements(library, "")
    linked: set[tuple[str, str]] = set()
    while wanted:
        name, extra = wanted.pop()
        if (name, extra) in linked:
            continue
        linked.add((name, extra))
        found = metadata.distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(str(found.locate_file(top)))
        wanted |= _requirements(found, extra)
    return made


def _requirements(distribution: metadata.Distribution, extra: str) -> set[tuple[str, str]]:
    """Return the required packages, each once without and once for each extra of it."""
    found = [Requirement(line) for line in distribution.requires or ()]
    needed = [one for one in found if one.marker is None or one.marker.evaluate({"extra": extra})]
    return {(one.name, extra) for one in needed for extra in ("", *one.extras)}
