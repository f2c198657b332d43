"""One process runs the code of several projects, one after another, and none meets the modules of another."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from percolator_core.errors import ConfigurationError
from percolator_core.observers import Chain
from percolator_core.observers.project_modules import in_project, modules_of, take_out
from percolator_core.spark import project as spark_project
from percolator_core.spark.project import Project
from tests.servers.plain import PATIENCE
from tests.stranger import ROOT, stranger_in

TOP = "pmod"
"""The package that all these projects have."""

LAYOUTS = {
    "without __init__.py": (),
    "with __init__.py": (TOP, f"{TOP}/words", f"{TOP}/words/deep"),
    "with __init__.py above only": (TOP,),
    "with __init__.py below only": (f"{TOP}/words/deep",),
}

CHAIN = "version: 1\nchain: words\ntables: {documents: {}, counts: {}}\n"
OBSERVER = f"""\
version: 1
observer: count
observe: documents.text
function: {TOP}.words.count:process
writes: [counts.words]
"""
COUNT = f"""\
from {TOP}.words.deep import lengths
from .deep.lengths import NAME


def process(t, cell):
    from .late import told

    return told(lengths.NAME)
"""


def project_in(folder: Path, packages: tuple[str, ...] = (), name: str = "") -> Path:
    """A project whose function returns its name."""
    words = folder / TOP / "words"
    (words / "deep").mkdir(parents=True)
    for path, text in {
        "chain.yaml": CHAIN,
        "count.yaml": OBSERVER,
        "count.py": COUNT,
        "late.py": "def told(name):\n    return name\n",
        "deep/lengths.py": f"NAME = {name or folder.name!r}\n",
    }.items():
        (words / path).write_text(text)
    for package in packages:
        (folder / package / "__init__.py").touch()
    return folder


def name_of(project: Path) -> object:
    """The name that the code of the project returns, imported as a task of Airflow imports it."""
    with in_project(project):
        return Chain.load(project / TOP / "words").observers["count"].function(None, None)


def loaded() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.split(".")[0] == TOP}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(spark_project, "_ENTERED", [])
    yield
    left = loaded()
    for name in left:
        del sys.modules[name]


@pytest.fixture(params=list(LAYOUTS.values()), ids=list(LAYOUTS))
def packages(request: pytest.FixtureRequest) -> tuple[str, ...]:
    found: tuple[str, ...] = request.param
    return found


def test_all_is_as_before(tmp_path: Path, packages: tuple[str, ...]) -> None:
    project = project_in(tmp_path / "one", packages)
    before = (dict(sys.modules), list(sys.path), Path.cwd())
    assert name_of(project) == "one"
    assert loaded() == {}
    assert set(before[0]) <= set(sys.modules)
    assert (list(sys.path), Path.cwd()) == before[1:]


def test_the_next_project_has_its_own_modules(tmp_path: Path, packages: tuple[str, ...]) -> None:
    one = project_in(tmp_path / "one", packages)
    for number, layout in enumerate(LAYOUTS.values()):
        two = project_in(tmp_path / f"two{number}", layout)
        assert [name_of(each) for each in (one, two, one)] == ["one", two.name, "one"]


def test_a_project_within_a_project(tmp_path: Path, packages: tuple[str, ...]) -> None:
    outer, inner = project_in(tmp_path / "outer", packages), project_in(tmp_path / "inner")
    with in_project(outer):
        function = Chain.load(outer / TOP / "words").observers["count"].function
        assert name_of(inner) == "inner"
        assert Path.cwd() == outer
        assert function(None, None) == "outer"  # it imports, too
        assert sys.modules[f"{TOP}.words.late"].__file__ == str(outer / TOP / "words" / "late.py")
    assert loaded() == {}


def test_what_was_imported_before_from_elsewhere_is_there_again(
    tmp_path: Path, packages: tuple[str, ...]
) -> None:
    other = project_in(tmp_path / "other", packages)
    sys.path.append(str(other))
    before = importlib.import_module(f"{TOP}.words.count")
    known = loaded()
    with_init = project_in(tmp_path / "mine", LAYOUTS["with __init__.py"])
    assert name_of(with_init) == "mine"
    assert loaded() == known
    assert importlib.import_module(f"{TOP}.words.count") is before
    assert sys.modules[f"{TOP}.words"].count is before
    assert before.process(None, None) == "other"


def test_what_was_imported_before_from_the_project_is_used_and_stays(
    tmp_path: Path, packages: tuple[str, ...]
) -> None:
    project = project_in(tmp_path / "mine", packages)
    sys.path.insert(0, str(project))
    before = importlib.import_module(f"{TOP}.words.deep.lengths")
    with in_project(project):
        chain = Chain.load(project / TOP / "words")
        assert sys.modules[f"{TOP}.words.count"].lengths is before
        assert chain.observers["count"].function(None, None) == "mine"
    assert set(loaded()) == {TOP, f"{TOP}.words", f"{TOP}.words.deep", f"{TOP}.words.deep.lengths"}
    assert not hasattr(sys.modules[f"{TOP}.words"], "count")


def test_a_part_of_the_package_elsewhere_stays(tmp_path: Path) -> None:
    """As with an application that is installed in place: both have a folder ``observers``."""
    (tmp_path / "installed" / TOP / "web").mkdir(parents=True)
    (tmp_path / "installed" / TOP / "web" / "page.py").touch()
    sys.path.append(str(tmp_path / "installed"))
    project = project_in(tmp_path / "mine")
    for _ in range(2):
        with in_project(project):
            page = importlib.import_module(f"{TOP}.web.page")
            assert Chain.load(project / TOP / "words").observers["count"].function(None, None) == "mine"
        assert set(loaded()) == {TOP, f"{TOP}.web", f"{TOP}.web.page"}
        assert list(sys.modules[TOP].__path__) == [str(tmp_path / "installed" / TOP)]
        assert not hasattr(sys.modules[TOP], "words")
        assert importlib.import_module(f"{TOP}.web.page") is page


@pytest.mark.parametrize("on_path", [False, True], ids=["not on the path", "on the path"])
def test_a_project_behind_a_link(tmp_path: Path, packages: tuple[str, ...], on_path: bool) -> None:
    project_in(tmp_path / "real", packages, "behind a link")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    if on_path:  # modules are then known by the one name or by the other
        sys.path.insert(0, str(tmp_path / "link"))
    assert name_of(tmp_path / "link") == "behind a link"
    assert loaded() == {}


def test_an_error_of_the_block_comes_out_and_all_is_as_before(
    tmp_path: Path, packages: tuple[str, ...]
) -> None:
    project = project_in(tmp_path / "one", packages)
    paths, here = list(sys.path), Path.cwd()
    late = project / TOP / "words" / "late.py"
    late.write_text("raise LookupError('mine')\n")
    with pytest.raises(LookupError, match="mine"):
        name_of(project)
    late.with_name("count.py").write_text("raise OSError('broken')\n")
    with pytest.raises(ConfigurationError, match=r"importing .* failed: OSError: broken"):
        name_of(project)
    with pytest.raises(FileNotFoundError):
        name_of(tmp_path / "nowhere")
    assert (loaded(), list(sys.path), Path.cwd()) == ({}, paths, here)
    assert name_of(project_in(tmp_path / "two")) == "two"


def test_what_the_project_puts_on_the_path_is_gone_with_it(tmp_path: Path) -> None:
    names = []
    for name in ("one", "two"):
        project = project_in(tmp_path / name)
        (project / "lib").mkdir()
        (project / "lib" / f"{TOP}_beside.py").write_text(f"NAME = {name!r}\n")
        with in_project(project):
            sys.path.append(str(project / "lib"))
            names.append(importlib.import_module(f"{TOP}_beside").NAME)
        assert f"{TOP}_beside" not in sys.modules
    assert names == ["one", "two"]


def test_what_is_installed_below_the_project_stays(tmp_path: Path) -> None:
    project = project_in(tmp_path / "one")
    site = project / ".venv" / "lib" / "site-packages"
    site.mkdir(parents=True)
    (site / f"{TOP}_installed.py").touch()
    sys.path.append(str(site))
    try:
        with in_project(project):
            module = importlib.import_module(f"{TOP}_installed")
        assert sys.modules[f"{TOP}_installed"] is module
        # Nor is it removed when the folder of what is installed is taken for a project's.
        with in_project(site):
            assert importlib.import_module(f"{TOP}_installed") is module
    finally:
        sys.modules.pop(f"{TOP}_installed", None)


def test_the_library_and_the_standard_library_are_no_projects(tmp_path: Path) -> None:
    project = project_in(tmp_path / "one")
    (project / "queue.py").touch()
    (project / "percolator_core").mkdir()
    (project / "percolator_core" / "__init__.py").touch()
    known = (sys.modules["queue"], sys.modules["percolator_core"])
    with in_project(project):
        assert (sys.modules["queue"], sys.modules["percolator_core"]) == known
    assert not [name for name in modules_of([str(ROOT)]) if name.startswith("percolator_core")]


def test_what_stands_in_the_list_of_modules_may_be_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lazy:
        def __getattr__(self, name: str) -> object:
            raise ImportError(name)

    orphan = ModuleType(f"{TOP}.gone.below")
    orphan.__path__ = FromAbove()
    monkeypatch.setitem(sys.modules, f"{TOP}_none", None)
    monkeypatch.setitem(sys.modules, f"{TOP}_lazy", Lazy())
    monkeypatch.setitem(sys.modules, f"{TOP}.gone.below", orphan)
    monkeypatch.setattr(sys, "path", [*sys.path, Path("nowhere")])
    assert name_of(project_in(tmp_path / "one")) == "one"


class FromAbove(list[str]):
    """As the path of a package without ``__init__.py`` whose package above is gone."""

    def __iter__(self) -> Iterator[str]:
        raise KeyError(f"{TOP}.gone")


def test_threads_have_a_project_one_after_another(tmp_path: Path, packages: tuple[str, ...]) -> None:
    projects = [project_in(tmp_path / f"p{number}", packages) for number in range(4)]
    together = threading.Barrier(len(projects))
    stop = threading.Event()

    def import_all_the_time() -> None:
        for number in range(100_000):
            if stop.is_set():
                return
            sys.modules[f"{TOP}_{number}"] = ModuleType(f"{TOP}_{number}")
            del sys.modules[f"{TOP}_{number}"]

    def names(project: Path) -> list[object]:
        together.wait(PATIENCE)
        return [name_of(project) for _ in range(10)]

    other = threading.Thread(target=import_all_the_time)
    other.start()
    try:
        with ThreadPoolExecutor(len(projects)) as pool:
            found = list(pool.map(names, projects))
    finally:
        stop.set()
        other.join()
    assert found == [[project.name] * 10 for project in projects]
    assert loaded() == {}


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_that_is_forked_within_a_project_of_another_thread(tmp_path: Path) -> None:
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with in_project(tmp_path):
            inside.set()
            leave.wait(PATIENCE)

    thread = threading.Thread(target=stay)
    thread.start()
    assert inside.wait(PATIENCE)
    project = project_in(tmp_path / "one")
    pid = os.fork()
    if pid == 0:  # no assertion: it must not go on as a second pytest
        os._exit(0 if name_of(project) == "one" else 1)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_python_process_of_spark_goes_from_one_project_to_the_next(
    tmp_path: Path, packages: tuple[str, ...]
) -> None:
    sent = {}
    for name in ("one", "two"):
        project = project_in(tmp_path / name, packages)
        sent[name] = Project(str(project), str(project / TOP / "words"), (TOP,), f"digest of {name}")
    other = project_in(tmp_path / "other", LAYOUTS["with __init__.py"])
    sys.path.append(str(other))
    importlib.import_module(f"{TOP}.words.count")
    if TOP not in packages:  # its package would be found first
        sys.path.remove(str(other))
    for name in ("one", "two", "two", "one"):
        chain = Chain.load(sent[name].enter())
        assert chain.observers["count"].function(None, None) == name
        assert next(Path(path).name for path in sys.path if Path(path).parent == tmp_path) == name
    # The same project after a change of its code.
    (tmp_path / "one" / TOP / "words" / "deep" / "lengths.py").write_text("NAME = 'another'\n")
    chain = Chain.load(replace(sent["one"], digest="another").enter())
    assert chain.observers["count"].function(None, None) == "another"


def test_modules_are_taken_out_of_the_package_that_stays(tmp_path: Path) -> None:
    sys.path.insert(0, str(project_in(tmp_path / "one")))
    late = importlib.import_module(f"{TOP}.words.late")
    assert take_out([f"{TOP}.words.late", f"{TOP}.words.nothing"]) == {f"{TOP}.words.late": late}
    assert not hasattr(sys.modules[f"{TOP}.words"], "late")


def test_a_stranger_has_no_observers_but_his_own(tmp_path: Path) -> None:
    """In the environment of these tests the repository's own ``observers`` hides such faults."""
    folder = tmp_path / "project"
    for name, text in {
        "chain.yaml": CHAIN,
        "count.yaml": OBSERVER.replace(TOP, "observers"),
        "count.py": "def process(t, cell): pass\n",
    }.items():
        (folder / "observers" / "words" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "observers" / "words" / name).write_text(text)
    program = (
        "import sys\nfrom percolator_airflow.chains import ChainFolder\n"
        "with ChainFolder.of('observers/words').imported() as chain: print(*chain.observers)\n"
        "print([name for name in sys.modules if name.startswith('observers')])"
    )
    stranger = stranger_in(tmp_path / "env")
    for arguments in (("-c", program), ("-P", "-c", program)):
        done = stranger.run(folder, "python", *arguments)
        assert (done.stdout, done.stderr) == ("count\n[]\n", "")
