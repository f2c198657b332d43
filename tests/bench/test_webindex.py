"""The suite of the web index, tiny: what is told of every observer, and what is said where it is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import percolator_bench
import percolator_core
import percolator_torture
from observers.webindex.index import ENVIRONMENT
from percolator_bench import Figure, Note, Scale, Target, progress, throughput, webindex
from percolator_bench.servers import place
from percolator_bench.webindex import ALL, WITH, WITHOUT
from percolator_core.errors import PercolatorError

TINY = Scale(rounds=6, documents=12, pages=15)
BUILT, CHANGED, MADE = ("installed distributions", "installed distributions, a fifth changed", "made pages")


@pytest.fixture(scope="module")
def found() -> tuple[list[Figure], list[Note], list[tuple[str, ...]]]:
    told: list[tuple[str, ...]] = []
    with pytest.MonkeyPatch.context() as patch, progress.listening(told.append):
        patch.setattr(webindex, "LINKS", (2, 30))
        patch.setattr(webindex, "_PAGES", 8)
        patch.setattr(throughput, "PROCESSES", (2,))
        patch.setenv(ENVIRONMENT, "/nowhere/serving.db")
        made = list(webindex.measure(TINY))
        assert os.environ[ENVIRONMENT] == "/nowhere/serving.db"
    return (
        [one for one in made if isinstance(one, Figure)],
        [one for one in made if isinstance(one, Note)],
        told,
    )


@pytest.fixture(scope="module")
def figures(found: tuple[list[Figure], Any, Any]) -> dict[tuple[str, str, float | None], Figure]:
    named = {(figure.place, figure.name, figure.at): figure for figure in found[0]}
    assert len(named) == len(found[0])
    return named


@pytest.mark.slow
def test_every_observer_and_all(figures: dict[tuple[str, str, float | None], Figure]) -> None:
    for observer in (ALL, "announce", "cluster", "document_processor", "export", "rank", "serve"):
        for way in (WITH, WITHOUT):
            for what in ("requests", "commands"):
                ratio = figures[BUILT, f"operations ÷ {what}, {observer}: {way}", None]
                # A request carries at least one command, and a command is for at least one cell, unless
                # the answer is known already.
                assert ratio.value >= 1
                assert ratio.samples == 2
                judged = (what, observer, way) == ("requests", ALL, WITH)
                assert ratio.target == (Target("at least", 5.0) if judged else None)


def test_what_a_changed_document_wakes_is_told_apart(
    figures: dict[tuple[str, str, float | None], Figure],
) -> None:
    saved = {
        way: figures[CHANGED, f"operations ÷ requests, document_processor: {way}", None].value
        for way in (WITH, WITHOUT)
    }
    # The acknowledgement brings the page's own cells once the worker has learned that they are wanted.
    assert saved[WITH] > saved[WITHOUT]


def test_cost_of_a_run(figures: dict[tuple[str, str, float | None], Figure]) -> None:
    for stage in (BUILT, CHANGED):
        trips = [figures[stage, f"round trips a run: {way}", None] for way in (WITH, WITHOUT)]
        assert all(one.value >= 1 for one in trips)
        for whose in ("worker", "server"):
            for way in (WITH, WITHOUT):
                assert figures[stage, f"{whose}'s CPU a run: {way}", None].unit == "µs"
        assert figures[stage, "CPU a run of both, prefetch ÷ no prefetch", None].value > 0
        assert 0 < figures[stage, "prefetched cells that were asked for", None].value <= 1


def test_made_pages_are_a_curve_over_their_links(
    figures: dict[tuple[str, str, float | None], Figure],
) -> None:
    points = {(name, at): figure for (place, name, at), figure in figures.items() if place == MADE}
    assert len(points) == 2 * 2 * 2
    assert {figure.axis for figure in points.values()} == {"links a page"}
    few, many = (points[f"operations ÷ requests, {ALL}: {WITH}", links].value for links in (2, 30))
    # Cells of many rows travel together: the more there are to ask for, the more a request brings.
    assert many > few


def test_both_ways_take_turns_and_the_corpus_is_told(
    found: tuple[Any, list[Note], list[tuple[str, ...]]],
) -> None:
    _, notes, told = found
    assert [str(note) for note in notes if "12 documents" in note.text]
    assert not [note for note in notes if "in quarantine" in note.text]
    ways = [steps[-1] for steps in told if steps[0] == BUILT]
    assert ways == [WITHOUT, WITH, WITH, WITHOUT]


def test_made_pages_are_the_same_every_time() -> None:
    pages = webindex.generated_pages(300)
    assert pages == webindex.generated_pages(300)
    assert {contents.count(b"<a ") for contents in pages.values()} == {300}


def test_pages_through_the_whole_chain(
    figures: dict[tuple[str, str, float | None], Figure],
) -> None:
    pages, links, transactions = (
        figures["made crawl", name, 2] for name in ("pages", "links", "transactions")
    )
    assert pages.target == Target("at least", 300)
    assert links.target == Target("at least", 4000)
    assert links.value / pages.value == pytest.approx(throughput.crawl(TINY.pages)[1] / TINY.pages)
    # Each page is loaded, parsed, clustered and ranked, at the least.
    assert transactions.value >= 4 * pages.value > 0


def test_an_index_that_is_wrong_is_no_figure() -> None:
    application = webindex._Application()
    with application.serving() as index, place("unix") as here:
        application.chain.create_tables(here.db)
        throughput.check_index(here, index)
        with here.db.transaction() as t:
            t.set("pages", "https://example.com/", "cluster", b"nowhere")
        with pytest.raises(PercolatorError, match=r"orphan: pages https://example\.com/"):
            throughput.check_index(here, index)


def test_the_made_crawl_is_like_one() -> None:
    documents, links = throughput.crawl(500)
    assert (documents, links) == throughput.crawl(500)
    assert 11 < links / len(documents) < 15
    counts = sorted(contents.count(b"<a ") for contents in documents.values())
    assert sum(counts) == links
    assert counts[-1] > 3 * counts[len(counts) // 2]
    targets = [
        target.partition(b'"')[0] for page in documents.values() for target in page.split(b'<a href="')[1:]
    ]
    assert 0.1 < sum(target in documents for target in targets) / len(targets) < 0.5


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with the library, its benchmarks and the torture's servers, but without the application."""
    library = tmp_path / "library"
    library.mkdir()
    for package in (percolator_core, percolator_bench, percolator_torture):
        folder = Path(next(iter(package.__path__)))
        (library / folder.name).symlink_to(folder)
    return library


def test_without_the_application_there_is_a_note(elsewhere: Path) -> None:
    # The tests' own environment has the application beside the library: -S leaves it out.
    packages = [path for path in sys.path if path.endswith("site-packages")]
    done = subprocess.run(
        [sys.executable, "-S", "-m", "percolator_core", "bench", "webindex"],
        capture_output=True,
        text=True,
        check=False,
        cwd=elsewhere,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(elsewhere), *packages]), "COLUMNS": "400"},
    )
    assert done.returncode == 0, done.stderr
    assert (
        "webindex: nothing was measured: `percolator bench webindex` measures the web index: run it in a "
        f"checkout of the percolator repository ({elsewhere} has no observers/webindex/demo/crawl)."
        in done.stdout
    )
