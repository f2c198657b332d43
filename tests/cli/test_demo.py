"""The command ``demo``: its parts on a small corpus, and the whole with Spark."""

from __future__ import annotations

import hashlib
import io
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from observers.webindex.checker import check
from observers.webindex.demo import Settings, Show
from observers.webindex.demo import run as run_demo
from observers.webindex.demo.background import BackgroundWorker
from observers.webindex.demo.changes import plan
from observers.webindex.demo.crawl import Crawl
from observers.webindex.demo.proofs import prove, queries
from observers.webindex.demo.report import Measured, Processed, Proof, Report
from observers.webindex.demo.story import CHAIN, default_folder
from observers.webindex.demo.update import TABLE, Update
from observers.webindex.index import ENVIRONMENT, ServingIndex, close_indexes, open_index
from observers.webindex.page import parse
from observers.webindex.search import search
from percolator_core import Chain, ConfigurationError, Database, PercolatorError, Worker, connect
from percolator_core.loading.transactions import merge
from percolator_core.notifications.dirty import DirtyIndex
from tests.servers.plain import PATIENCE
from tests.spark.gate import Gate, eventually, held, runs

if TYPE_CHECKING:
    from observers.webindex.demo.changes import Change
    from tests.cli.conftest import Project

TOPICS = (
    *("anvil", "basalt", "cedar", "delta", "ember", "falcon", "garnet", "harbour"),
    *("indigo", "jasper", "kelp", "lagoon", "marble", "nectar", "opal"),
)


def page(number: int, topic: str) -> str:
    links = "".join(
        f'<li><a href="{TOPICS[(number + step) % len(TOPICS)]}.html">see</a></li>' for step in (1, 2, 5)
    )
    return (
        f"<!doctype html><html><head><title>{topic.title()}</title></head><body><h1>{topic.title()}</h1>"
        f"<p>All about {topic}, number {number}.</p><ul>{links}</ul></body></html>"
    )


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    for number, topic in enumerate(TOPICS):
        (folder / f"{topic}.html").write_text(page(number, topic))
    (folder / "notes.md").write_text("# Notes\n\nSome plain remarks on [opal](opal.html).\n")
    return folder


@dataclass
class Indexed:
    """A crawl, loaded without Spark and indexed."""

    crawl: Crawl
    db: Database
    chain: Chain
    index: ServingIndex
    url: str
    ran: int

    def plan(self, run: int = 1) -> list[Change]:
        return plan(self.crawl, self.index, run)

    def update(self, changes: list[Change]) -> tuple[list[Measured], dict[str, Any]]:
        with BackgroundWorker(self.db, self.chain, self.url, self.index.path) as worker:
            update = Update(self.db, self.crawl, self.index, worker)
            measured = [update.apply(change) for change in changes]
            update.settle(DirtyIndex(self.db.client, self.chain.observed))
            return measured, worker.stop()


@pytest.fixture
def indexed(docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Indexed]:
    folder = tmp_path / "state"
    monkeypatch.setenv(ENVIRONMENT, str(folder / "serving.db"))
    crawl = Crawl(folder, docs)
    crawl.renew()
    chain = Chain.load(CHAIN)
    url = f"embedded:{folder}"
    with connect(url, chain.name) as db:
        chain.create_tables(db)
        for _, name in crawl.source().files:
            assert merge(db, TABLE, crawl.record(name)) == "new"
        counts = Worker(db, chain).run_until_idle(timeout=PATIENCE)
        yield Indexed(crawl, db, chain, open_index(), url, counts.ran)
    close_indexes()


def digest(folder: Path) -> str:
    made = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        made.update(f"{path} {path.stat().st_mtime_ns}".encode())
        made.update(path.read_bytes() if path.is_file() else b"")
    return made.hexdigest()


