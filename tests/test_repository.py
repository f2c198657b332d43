"""No registry host or machine path is named, and the lock covers pyproject.toml."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A bracket round one letter keeps each pattern from matching its own text.
REGISTRY_HOSTS = r"py[p]i\.org|pythonh[o]sted|deb\.debia[n]|security\.debia[n]|npm[j]s"
MACHINE_PATHS = r"/wor[k]/[a-z.]|/tm[p]/w/|/far[m]/|/hom[e]/[a-z]+/|/User[s]/[a-z]+/|/roo[t]/"
HASH_LINE = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")
PIN_LINE = re.compile(r"([a-z0-9-]+)==[^ ]+( ; [^\\]+)? \\")


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in the repository; skip the test where there is no git checkout."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "-c", f"safe.directory={ROOT}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def named_dependencies() -> set[str]:
    """Return the canonical names of all that pyproject.toml asks for and the lock must hold."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = pyproject["project"]
    requirements = [*project["dependencies"], *pyproject["build-system"]["requires"]]
    for names in project["optional-dependencies"].values():
        requirements.extend(names)
    matches = (re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in requirements)
    return {canonical(match.group()) for match in matches if match}


def lock_lines() -> list[str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("pattern", [REGISTRY_HOSTS, MACHINE_PATHS], ids=["registry-hosts", "machine-paths"])
def test_no_tracked_file_names(pattern: str) -> None:
    found = git("grep", "-n", "-I", "-i", "-E", pattern, "--", ".")
    assert found.returncode == 1, found.stdout + found.stderr


def test_no_build_result_or_state_is_tracked() -> None:
    tracked = git("ls-files", "--cached", "--ignored", "--exclude-standard")
    assert tracked.returncode == 0, tracked.stderr
    assert tracked.stdout == ""


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (REGISTRY_HOSTS, "https://PyP" + "I.org/simple"),
        (REGISTRY_HOSTS, "https://files.python" + "hosted.org/x"),
        (REGISTRY_HOSTS, "http://deb." + "debian.org/debian"),
        (REGISTRY_HOSTS, "https://registry.npm" + "js.org"),
        (MACHINE_PATHS, "/wo" + "rk/main/x"),
        (MACHINE_PATHS, "/tm" + "p/w/venv"),
        (MACHINE_PATHS, "/ro" + "ot/.cache"),
    ],
)
def test_patterns_find_what_they_are_for(pattern: str, text: str) -> None:
    assert re.search(pattern, text, re.IGNORECASE)


def test_lock_pins_every_named_dependency() -> None:
    pinned = {match.group(1) for line in lock_lines() if (match := PIN_LINE.fullmatch(line))}
    assert named_dependencies() - pinned == set()


def test_lock_holds_only_pins_and_hashes() -> None:
    strange = [
        line for line in lock_lines() if not PIN_LINE.fullmatch(line) and not HASH_LINE.fullmatch(line)
    ]
    assert strange == []


def test_lock_hashes_every_pin() -> None:
    lines = lock_lines()
    after = [lines[index + 1 : index + 2] for index, line in enumerate(lines) if PIN_LINE.fullmatch(line)]
    assert all(following and HASH_LINE.fullmatch(following[0]) for following in after)


def test_the_guide_and_the_architecture_show_the_pictures_of_the_layers() -> None:
    """tests/test_tools.py compares the pictures with the layers that are checked."""
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    assert "](docs/assets/architecture.svg)" in guide
    assert "](docs/assets/architecture-airflow.svg)" in guide
    assert "](../assets/architecture.svg)" in (ROOT / "docs/explanation/architecture.md").read_text()
