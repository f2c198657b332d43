"""Every bad input gives one line: the file, the line, the field, what is wrong, and the mend."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.observers.conftest import Project

HEAD = "version: 1\nobserver: parse\nfunction: steps:process\n"
GOOD = HEAD + "observe: documents.contents\n"

OBSERVERS = {
    "syntax": (
        "version: 1\nobserver: [parse\n",
        (
            "parse.yaml:3: not valid YAML at column 1: expected ',' or ']', but got '<stream end>'; "
            "fix the indentation, or quote the value"
        ),
    ),
    "tab": (
        "version: 1\n\tobserver: parse\n",
        (
            "parse.yaml:2: not valid YAML at column 1: found character '\\t' that cannot start any token; "
            "indent with blanks, not tabs"
        ),
    ),
    "two documents": (
        GOOD + "---\n" + GOOD,
        (
            "parse.yaml:5: not valid YAML at column 1: but found another document; keep one declaration "
            "in a file"
        ),
    ),
    "empty": ("", "parse.yaml: the file is empty; start it with 'version: 1', or remove it"),
    "comment only": ("# soon\n", "parse.yaml: the file is empty; start it with 'version: 1', or remove it"),
    "list": (
        "- a\n",
        "parse.yaml:1: expected 'key: value' lines, not a list; start with 'version: 1'",
    ),
    "not utf-8": (
        b"version: 1\nobserver: caf\xe9\n",
        "parse.yaml:2: byte 0xe9 is not UTF-8; save the file as UTF-8",
    ),
    "date that is none": (
        GOOD + "description: 2020-13-45\n",
        "parse.yaml: a value cannot be read: month must be in 1..12; put it in quotes",
    ),
    "too deep": (
        "a: " + "[" * 5000 + "]" * 5000,
        "parse.yaml: is nested too deeply; a declaration needs three levels",
    ),
    "key twice": (
        GOOD + "observe: links.out\n",
        "parse.yaml:5: observe: is given twice, first in line 4; remove one of the two",
    ),
    "merges of merges without end": (
        "x:\n  m0: &m0 {a: 1}\n"
        + "".join(f"  m{n}: &m{n}\n    <<: [{', '.join([f'*m{n - 1}'] * 10)}]\n" for n in range(1, 12)),
        "parse.yaml: its '<<' copy more than 100,000 lines; write fewer of them",
    ),
    "nested key twice on a line": (
        GOOD + "retry: {attempts: 2, attempts: 3}\n",
        "parse.yaml:5: attempts: is given twice, first in line 5; remove one of the two",
    ),
    "misspelt key": (
        HEAD + "obsrve: documents.contents\nobserve: documents.contents\n",
        (
            "parse.yaml:4: obsrve: is not a known key; the known keys are version, observer, "
            "description, observe, "
            "mode, function, reads, writes, retry, timeout, settle, feedback, order, executor, revision"
        ),
    ),
    "an order for a strong observer": (
        GOOD + "order: most_notified\n",
        "parse.yaml: order: most_notified needs mode: weak and executor: hub",
    ),
    "misspelt nested key": (
        GOOD + "retry:\n  atempts: 3\n",
        "parse.yaml:6: retry.atempts: is not a known key; did you mean 'attempts'?",
    ),
    "misspelt key that is needed": (
        HEAD + "obsrve: documents.contents\n",
        "parse.yaml:4: obsrve: is not a known key; did you mean 'observe'?",
    ),
    "missing key": (
        HEAD,
        "parse.yaml: observe: is missing; add 'observe: documents.contents'",
    ),
    "version 2": (
        GOOD.replace("version: 1", "version: 2"),
        "parse.yaml:1: version: expected 1, not a number (2); this release reads 'version: 1'",
    ),
    "version text": (
        GOOD.replace("version: 1", "version: '1'"),
        "parse.yaml:1: version: expected 1, not the text '1'; this release reads 'version: 1'",
    ),
    "version true": (
        GOOD.replace("version: 1", "version: true"),
        "parse.yaml:1: version: expected 1, not a truth value (true); this release reads 'version: 1'",
    ),
    "name": (
        GOOD.replace("observer: parse", "observer: Parse-It"),
        (
            "parse.yaml:2: observer: 'Parse-It' is not a name; use a lower-case letter, "
            "then up to 62 of a-z, 0-9 and _"
        ),
    ),
    "name that YAML reads as a truth value": (
        GOOD.replace("observer: parse", "observer: on"),
        "parse.yaml:2: observer: expected text, not a truth value (true); put it in quotes",
    ),
    "misspelt mode": (
        GOOD + "mode: stong\n",
        "parse.yaml:5: mode: 'stong' is not known; did you mean 'strong'?",
    ),
    "unlike any executor": (
        GOOD + "executor: 7\n",
        "parse.yaml:5: executor: a number (7) is not known; write hub, threads or processes",
    ),
    "wrong type": (
        GOOD + "retry: {attempts: many}\n",
        "parse.yaml:5: retry.attempts: expected a whole number, not the text 'many'",
    ),
    "number in quotes": (
        GOOD + "retry: {attempts: '8'}\n",
        "parse.yaml:5: retry.attempts: expected a whole number, not the text '8'; remove the quotes",
    ),
    "feedback text": (
        GOOD + "feedback: sometimes\n",
        "parse.yaml:5: feedback: expected true or false, not the text 'sometimes'",
    ),
    "retry nothing": (
        GOOD + "retry:\n",
        "parse.yaml:5: retry: expected a mapping, not nothing; write {} for the defaults",
    ),
    "attempts out of range": (
        GOOD + "retry: {attempts: 101}\n",
        "parse.yaml:5: retry.attempts: 101 is out of range; write a number from 1 to 100",
    ),
    "revision below the first": (
        GOOD + "revision: 0\n",
        "parse.yaml:5: revision: 0 is out of range; write a number from 1 to 4294967295",
    ),
    "revision text": (
        GOOD + "revision: '2'\n",
        "parse.yaml:5: revision: expected a whole number, not the text '2'; remove the quotes",
    ),
    "duration without a unit": (
        GOOD + "timeout: 60\n",
        (
            "parse.yaml:5: timeout: expected a duration such as 50ms, 10s, 2m or 1h, not a number (60); "
            "did you mean '60s'?"
        ),
    ),
    "duration with a wrong unit": (
        GOOD + "timeout: 1 day\n",
        "parse.yaml:5: timeout: '1 day' is not a duration; write a number and a unit: 50ms, 10s, 2m or 1h",
    ),
    "duration of nothing": (
        GOOD + "timeout: 0s\n",
        "parse.yaml:5: timeout: '0s' is out of range; write a duration from 1ms to 24h",
    ),
    "backoff above its maximum": (
        GOOD + "retry: {backoff: 30s}\n",
        "parse.yaml:5: retry: backoff (30s) is longer than max_backoff (10s); raise max_backoff",
    ),
    "unknown table": (
        HEAD + "observe: docments.contents\n",
        "parse.yaml:4: observe: table 'docments' is not declared in chain.yaml; did you mean 'documents'?",
    ),
    "unknown table unlike any": (
        HEAD + "observe: xyz.contents\n",
        (
            "parse.yaml:4: observe: table 'xyz' is not declared in chain.yaml; declare it under 'tables' "
            "in chain.yaml"
        ),
    ),
    "unknown table in a list": (
        GOOD + "writes:\n  - links.anchor\n  - link.anchor\n",
        "parse.yaml:7: writes[1]: table 'link' is not declared in chain.yaml; did you mean 'links'?",
    ),
    "unknown table of all columns": (
        GOOD + "writes: [link.*]\n",
        "parse.yaml:5: writes[0]: table 'link' is not declared in chain.yaml; did you mean 'links'?",
    ),
    "no column": (
        HEAD + "observe: documents.\n",
        (
            "parse.yaml:4: observe: 'documents.' names no column; write table.column, such as "
            "documents.contents"
        ),
    ),
    "a whole table beside a column": (
        HEAD + "observe: [documents, documents.contents]\n",
        (
            "parse.yaml:4: observe: 'documents' is a whole table, the others are columns; their functions "
            "get different arguments, so write two observers"
        ),
    ),
    "a weak observer of a whole table": (
        HEAD + "observe: documents\nmode: weak\n",
        (
            "parse.yaml: a weak observer watches notify-only columns, not the whole row; name one, such as "
            "documents.dirty, or write mode: strong"
        ),
    ),
    "an unknown table": (
        HEAD + "observe: documnets\n",
        "parse.yaml:4: observe: table 'documnets' is not declared in chain.yaml; did you mean 'documents'?",
    ),
    "nothing observed": (
        HEAD + "observe: []\n",
        (
            "parse.yaml:4: observe: names no column; write the table or the table.column that wakes this "
            "observer"
        ),
    ),
    "column observed twice": (
        HEAD + "observe: [documents.a, documents.a]\n",
        "parse.yaml:4: observe: 'documents.a' is named twice; remove one of the two",
    ),
    "observe a mapping": (
        HEAD + "observe: {documents: contents}\n",
        "parse.yaml:4: observe: expected table.column or a list of them, not a mapping",
    ),
    "observe a number": (
        HEAD + "observe: [1.5]\n",
        (
            "parse.yaml:4: observe[0]: expected table.column, not a number (1.5); put it in quotes if "
            "YAML misreads it"
        ),
    ),
    "line break in a name": (
        HEAD + 'observe: "documents.a\\nb"\n',
        (
            "parse.yaml:4: observe: 'a\\nb' is not a name; use printable characters, with no blank at "
            "either end"
        ),
    ),
    "weak on an ordinary column with a long name": (
        HEAD + f"observe: documents.{'x' * 65_536}\nmode: weak\n",
        (
            f"parse.yaml:4: observe: a weak observer watches notify-only columns, and documents.{'x' * 199}… "
            f"is an ordinary one; add '{'x' * 59}…' to notify_only of 'documents' in chain.yaml, or write "
            "mode: strong"
        ),
    ),
    "a column's name that is too long": (
        HEAD + f"observe: documents.{'x' * 65_537}\n",
        "parse.yaml:4: observe: a column name has 1 to 65536 bytes, this one has 65537; shorten it",
    ),
    "a table's name that is too long": (
        HEAD + f"observe: {'x' * 201}.contents\n",
        "parse.yaml:4: observe: a table name has 1 to 200 bytes, this one has 201; shorten it",
    ),
    "weak on an ordinary column": (
        HEAD + "observe: documents.contents\nmode: weak\n",
        (
            "parse.yaml:4: observe: a weak observer watches notify-only columns, and documents.contents "
            "is an ordinary "
            "one; add 'contents' to notify_only of 'documents' in chain.yaml, or write mode: strong"
        ),
    ),
    "weak on a misspelt column": (
        HEAD + "observe: clusters.drity\nmode: weak\n",
        (
            "parse.yaml:4: observe: a weak observer watches notify-only columns, and clusters.drity is "
            "an ordinary one; "
            "did you mean 'clusters.dirty'?"
        ),
    ),
    "strong on a notify-only column": (
        HEAD + "observe: [documents.contents, clusters.dirty]\n",
        (
            "parse.yaml:4: observe[1]: clusters.dirty is notify-only and wakes only weak observers; "
            "write mode: weak"
        ),
    ),
    "function without a colon": (
        GOOD.replace("steps:process", "steps.process"),
        (
            "parse.yaml:3: function: 'steps.process' is not module:function; write for instance "
            "observers.webindex.parse:process"
        ),
    ),
}

FUNCTIONS = {
    "step:process": "there is no module 'step'; did you mean 'steps'?",
    "steps.parse:process": "there is no module 'steps.parse'; 'steps' is a module, not a package",
    "app.pars:process": "there is no module 'app.pars'; did you mean 'app.parse'?",
    "app.broken:process": "importing 'app.broken' failed: ZeroDivisionError: division by zero; fix "
    "that module",
    "app.syntax:process": "importing 'app.syntax' failed: SyntaxError: '(' was never closed "
    "(syntax.py, line 1); "
    "fix that module",
    "app.needs:process": "importing 'app.needs' failed: there is no module 'nowhere_to_be_found'; install "
    "it, or, if it belongs to the project, run the command in the project's top folder: the current "
    "directory is {here}",
    "app.exits:process": "importing 'app.exits' failed: SystemExit: 3; fix that module",
    "steps:proces": "module 'steps' has no 'proces'; did you mean 'process'?",
    "steps:xyz": "module 'steps' has no 'xyz'; define it as 'def process(t, cell)', or fix the name",
    "steps:LIMIT": "'steps:LIMIT' is of type int, not a function; name a 'def process(t, cell)'",
    "steps:Thing": "'steps:Thing' is a class; name a function, 'def process(t, cell)'",
    "steps:three": "'steps:three' takes (t, cell, more); it is called with a transaction and a cell: "
    "write 'def three(t, cell)'",
    "steps:later": "'steps:later' is asynchronous; observers are plain functions, write 'def', "
    "not 'async def'",
    "steps:lazy": "'steps:lazy' is a generator and would not run; remove its 'yield'",
}

CHAINS = {
    "misspelt key": (
        "version: 1\nchain: web\ntabels: {}\ntables: {documents: {tablet: 3}}\n",
        (
            "chain.yaml:3: tabels: is not a known key; the known keys are version, chain, schemas, "
            "tables, observers, views, trace, airflow\n"
            "chain.yaml:4: tables.documents.tablet: is not a known key; did you mean 'tablets'?"
        ),
    ),
    "chain's name": (
        "version: 1\nchain: 1web\ntables: {documents: {}}\n",
        (
            "chain.yaml:2: chain: '1web' is not a name; use a lower-case letter, then up to 62 of a-z, "
            "0-9 and _"
        ),
    ),
    "too many tablets": (
        "version: 1\nchain: web\ntables:\n  documents: {tablets: 5000}\n",
        "chain.yaml:4: tables.documents.tablets: 5000 is out of range; write a number from 1 to 4096",
    ),
    "no tables": (
        "version: 1\nchain: web\ntables: {}\n",
        (
            "chain.yaml:3: tables: is empty; declare at least one, such as 'tables: {documents: "
            "{tablets: 16}}'"
        ),
    ),
    "table without settings": (
        "version: 1\nchain: web\ntables:\n  documents:\n",
        "chain.yaml:4: tables.documents: expected a mapping, not nothing; write {} for the defaults",
    ),
    "table that is a number": (
        "version: 1\nchain: web\ntables:\n  12: {}\n",
        "chain.yaml:4: tables[12]: expected text, not a number (12); put it in quotes",
    ),
    "table with a dot": (
        "version: 1\nchain: web\ntables:\n  web.pages: {}\n",
        (
            "chain.yaml:4: tables.web.pages: 'web.pages' has a dot, and table.column is split at the "
            "first dot, "
            "so no observer could name it; rename it, for instance to 'web_pages'"
        ),
    ),
    "notify-only column twice": (
        "version: 1\nchain: web\ntables:\n  documents: {notify_only: [a, b, a]}\n",
        "chain.yaml:4: tables.documents.notify_only: 'a' is named twice; remove one of the two",
    ),
    "notify-only column alone": (
        "version: 1\nchain: web\ntables:\n  documents: {notify_only: dirty}\n",
        (
            "chain.yaml:4: tables.documents.notify_only: expected a list of column names, not the text "
            "'dirty'; "
            "write [dirty]"
        ),
    ),
}


@pytest.mark.parametrize(("text", "expected"), OBSERVERS.values(), ids=OBSERVERS)
def test_a_bad_observer_is_one_line(project: Project, text: str | bytes, expected: str) -> None:
    project.write("parse.yaml", text)
    assert project.complaint() == expected


@pytest.mark.parametrize(("name", "expected"), FUNCTIONS.items(), ids=FUNCTIONS)
def test_a_function_that_cannot_be_called_is_one_line(project: Project, name: str, expected: str) -> None:
    app = project.top / "app"
    app.mkdir()
    for module, text in {
        "__init__": "",
        "parse": "",
        "broken": "1 / 0",
        "syntax": "(",
        "needs": "import nowhere_to_be_found",
        "exits": "raise SystemExit(3)",
    }.items():
        (app / f"{module}.py").write_text(text)
    project.observer("parse", "observe: documents.contents", function=name)
    assert project.complaint() == f"parse.yaml:3: function: {expected.replace('{here}', str(Path.cwd()))}"


@pytest.mark.parametrize(("text", "expected"), CHAINS.values(), ids=CHAINS)
def test_a_bad_chain_file_gives_one_line_each(project: Project, text: str, expected: str) -> None:
    project.write("chain.yaml", text)
    project.observer("parse", "observe: documents.contents")
    found = [line.removeprefix(f"{project.folder}/") for line in project.complaints()]
    assert found == expected.split("\n")


def test_a_module_unlike_any_other_says_where_it_was_looked_for(project: Project) -> None:
    project.observer("parse", "observe: documents.contents", function="zzzz:process")
    expected = "there is no module 'zzzz'; modules are searched from the current directory, "
    complaint = project.complaint()
    assert complaint.startswith(f"parse.yaml:3: function: {expected}")
    assert complaint.endswith(": run the command in the project's top folder")


@pytest.mark.parametrize("kind", ["package", "module", "imported before"])
def test_a_package_elsewhere_that_hides_the_projects_folder_is_named(
    project: Project, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    """Python takes a package with __init__.py, wherever on its path, before a folder without one."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    other = elsewhere / ("app.py" if kind == "module" else "app/__init__.py")
    other.parent.mkdir(exist_ok=True)
    other.touch()
    sys.path.append(str(elsewhere))
    (project.top / "app" / "deep").mkdir(parents=True)
    (project.top / "app" / "deep" / "steps.py").write_text("def process(t, cell): pass\n")
    project.observer("parse", "observe: documents.contents", function="app.deep.steps:process")
    which = "has no __init__.py: add one, an empty file is enough"
    if kind == "imported before":
        assert importlib.import_module("app").__file__ == str(other)
        (project.top / "app" / "__init__.py").touch()
        which = "did not exist at the time of that import: start a new process"
    said = f"there is no module 'app.deep'; {other} hides the folder {project.top / 'app'}, which {which}"
    assert project.complaint() == f"parse.yaml:3: function: {said}"
    del sys.modules["app"]
    (project.top / "app" / "__init__.py").touch()
    assert set(project.load().observers) == {"parse"}