class TestCrawl:
    def test_edits_of_the_copy_stay_and_the_source_is_not_touched(self, docs: Path, tmp_path: Path) -> None:
        before = digest(docs)
        crawl = Crawl(tmp_path / "state", docs)
        assert crawl.renew() == len(TOPICS) + 1
        (crawl.documents / "anvil.html").write_text("edited")
        (crawl.documents / "basalt.html").unlink()
        (crawl.documents / "copies").mkdir()
        (crawl.documents / "copies" / "cedar.html").write_text("a copy")
        again = Crawl(tmp_path / "state", docs)
        again.renew()
        assert (again.documents / "anvil.html").read_text() == "edited"
        assert not (again.documents / "basalt.html").exists()
        assert (again.documents / "copies" / "cedar.html").exists()
        assert digest(docs) == before

    def test_what_changes_at_the_source_comes_again(self, docs: Path, tmp_path: Path) -> None:
        Crawl(tmp_path / "state", docs).renew()
        (docs / "anvil.html").write_text("new at the source")
        (docs / "basalt.html").unlink()
        crawl = Crawl(tmp_path / "state", docs)
        crawl.renew()
        assert (crawl.documents / "anvil.html").read_text() == "new at the source"
        assert not (crawl.documents / "basalt.html").exists()

    def test_a_limit_takes_the_first(self, docs: Path, tmp_path: Path) -> None:
        crawl = Crawl(tmp_path / "state", docs)
        assert crawl.renew(3) == 3
        assert [name for _, name in crawl.source().files] == ["anvil.html", "basalt.html", "cedar.html"]

    def test_other_documents_are_refused(self, docs: Path, tmp_path: Path) -> None:
        Crawl(tmp_path / "state", docs).renew()
        with pytest.raises(ConfigurationError, match="holds the demo of other documents"):
            Crawl(tmp_path / "state", None)

    def test_a_damaged_state_is_one_sentence(self, docs: Path, tmp_path: Path) -> None:
        Crawl(tmp_path / "state", docs).renew()
        (tmp_path / "state" / "demo.json").write_text("{")
        with pytest.raises(ConfigurationError, match="is damaged: start over with --fresh"):
            Crawl(tmp_path / "state", docs)

    def test_each_corpus_has_a_folder(self, docs: Path) -> None:
        assert str(default_folder(None)) == ".percolator/demo"
        mine = default_folder(docs)
        assert str(mine).startswith(".percolator/demo-docs-")
        assert mine == default_folder(docs / ".." / docs.name)
        assert mine != default_folder(docs.parent / "other" / docs.name)


class TestChanges:
    def test_ten_edits_a_deletion_and_a_duplicate(self, indexed: Indexed) -> None:
        changes = indexed.plan()
        assert [change.kind for change in changes[-2:]] == ["deleted", "duplicated"]
        assert len(changes) == 12
        assert len({change.name for change in changes}) == 12
        assert {"paragraph", "heading", "link"} == {change.kind for change in changes[:10]}

    def test_the_parser_sees_each_edit(self, indexed: Indexed) -> None:
        for change in indexed.plan()[:10]:
            assert change.contents is not None
            old = (indexed.crawl.documents / change.name).read_bytes()
            content_type = "text/markdown" if change.name.endswith(".md") else "text/html"
            assert change.query in parse(change.url, change.contents, content_type).content.text
            assert change.query not in parse(change.url, old, content_type).content.text

    def test_a_heading_inside_of_a_link_is_not_edited(self, indexed: Indexed) -> None:
        for path, _ in list(indexed.crawl.source().files):
            if path.endswith(".html"):
                text = Path(path).read_text()
                linked = text.replace("<h1>", '<a href="opal.html"><h1>').replace("</h1>", "</h1></a>")
                Path(path).write_text(linked)
        edits = [change for change in indexed.plan() if change.kind in {"heading", "paragraph"}]
        assert edits
        for change in edits:
            assert change.contents is not None
            page = parse(change.url, change.contents, "text/html")
            assert change.query in page.content.text
            assert not any(change.query in text for texts in page.outlinks.root.values() for text in texts)

    def test_a_run_is_repeatable_and_the_next_one_is_another(self, indexed: Indexed) -> None:
        assert indexed.plan(1) == indexed.plan(1)
        words = {change.query for run in (1, 2, 3) for change in indexed.plan(run)[:10]}
        assert len(words) == 30

    def test_an_update_is_found_is_small_and_is_right(self, indexed: Indexed) -> None:
        changes = indexed.plan()
        measured, counts = indexed.update(changes)
        assert all(0 < one.milliseconds < 30_000 for one in measured)
        assert [proof for proof in prove(changes, indexed.index) if not proof.holds] == []
        assert len(prove(changes, indexed.index)) == 5
        assert counts["total"]["ran"] < indexed.ran
        assert counts["observers"]["document_processor"]["ran"] == len(changes) == 12
        assert check(indexed.db.snapshot(), indexed.index) == []

    def test_the_input_has_what_the_store_has(self, indexed: Indexed) -> None:
        indexed.update(indexed.plan())
        rows = {row.decode(): cells["contents"] for row, cells in indexed.db.snapshot().scan(TABLE)}
        files = {
            indexed.crawl.base_url + name: Path(path).read_bytes()
            for path, name in indexed.crawl.source().files
        }
        assert rows == files

    def test_a_second_update_follows_the_first(self, indexed: Indexed) -> None:
        indexed.update(indexed.plan(1))
        changes = indexed.plan(2)
        indexed.update(changes)
        assert all(proof.holds for proof in prove(changes, indexed.index))
        assert check(indexed.db.snapshot(), indexed.index) == []

    def test_a_copy_is_noticed_though_the_rank_falls(self, indexed: Indexed) -> None:
        change = indexed.plan()[-1]
        assert change.kind == "duplicated"
        # What an earlier change has done to the rank is about to be exported.
        ((key, version),) = indexed.index.query(
            "SELECT key, version FROM postings WHERE url = ?", (change.other,)
        )
        old = next(posting for posting in indexed.index.postings() if posting.key == key)
        assert indexed.index.refresh(replace(old, rank=old.rank + 100), version + 1)
        with BackgroundWorker(indexed.db, indexed.chain, indexed.url, indexed.index.path) as worker:
            Update(indexed.db, indexed.crawl, indexed.index, worker).apply(change)
        [found] = [
            result for result in search(change.query, index=indexed.index) if result.url == change.other
        ]
        assert found.size == 2
        assert found.rank < old.rank + 100

    def test_a_proof_can_fail(self, indexed: Indexed) -> None:
        # Planned and not done.
        assert not any(proof.holds for proof in prove(indexed.plan()[:11], indexed.index))

    def test_queries_find_something(self, indexed: Indexed) -> None:
        found = queries(indexed.index)
        assert len(found) == 3
        assert all(search(query, 1, index=indexed.index) for query in found)

    def test_a_worker_that_ends_is_told(self, indexed: Indexed) -> None:
        with BackgroundWorker(indexed.db, indexed.chain, indexed.url, indexed.index.path) as worker:
            worker._process.kill()
            worker._process.wait()
            with pytest.raises(PercolatorError, match="The worker ended by itself"):
                worker.check()


