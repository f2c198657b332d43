"""The pages without Airflow: all of them, escaping, groups of the quarantine, observers, columns, plots."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

import percolator_core
from percolator_core.admin.quarantine import Quarantine
from percolator_core.admin.samples import record, samples
from percolator_core.admin.status import status
from percolator_core.store.url import StoreUrl
from percolator_core.ui.local import LocalChain
from percolator_core.ui.pages.quarantine import pattern
from percolator_core.ui.recorder import INTERVAL, Recorder
from percolator_core.ui.source import find_source
from tests.ui.conftest import Pages

TEMPLATES = Path(percolator_core.__file__).parent / "ui" / "templates"
EVIL = "<script>alert(1)</script>"
TABS = (
    "",
    "plots",
    "quarantine",
    "locks",
    "tables",
    "trace",
    "tables/docs",
    "tables/docs/rows",
    "observers/split",
)


def likes(page: str) -> list[str]:
    """Return the groups of the quarantine page, in their order."""
    return list(dict.fromkeys(html.unescape(one) for one in re.findall(r'name="like" value="([^"]*)"', page)))


def test_each_page_is_there_and_hostile_texts_stay_texts(pages: Pages) -> None:
    pages.write(EVIL, "row")
    pages.work({EVIL: ValueError(EVIL)})
    for tab in TABS:
        page = pages.get(tab)
        assert EVIL not in page, tab
        assert not re.search(r"<script(?![^>]* src=)", page), tab
        assert not re.search(r"<[^>]*\s(style|on[a-z]+)=", page), tab
        assert "Airflow" not in page, tab
    assert f'href="/{pages.name}/"' in pages.client.get("/").text
    assert pages.client.get("/nobody/").status_code == 404


class TestQuarantine:
    @pytest.mark.parametrize(
        ("error", "same"),
        [
            ("KeyError: 'row p1 has no column'", "KeyError: 'row p2 has no column'"),
            ("ValueError: 12 of 40 parts", "ValueError: 7 of 41 parts"),
            ("OSError: object at 0x7f00aa", "OSError: object at 0x7f00bb"),
        ],
    )
    def test_errors_that_differ_in_texts_and_numbers_are_alike(self, error: str, same: str) -> None:
        assert pattern(error) == pattern(same)
        assert pattern(error) != pattern(error.replace("Error", "Fault"))

    def test_groups_by_error_and_row_and_retries_one_group(self, pages: Pages) -> None:
        wrong: dict[str, Exception] = {
            f"a{number}": ValueError(f"no word number {number}") for number in range(5)
        }
        wrong |= {f"b{number}": TimeoutError("no answer") for number in range(3)}
        pages.write(*wrong)
        pages.work(wrong)
        page = pages.get("quarantine")
        first, second = likes(page)
        groups = page.split("<strong>")
        assert re.findall(r"<strong>(\d cells)</strong>", page) == ["5 cells", "3 cells"]
        assert "and similar ones" in groups[1]
        assert "and similar ones" not in groups[2]
        assert "TimeoutError: no answer" in groups[2]
        quarantine = Quarantine(pages.db, pages.chain)
        assert pages.post("quarantine/retry", like=first) == {
            "said": "5 cells to be observed again",
            "count": 5,
        }
        assert {cell.row for cell in quarantine.cells()} == {b"b0", b"b1", b"b2"}
        assert pages.post("quarantine/discard", like=first)["count"] == 0
        assert pages.post("quarantine/discard", like=second)["said"] == "3 cells discarded"
        assert quarantine.count()["split"] == 0

    def test_a_group_is_retried_beyond_its_page(self, pages: Pages) -> None:
        wrong: dict[str, Exception] = {f"row{number:03}": ValueError("no") for number in range(250)}
        wrong["other"] = TimeoutError("no answer")
        pages.write(*wrong)
        pages.work(wrong)
        page = pages.get("quarantine")
        assert "Retry all like this" in page
        assert "Next →" in page
        # The largest group is first.
        assert pages.post("quarantine/retry", like=likes(page)[0])["count"] == 250
        assert [cell.row for cell in Quarantine(pages.db, pages.chain).cells()] == [b"other"]

    @pytest.mark.parametrize("like", ["", "x", ":split", "0" * 16 + ":split", "a:nobody", "\x00:split"])
    def test_a_made_up_group_has_no_cell(self, pages: Pages, like: str) -> None:
        pages.write("row")
        pages.work({"row": ValueError("no")})
        headers = {"X-Percolator": "1"}
        answer = pages.client.post(f"/{pages.name}/quarantine/retry", json={"like": like}, headers=headers)
        assert answer.status_code == (200 if like.endswith(":split") else 400)
        assert answer.json().get("count", 0) == 0
        assert Quarantine(pages.db, pages.chain).count()["split"] == 1


class TestObserver:
    def test_its_source_its_declaration_and_its_last_runs(self, pages: Pages) -> None:
        (pages.folder / "steps.py").write_text(
            "import os\n\n\n@staticmethod\ndef split(t, cell):\n    '''One'''\n"
        )
        pages.write("first", "second")
        pages.work()
        page = pages.get("observers/split")
        assert "@staticmethod\ndef split(t, cell):" in html.unescape(page)
        assert "import os" not in page
        assert "observe: docs.text" in page
        assert "steps.py:4" in page
        rows = re.findall(r"<bdi>(first|second)</bdi>", page)
        assert sorted(rows) == ["first", "second"]
        assert f'href="/{pages.name}/trace?table=docs&amp;row=first&amp;column=text"' in page
        assert "No worker or drain runs it now" in page
        assert pages.get("observers/nobody", 404)
        assert f'href="/{pages.name}/observers/split#source"' in pages.get("")

    def test_source_that_cannot_be_found_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "broken.py").write_text("def split(:\n")
        for name, said in (
            ("nowhere_at_all:split", "is not on the machine"),
            ("broken:split", "no function"),
        ):
            with pytest.raises(percolator_core.ConfigurationError, match=said):
                find_source(name, tmp_path)

    def test_the_trace_offers_the_newest_rows(self, pages: Pages) -> None:
        pages.write("first", "second")
        pages.work()
        page = pages.get("trace")
        assert re.findall(r"<bdi>(first|second)</bdi>", page)
        link = html.unescape(re.findall(r'href="([^"]*/trace\?[^"]*)"', page)[0])
        assert "took" in pages.client.get(link).text


class TestRows:
    def test_columns_are_chosen_and_numbers_are_at_the_right(self, pages: Pages) -> None:
        with pages.db.transaction() as t:
            for number in range(3):
                t.set("docs", f"r{number}", "size", b"%d" % (10**number))
                for letter in "abcdefghij":
                    t.set("docs", f"r{number}", letter, b"value")
        page = pages.get("tables/docs/rows")
        assert "8 of 11 columns: choose" in page
        page = pages.get("tables/docs/rows?column=size&column=j&limit=20")
        assert re.findall(r"<th role=\"columnheader\"[^>]*><bdi>(\w+)</bdi>", page) == ["j", "size"]
        assert re.findall(r'data-label="size" class="n"><bdi class="value">(\d+)<', page) == [
            "1",
            "10",
            "100",
        ]
        assert 'data-label="j"><bdi' in page
        # Links to other times keep the choice.
        assert "at=5m" in page
        assert all("column=size&amp;column=j" in one for one in re.findall(r'href="([^"]*at=\w+)"', page))

    def test_a_row_without_a_column_has_an_empty_cell(self, pages: Pages) -> None:
        with pages.db.transaction() as t:
            t.set("docs", "one", "a", b"1")
            t.set("docs", "two", "b", b"x")
        page = pages.get("tables/docs/rows")
        assert re.findall(r'data-label="(\w)"[^>]*>(.)', page) == [
            ("a", "<"),
            ("b", "<"),
            ("a", "<"),
            ("b", "<"),
        ]
        assert len(re.findall(r'data-label="\w"[^>]*></td>', page)) == 2


class TestGraph:
    def test_columns_fold_into_their_tables_and_unfold(self, pages: Pages) -> None:
        from tests.airflow.pages import write_chain

        observers = {
            "split": "observe: docs.text\nreads: [out.old]\nwrites: [out.part, out.rest, docs.seen]",
            "join": "observe: out.part\nwrites: [out.sum]",
        }
        write_chain(pages.folder, pages.name, "{docs: {tablets: 2}, out: {tablets: 2}}", observers)
        page = pages.get("")
        assert "Unfold the columns of out: part, rest" in page
        assert ">rest<" not in page
        [link] = set(re.findall(r'href="([^"]*)" id="column-\d+" class="node column folded"', page))
        opened = pages.get(html.unescape(link).removeprefix(f"/{pages.name}/").partition("#")[0])
        assert ">rest<" in opened
        assert "Unfold the columns of out" not in opened
        assert 'aria-label="Fold the columns of out"' in opened
        assert ">old<" not in opened
        assert ">old<" in pages.get("?open=out&reads=1")
        assert pages.get("?open=nothing")


def test_a_peak_between_two_samples_is_recorded_and_plotted(pages: Pages) -> None:
    chain = LocalChain(pages.name, pages.folder, StoreUrl(pages.url), pages.name)
    recorder = Recorder(chain)
    recorder.look(now=0.0)
    pages.write(*(f"row{number}" for number in range(40)))
    recorder.look(now=2.0)
    pages.work()
    recorder.look(now=INTERVAL)
    first, second = samples(pages.db)
    assert (first.observers["split"].backlog, second.observers["split"].backlog) == (0, 0)
    assert (first.observers["split"].peak, second.observers["split"].peak) == (0, 40)
    page = pages.get("plots?span=1h")
    assert re.search(r'data-name="Highest" class="n">40<', page)
    assert "[[0, 40], [0, 0]]" in html.unescape(page)
    # The plots begin with the first sample, not an hour ago.
    [shares] = re.findall(r'data-shares="\[([^"]*)\]"', page)
    assert float(shares.split(",")[0]) == 0


def test_the_recorder_leaves_the_history_to_another_program(pages: Pages) -> None:
    """Airflow's monitor compares its counts with the last sample, which has to be its own."""
    chain = LocalChain(pages.name, pages.folder, StoreUrl(pages.url), pages.name)
    recorder = Recorder(chain)
    recorder.look(now=0.0)
    recorder.look(now=INTERVAL)
    assert len(samples(pages.db)) == 2
    record(pages.db, status(pages.db, pages.chain), 3600)
    recorder.look(now=2 * INTERVAL)
    Recorder(chain).look(now=0.0)
    assert len(samples(pages.db)) == 3


def test_a_store_that_is_away_does_not_end_the_history(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    from percolator_core.ui import stores as module

    monkeypatch.setattr(module, "PATIENCE", 0.2)
    away = Recorder(LocalChain(pages.name, pages.folder, StoreUrl("redis://127.0.0.1:9"), pages.name))
    away.look()
    away.look()


def test_every_live_element_has_an_end(pages: Pages) -> None:
    found = 0
    for template in TEMPLATES.glob("*.html"):
        text = template.read_text(encoding="utf-8")
        live = text.count("data-live=")
        found += live
        assert text.count("<!--/live-->") == live, template
        assert ("{% set live = true %}" in text) == bool(live), template
    assert found > 8
    assert '<noscript><meta http-equiv="refresh"' in pages.get("")
    assert "http-equiv" not in pages.get("trace")
    assert status(pages.db, pages.chain).backlog == 0