def test_two_observers_of_one_name(project: Project) -> None:
    project.write("a.yaml", GOOD)
    project.write("b.yml", GOOD)
    expected = "the name 'parse' is taken by observers/web/a.yaml; give one of them another name"
    assert project.complaint() == f"b.yml:2: observer: {expected}"


def test_no_observers(project: Project) -> None:
    expected = "add one file per observer beside chain.yaml, such as observers/web/parse.yaml"
    assert project.complaint() == f"observers/web: has no observers; {expected}"


def test_no_chain_file(project: Project) -> None:
    (project.folder / "chain.yaml").unlink()
    project.write("parse.yaml", GOOD)
    assert project.complaint().startswith(
        "chain.yaml: is missing; it names the chain and its tables: 'version: 1'"
    )


def test_a_chain_file_by_another_suffix(project: Project) -> None:
    (project.folder / "chain.yaml").rename(project.folder / "chain.yml")
    project.write("parse.yaml", GOOD)
    assert project.complaint() == "chain.yml: must be called chain.yaml; rename it"


def test_two_chain_files(project: Project) -> None:
    project.write("chain.yml", "version: 1\n")
    project.write("parse.yaml", GOOD)
    assert project.complaint() == "chain.yml: stands beside chain.yaml; remove one of the two"


def test_a_missing_folder(project: Project) -> None:
    (project.folder / "chain.yaml").unlink()
    project.folder.rmdir()
    assert project.complaint() == "observers/web: there is no such folder; name one that holds chain.yaml"