def small(indexed: Indexed, count: int) -> None:
    """Leave so many documents in the input."""
    for path, _ in list(indexed.crawl.source().files)[count:]:
        Path(path).unlink()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_documents_make_a_small_demo(indexed: Indexed, count: int) -> None:
    small(indexed, count)
    changes = indexed.plan()
    assert 1 <= len(changes) <= count
    assert changes[0].kind in {"paragraph", "heading", "link"}


def report(width: int) -> str:
    """A report with long names and failures, as it is shown."""
    from observers.webindex.demo.changes import Change

    console = Console(width=width, record=True, quiet=False, file=io.StringIO())
    made = Report(1, "embedded:x", "x/serving.db", documents=12_345)
    url = "doc://installed/" + "/".join(["a-long-name-of-a-folder"] * 6) + ".html"
    made.changes = [Measured(Change("heading", "n", url, "word", b""), 1234.5)] * 2
    made.updated = Processed({"document_processor": 1234}, 1, 2, 3, 4.5)
    made.processed = Processed({"document_processor": 1_234_567}, 1, 0, 3, 4.5)
    made.first_run = {"document_processor": 1_234_567}
    made.proofs = [Proof("copy and original are one result", "query " * 20, False, [url, url])]
    made.violations = ["wrong " * 50] * 9
    show = Show(console)
    for scene in ("chain", "update", "check"):
        made.scenes[scene] = 1.0
        show.begin(scene, made)
        show.end(scene, made)
    show.close(made, "percolator demo")
    return console.export_text()


@pytest.mark.parametrize("width", [80, 100])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    shown = report(width)
    assert max(len(line) for line in shown.splitlines()) <= width
    assert "1,234,567" in shown
    assert "1234.5 ms" in shown
    assert "✗ 9 cells or postings are wrong" in shown
    assert "✗ 2 cells are in quarantine" in shown
    assert "copy and original are one result: that does not hold" in shown


class TestFolder:
    def test_a_demo_that_runs_keeps_others_away(self, docs: Path, tmp_path: Path) -> None:
        from observers.webindex.demo.story import _occupied

        show = Show(Console(quiet=True))
        with (
            _occupied(tmp_path / "state", fresh=False),
            pytest.raises(ConfigurationError, match="Another demo runs in"),
        ):
            run_demo(Settings(docs=docs, folder=tmp_path / "state"), show)

    def test_fresh_removes_a_demo(self, docs: Path, tmp_path: Path) -> None:
        from observers.webindex.demo.story import _occupied

        Crawl(tmp_path / "state", docs).renew()
        with _occupied(tmp_path / "state", fresh=True):
            assert not (tmp_path / "state" / "documents").exists()
            assert not (tmp_path / "state" / "demo.json").exists()

    def test_fresh_removes_nothing_that_is_no_demo(self, tmp_path: Path) -> None:
        from observers.webindex.demo.story import _occupied

        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.txt").write_text("x")
        with (
            pytest.raises(ConfigurationError, match="files that are not a demo"),
            _occupied(tmp_path / "mine", fresh=True),
        ):
            pass
        assert (tmp_path / "mine" / "thesis.txt").exists()

    def test_fresh_waits_for_no_user_of_the_store(self, indexed: Indexed) -> None:
        from observers.webindex.demo.story import _occupied

        with (
            pytest.raises(ConfigurationError, match="is in use: stop its users"),
            _occupied(indexed.crawl.folder, fresh=True),
        ):
            pass
        assert indexed.db.snapshot().get(TABLE, indexed.crawl.base_url + "opal.html", "contents")


