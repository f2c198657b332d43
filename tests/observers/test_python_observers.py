"""Observers that functions declare: found by a chain beside YAML files, with and without its code."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from percolator_core import Chain, ConfigurationError, CyclicChain, PrimaryKey, Table, observer
from percolator_core.crew import Crew
from percolator_core.observers.observer import Retry
from percolator_core.observers.stamps import stamps
from percolator_core.testing import run_until_idle

if TYPE_CHECKING:
    from percolator_core import Cell, Database, ObserverTransaction
    from tests.observers.conftest import Project

CHAIN = """\
version: 1
chain: shop
schemas: app.models
observers: app.watch
tables:
  log: {}
"""
MODELS = """\
from percolator_core import PrimaryKey, Table

class Offer(Table, name="offers"):
    shop: PrimaryKey[str]
    price: float = 0.0
    title: str = ""

class Average(Table, name="averages", notify_only=["again"]):
    shop: PrimaryKey[str]
    price: float = 0.0
"""
WATCH = '''\
"""Observers."""
import percolator_core as percolator
from percolator_core import observer as watches
from .models import Average
from app import models

LOG = ["log.text", "log.at"]

@percolator.observer(models.Offer.price, "offers.title", writes=[Average, "averages.again"], timeout="5s")
def average(t, cell):
    """Keep the averages.

    More.
    """

@watches(
    "averages.again",
    mode="weak",
    name="note",
    reads=Average.price,
    writes=LOG,
    retry={"attempts": 3, "backoff": "1ms"},
)
def write_down(t, cell): pass

def helper(t, cell): pass
'''


@pytest.fixture
def shop(project: Project) -> Project:
    (project.top / "app").mkdir()
    project.write("chain.yaml", CHAIN)
    (project.top / "app" / "models.py").write_text(MODELS)
    watch(project, WATCH)
    return project


def watch(project: Project, text: str) -> None:
    (project.top / "app" / "watch.py").write_text(text)


@pytest.mark.parametrize("code", [True, False], ids=["imported", "not imported"])
def test_decorated_functions_are_observers_like_those_of_yaml_files(shop: Project, code: bool) -> None:
    shop.observer("third", "observe: log.text")
    if not code:
        (shop.top / "app" / "models.py").write_text(f"import no_such_package\n{MODELS}")
    chain = shop.load(import_functions=code)
    assert list(chain.observers) == ["average", "note", "third"]
    average, note = chain.observers["average"], chain.observers["note"]
    assert average.observe == (("offers", "price"), ("offers", "title"))
    assert average.writes == (("averages", "*"), ("averages", "again"))
    assert (average.function_name, average.description) == ("app.watch:average", "Keep the averages.")
    assert (average.file, average.timeout) == (Path("app/watch.py"), 5.0)
    assert note.retry == Retry(3, 0.001, 10.0)
    assert (note.mode, note.function_name) == ("weak", "app.watch:write_down")
    assert (note.reads, note.writes) == ((("averages", "price"),), (("log", "text"), ("log", "at")))
    assert chain.graph.has_edge("average", "averages.again")
    assert [[one.name for one in some] for some in chain.order()] == [["average"], ["note"], ["third"]]
    if code:
        assert average.function is sys.modules["app.watch"].average
    else:
        assert "app.watch" not in sys.modules


def test_one_declaration_is_read_the_same_way_with_and_without_the_code(shop: Project) -> None:
    without = shop.load(import_functions=False)
    chain = shop.load()
    assert without.digest == chain.digest
    module = sys.modules["app.watch"]
    made = Chain.of("shop", [module], models=list(chain.models.values()), tables={"log": {}})
    assert made.digest == chain.digest
    for name, one in chain.observers.items():
        other = made.observers[name]
        for field in ("observe", "reads", "writes", "retry", "timeout", "mode", "description", "function"):
            assert getattr(one, field) == getattr(other, field)
        assert other.file == shop.top / "app" / "watch.py"


BAD = [
    (
        "@observer('offers.price', timout='5s')\ndef it(t, cell): pass",
        "app/watch.py:3: timout: is not a known key; did you mean 'timeout'?",
    ),
    (
        "@observer('offers.price',\n    'offers.prise')\ndef it(t, cell): pass",
        "app/watch.py:4: observe[1]: Offer, table 'offers', has no column 'prise'; did you mean 'price'?",
    ),
    ("@observer()\ndef it(t, cell): pass", "app/watch.py:3: observe: names no column; write"),
    (
        "@observer(1 + 2j)\ndef it(t, cell): pass",
        "app/watch.py:3: observe[0]: expected table.column, not a complex",
    ),
    (
        "@observer('offers' + '.price')\ndef it(t, cell): pass",
        "app/watch.py:3: \"'offers' + '.price'\" cannot be read without running code; write text such as",
    ),
    (
        "@observer('offers.price', **{})\ndef it(t, cell): pass",
        "app/watch.py:3: '**' cannot be read without running code; name each argument",
    ),
    (
        "for n in 'ab':\n    @observer('offers.price', name=n)\n    def it(t, cell): pass",
        "app/watch.py:4: it is declared by code that has to run first; write the decorator above a def",
    ),
    (
        "@observer('offers.price')\ndef it(t): pass",
        "app/watch.py:4: function: 'app.watch:it' takes (t); it is called with a transaction and a cell",
    ),
    (
        "@observer('offers.price')\n@observer('offers.title')\ndef it(t, cell): pass",
        "chain.yaml:4: observers: importing 'app.watch' failed: ConfigurationError: it is declared as an",
    ),
    ("def it(t, cell): pass", "chain.yaml:4: observers: module 'app.watch' has no observer; write"),
    (
        "@observer('offers.price', writes='offers.price')\ndef it(t, cell): pass",
        "app/watch.py:3: writes: the chain is cyclic: it → offers.price → it; break it",
    ),
    (
        "@observer('offers.price', mode='weak')\ndef it(t, cell): pass",
        "app/watch.py:3: observe[0]: a weak observer watches notify-only columns, and offers.price is",
    ),
]


NAMES = (
    *("key", "column", "none", "complex", "sum", "stars"),
    *("loop", "arguments", "twice", "nothing", "cycle", "weak"),
)


@pytest.mark.parametrize(("text", "expected"), BAD, ids=NAMES)
def test_a_problem_is_reported_with_the_file_and_the_line(shop: Project, text: str, expected: str) -> None:
    watch(shop, f"from percolator_core import observer\nfrom app.models import Offer\n{text}\n")
    with pytest.raises(ConfigurationError) as raised:
        shop.load()
    (line,) = str(raised.value).split("\n")
    assert line.removeprefix("observers/web/").startswith(expected)


def test_what_cannot_be_parsed_or_found_is_reported_without_the_code_too(shop: Project) -> None:
    watch(shop, "def broken(:")
    with pytest.raises(ConfigurationError, match=r"app/watch\.py:1: is no Python: "):
        shop.load(import_functions=False)
    shop.write("chain.yaml", CHAIN.replace("app.watch", "app.nowhere"))
    with pytest.raises(ConfigurationError, match=r"there is no module 'app\.nowhere'"):
        shop.load(import_functions=False)
    with pytest.raises(ConfigurationError, match=r"there is no module 'app\.nowhere'"):
        shop.load()


def test_a_function_of_another_module_is_no_observer_of_this_one(shop: Project) -> None:
    (shop.top / "app" / "more.py").write_text(
        "from app.watch import average\n" + WATCH.replace("average(", "b(")
    )
    shop.write("chain.yaml", CHAIN.replace("app.watch", "app.more"))
    assert list(shop.load().observers) == ["b", "note"]
    shop.write("chain.yaml", CHAIN.replace("observers: app.watch", "observers: [app.watch, app.more]"))
    message = "the name 'note' is taken by app/watch.py; give one of them another name"
    assert message in "\n".join(shop.complaints())


def test_a_change_of_the_module_changes_the_stamps(shop: Project) -> None:
    before = stamps(shop.folder)
    assert before == stamps(shop.folder)
    watch(shop, WATCH + "\n")
    os.utime(shop.top / "app" / "watch.py", (1, 1))
    assert stamps(shop.folder) != before


# Without a folder.


class Price(Table, name="prices"):
    item: PrimaryKey[str]
    price: int = 0


class Twice(Table, name="twice"):
    item: PrimaryKey[str]
    price: int = 0


@observer(Price.price, writes=[Twice])
def double(t: ObserverTransaction, cell: Cell) -> None:
    """Double."""
    found = t.find(Price, **Price.key_of(cell.row))
    if found is not None:
        t.upsert(Twice(item=found.item, price=2 * found.price))


def test_a_chain_of_functions_runs(db: Database) -> None:
    chain = Chain.of("doubles", [double], models=[Price, Twice])
    chain.create_tables(db)
    with db.transaction() as t:
        t.insert(Price(item="tea", price=4))
    assert run_until_idle(db, chain).ran == 1
    assert db.snapshot().find(Twice, item="tea") == Twice(item="tea", price=8)
    assert double.__name__ == "double", "the function stays as it is"


def functions(**settings: Any) -> Any:
    @observer("raw.text", **settings)
    def it(t: ObserverTransaction, cell: Cell) -> None: ...

    return it


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (lambda: functions(writes="raw.txt", timeout=5), "timeout: expected a duration such as"),
        (lambda: functions(executor="processes"), "executor: processes load a chain from its folder"),
        (lambda: functions(reads="nowhere.x"), "reads[0]: table 'nowhere' is not declared"),
    ],
)
def test_a_chain_of_functions_reports_problems_with_the_line_of_the_function(made: Any, problem: str) -> None:
    it = made()
    place = f"{__file__}:{it.__code__.co_firstlineno}: "
    with pytest.raises(ConfigurationError) as raised:
        Chain.of("some", [it], tables={"raw": {}})
    assert str(raised.value).startswith(place + problem)


def test_other_mistakes_of_a_chain_of_functions() -> None:
    for arguments, settings, problem in (
        (("Some", [functions()]), {"tables": {"raw": {}}}, "Chain.of: chain: 'Some' is not a name"),
        (("some", [len]), {"tables": {"raw": {}}}, "len is no observer; write '@observer(…)' above"),
        (("some", []), {"tables": {"raw": {}}}, "Chain.of: observers: is empty"),
        (("some", [functions()]), {}, "Chain.of: tables: is missing"),
        (("some", [ModuleType("empty")]), {"tables": {"raw": {}}}, "Chain.of: observers: is empty"),
    ):
        with pytest.raises(ConfigurationError) as raised:
            Chain.of(*arguments, **settings)  # type: ignore[arg-type]
        assert problem in str(raised.value)
    with pytest.raises(CyclicChain):
        Chain.of("some", [functions(writes="raw.text")], tables={"raw": {}})


def test_what_needs_a_folder_says_so() -> None:
    chain = Chain.of("some", [functions()], tables={"raw": {}})
    with pytest.raises(ConfigurationError, match=r"made by Chain\.of, and a crew of processes needs a chain"):
        Crew(chain, "embedded:.", "some", 2)