def test_a_file_in_place_of_the_folder(project: Project) -> None:
    project.folder = project.folder / "chain.yaml"
    expected = (
        "observers/web/chain.yaml: is a file; name the folder that holds chain.yaml, such as observers/web"
    )
    assert project.complaint() == expected


def test_a_file_that_cannot_be_read(project: Project) -> None:
    (project.folder / "parse.yaml").symlink_to("nowhere.yaml")
    expected = "cannot be read: No such file or directory; fix its permissions or remove it"
    assert project.complaint() == f"parse.yaml: {expected}"


def test_everything_wrong_is_reported_at_once(project: Project) -> None:
    project.write("chain.yaml", "version: 2\nchain: web\ntables: {documents: {tablets: 0}}\n")
    project.write("a.yaml", "version: 1\nobserver: 7\nobserve: x.\nfunction: f\ncolour: red\n")
    project.observer("b", "observe: documents.contents", function="steps:nothing")
    found = [":".join(line.split(":")[:3]) for line in project.complaints()]
    assert sorted(found) == [
        "observers/web/a.yaml:2: observer",
        "observers/web/a.yaml:3: observe",
        "observers/web/a.yaml:4: function",
        "observers/web/a.yaml:5: colour",
        "observers/web/b.yaml:3: function",
        "observers/web/chain.yaml:1: version",
        "observers/web/chain.yaml:3: tables.documents.tablets",
    ]


def test_an_alias_bomb_is_refused_in_one_short_line(project: Project) -> None:
    rows = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    project.write("parse.yaml", GOOD + "\n".join(rows) + "\n")
    lines = project.complaints()
    assert len(lines) == 40
    assert max(map(len, lines)) < 300


def test_a_broken_module_is_reported_once(project: Project) -> None:
    """Also if several modules fail because they import it; another error is a line of its own."""
    (project.top / "steps.py").write_text("def process(t, cell): pass\n1 / 0\n")
    (project.top / "app").mkdir()
    for name in ("first", "second"):
        (project.top / "app" / f"{name}.py").write_text("from steps import process\n")
    (project.top / "app" / "other.py").write_text("import no_such_module\n")
    for position, module in enumerate(("app.first", "app.second", "steps", "steps", "app.other")):
        project.observer(f"o{position}", f"observe: documents.c{position}", f"{module}:process")
    first, second = project.complaints()
    assert first == (
        "observers/web/o0.yaml:3: function: importing 'app.first' failed: ZeroDivisionError: division by "
        "zero; fix that module"
    )
    assert second.startswith("observers/web/o4.yaml:3: function: importing 'app.other' failed: there is no ")