@pytest.mark.slow
@pytest.mark.spark
class TestWhole:
    def test_two_runs_on_the_installed_distributions(self, webindex: Project) -> None:
        first = self.play(webindex, "--limit", "60")
        assert first["good"], first
        assert first["loaded"]["new"] == first["documents"] == 60
        assert first["processed"]["observers"]["document_processor"] == 60
        assert len(first["changes"]) == 12
        assert all(found["results"] for found in first["searches"])
        assert sum(first["updated"]["observers"].values()) < sum(first["processed"]["observers"].values())
        second = self.play(webindex, "--limit", "60")
        assert second["good"], second
        assert second["run"] == 2
        assert second["loaded"]["unchanged"] == second["loaded"]["read"]
        assert sum(second["processed"]["observers"].values()) == 0
        assert second["first_run"] == first["processed"]["observers"]
        before, after = ({change["query"] for change in run["changes"][:10]} for run in (first, second))
        assert not before & after

    def test_a_folder_of_the_users_own(self, webindex: Project, docs: Path) -> None:
        before = digest(docs)
        ended = webindex.run("demo", "--docs", str(docs), "--svg", "picture.svg", timeout=150)
        assert ended.code == 0, ended.err
        assert digest(docs) == before
        assert "✓ 16 documents: every page, link, rank, cluster and posting is right" in ended.out
        assert max(len(line) for line in ended.out.splitlines()) <= 100
        assert list(webindex.folder.glob(".percolator/demo-docs-*/serving.db"))
        picture = (webindex.folder / "picture.svg").read_text()
        assert picture.startswith("<svg")
        assert "url(http" not in picture.replace('"', "")

    @pytest.mark.parametrize(
        ("number", "stuck", "begun"),
        [
            pytest.param(signal.SIGINT, None, None, id="while Java starts"),
            pytest.param(
                signal.SIGINT, ("documents", "contents"), ("documents", "contents"), id="in the load"
            ),
            pytest.param(signal.SIGTERM, ("pages", "parsed"), ("pages", "parsed"), id="in the observers"),
        ],
    )
    def test_an_interrupted_run_carries_on(
        self,
        webindex: Project,
        docs: Path,
        number: int,
        stuck: tuple[str, str] | None,
        begun: tuple[str, str] | None,
    ) -> None:
        gate = Gate(webindex.folder / "java")
        process = webindex.start("demo", "--docs", str(docs), "--folder", "state", variables=gate.environment)
        java = gate.pid()
        with ExitStack() as stack:
            if stuck is not None and begun is not None:
                # One document gets no further, so the run cannot end; another one shows that it is here.
                url = f"embedded:{webindex.folder / 'state'}"
                db = stack.enter_context(connect(url, "webindex"))
                stack.enter_context(held(url, "webindex", stuck[0], "doc://docs/opal.html", stuck[1]))
                gate.open()
                eventually(lambda: db.snapshot().get(begun[0], "doc://docs/anvil.html", begun[1]))
            ended = webindex.stop(process, number, timeout=100)
        assert ended.code == 130, ended.err
        assert ended.error.startswith("interrupted; nothing is lost: `")
        assert " -m observers.webindex demo --docs " in ended.error
        assert "Traceback" not in ended.err
        eventually(lambda: not runs(java))
        again = self.play(webindex, "--docs", str(docs), "--folder", "state")
        assert again["good"], again
        assert again["documents"] == 16

    @staticmethod
    def play(webindex: Project, *arguments: str) -> Any:
        ended = webindex.run("demo", "--json", *arguments, timeout=150)
        assert ended.code == 0, ended.err
        assert "Traceback" not in ended.err
        return json.loads(ended.out)


def test_a_folder_without_documents_is_one_sentence(webindex: Project) -> None:
    (webindex.folder / "none").mkdir()
    ended = webindex("demo", "--docs", "none", "--folder", "state")
    assert ended.code == 2
    assert ended.error.startswith("No html file")
