"""The overview and the live graph: their contents and their costs."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import percolator_core as percolator
from percolator_core import Chain
from percolator_core.admin.samples import record
from percolator_core.admin.status import ObserverStatus, status
from tests.airflow.pages import OBSERVERS, PAGE, Site, connection_to, give_dag, write_chain
from tests.airflow.web import TABLES, Reader, Web, row_of
from tests.servers.plain import Server


class TestGraph:
    def test_the_figures_of_each_observer(self, web: Web) -> None:
        web.chain.create_tables(web.db)
        web.write(30)
        web.work("split", wrong=frozenset({"d1", "d2"}))
        text = web.look()
        split, join = row_of(text, "split"), row_of(text, "join")
        assert (split["Backlog"], split["Ran"], split["Failures"]) == ("0", "28", "2")
        assert split["Quarantine"] == "2"
        assert split["State"] == "failing 2 cells in quarantine"
        assert (join["Backlog"], join["Ran"], join["Quarantine"]) == ("28", "0", "0")
        assert join["State"] == "unattended"
        assert join["Oldest"].endswith(" s")
        assert "Puts parts together." in text
        facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(?:<a [^>]*>)?(.*?)<", text))
        assert (facts["Backlog"], facts["In quarantine"], facts["Workers"]) == ("28", "2", "0")

    def test_the_drawing_says_the_same_as_the_table(self, web: Web) -> None:
        web.chain.create_tables(web.db)
        web.write(30)
        web.work("split", wrong=frozenset({"d1"}))
        drawing = ET.fromstring(re.search(r"<svg class=\"chain\".*?</svg>", web.look(), re.DOTALL)[0])  # type: ignore[index]
        nodes = {node.get("id"): node for node in drawing.iter("a")}
        assert len(nodes) == 2 + 3
        split = nodes["observer-split"]
        texts = [text.text for text in split.iter("text")]
        assert {"split", "failing", "quarantine 1", "backlog 0"} <= set(texts)
        assert split.get("href") == f"/{web.name}/observers/split"
        assert "is-failing" in split.get("class", "")
        assert split.get("aria-label", "").startswith("split, failing: 1 cell in quarantine; backlog 0")
        join = nodes["observer-join"]
        assert join.get("href") == f"/{web.name}/observers/join"
        assert "backlog 29" in [text.text for text in join.iter("text")]
        assert any(use.get("href") == "#sign-unattended" for use in join.iter("use"))
        columns = {node.get("href") for name, node in nodes.items() if name and name.startswith("column-")}
        assert columns == {f"/{web.name}/tables/docs/rows", f"/{web.name}/tables/out/rows"}
        # In reading order, so that the tab key moves from left to right.
        assert [node.get("aria-label", "").split(",")[0].split(":")[0] for node in nodes.values()] == [
            "docs.text",
            "split",
            "out.part",
            "join",
            "out.sum",
        ]

    def test_a_second_look_tells_the_rate(self, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
        from percolator_core.ui import standing

        monkeypatch.setattr(standing, "_LEAST", 0.0)
        web.chain.create_tables(web.db)
        assert row_of(web.look(), "split")["Runs/s"] == "-"
        web.write(30)
        web.work()
        split = row_of(web.look(), "split")
        assert float(split["Runs/s"].replace(",", "")) > 0
        assert split["State"] == "working"

    def test_before_any_worker_the_declarations_are_there(self, web: Web) -> None:
        text = web.look()
        assert row_of(text, "split")["State"] == "not active"
        assert "No worker or drain is alive" in text

    def test_without_the_declarations_the_store_still_tells(self, web: Web) -> None:
        web.chain.create_tables(web.db)
        web.write(3)
        (web.folder / "chain.yaml").unlink()
        text = web.look()
        assert "chain.yaml: is missing" in text
        assert row_of(text, "split")["Backlog"] == "3"
        assert '<svg class="chain"' not in text

    def test_it_costs_the_same_however_much_there_is(self, web: Web, server: Server) -> None:
        web.chain.create_tables(web.db)
        web.write(2)
        web.look()

        def commands() -> int:
            before = server.client().info("stats")["total_commands_processed"]
            web.look()
            return int(server.client().info("stats")["total_commands_processed"] - before)

        few = commands()
        web.write(1500)
        web.work("split", wrong=frozenset(f"d{number}" for number in range(700)))
        assert abs(commands() - few) <= 10

    def test_a_page_can_be_read_by_its_names(self, web: Web) -> None:
        web.chain.create_tables(web.db)
        web.write(3)
        for path in ("", "plots"):
            record(web.db, status(web.db, web.chain), 3600)
            page = Reader(web.look(path))
            ids = [one["id"] for _, one in page.elements if one.get("id")]
            assert len(ids) == len(set(ids))
            # An updated element keeps the focus by its id.
            assert all(one.get("id") for _, one in page.elements if "data-live" in one)
            for link in page.all("a"):
                assert (link.get("href") or "").strip(), link
            for svg in page.all("svg"):
                assert svg.get("aria-hidden") == "true" or svg.get("aria-label"), svg
            for one in [*page.all("div"), *page.all("section"), *page.all("nav")]:
                if one.get("role") in {"slider", "region", "group"}:
                    assert one.get("aria-label"), one

    def test_fifty_observers_are_drawn_apart_and_quickly_told(
        self, site: Site, server: Server, tmp_path: Path
    ) -> None:
        observers = {
            f"step{number}": f"observe: docs.c{number // 3}\nwrites: [docs.c{number + 1}]"
            for number in range(1, 50)
        } | {"step0": "observe: docs.text\nwrites: [docs.c0, docs.c1]"}
        folder = write_chain(tmp_path / "fifty", "fifty", "{docs: {tablets: 4}}", observers)
        give_dag(folder, "fifty")
        with percolator.connect(server.unix, "fifty") as db:
            Chain.load(folder, import_functions=False).create_tables(db)
            text = site.as_("VIEWER").get("/fifty/?open=docs", headers=PAGE).text
        drawing = ET.fromstring(re.search(r"<svg class=\"chain\".*?</svg>", text, re.DOTALL)[0])  # type: ignore[index]
        boxes = [
            tuple(float(box.get(name, 0)) for name in ("x", "y", "width", "height"))
            for node in drawing.iter("a")
            for box in node.iter("rect")
        ]
        assert len(boxes) == 50 + 52
        for node in drawing.iter("a"):
            lowest = max((float(text.get("y", 0)) for text in node.findall("g/text")), default=0)
            assert all(float(box.get("height", 0)) > lowest + 4 for box in node.iter("rect"))
        for index, (x, y, width, height) in enumerate(boxes):
            for other_x, other_y, other_width, other_height in boxes[:index]:
                beside = x >= other_x + other_width or other_x >= x + width
                assert beside or y >= other_y + other_height or other_y >= y + height
        assert len(text) < 250_000


class TestStanding:
    """The state of an observer in one word."""

    @pytest.mark.parametrize(
        ("facts", "rate", "state"),
        [
            ({}, None, "idle"),
            ({}, (3.0, 0.0), "working"),
            ({"backlog": 3}, None, "working"),
            ({"backlog": 41}, None, "behind"),
            ({"backlog": 3, "oldest": 601.0}, None, "behind"),
            ({"failed": 1, "backlog": 41}, None, "failing"),
            ({}, (0.0, 0.1), "failing"),
            ({"active": False}, None, "inactive"),
        ],
    )
    def test_states(
        self, tmp_path: Path, facts: dict[str, Any], rate: tuple[float, float] | None, state: str
    ) -> None:
        from percolator_core.ui.standing import Rate, standings

        chain = Chain.load(write_chain(tmp_path, "c", TABLES, OBSERVERS), import_functions=False)
        plain: dict[str, Any] = {"backlog": 0, "waiting": 0, "oldest": None, "failed": 0, "active": True}
        now = ObserverStatus("split", ("docs.text",), **(plain | facts))
        workers = (SimpleNamespace(observers=None),)
        seen: Any = SimpleNamespace(observers=(now,), workers=workers)
        (found,) = standings(seen, chain, {} if rate is None else {"split": Rate(*rate)})
        assert found.state == state
        assert found.why

    def test_nobody_at_it(self) -> None:
        from percolator_core.ui.standing import standings

        now = ObserverStatus("split", ("docs.text",), 3, 0, 0.1, 0, active=True)
        for observers, state in ((("split",), "working"), (("join",), "unattended"), (None, "working")):
            seen: Any = SimpleNamespace(observers=(now,), workers=(SimpleNamespace(observers=observers),))
            assert standings(seen, None, {})[0].state == state

    def test_an_observers_own_thresholds_count(self, tmp_path: Path) -> None:
        from percolator_core.ui.standing import standings

        own = "{monitor: {thresholds: {backlog: 40, oldest: 5s, observers: {split: {backlog: 100}}}}}"
        tables = f"{{docs: {{}}, out: {{}}}}\nairflow: {own}"
        chain = Chain.load(write_chain(tmp_path, "c", tables, OBSERVERS), import_functions=False)
        for backlog, oldest, state in ((99, 1.0, "working"), (101, 1.0, "behind"), (1, 6.0, "behind")):
            now = ObserverStatus("split", ("docs.text",), backlog, 0, oldest, 0, active=True)
            seen: Any = SimpleNamespace(observers=(now,), workers=(SimpleNamespace(observers=None),))
            assert standings(seen, chain, {})[0].state == state

    def test_rates_are_of_the_last_seconds(self, web: Web) -> None:
        from percolator_airflow.ui.chains import KnownChain
        from percolator_core.ui.standing import RateSamples

        web.chain.create_tables(web.db)
        known = KnownChain(web.name, web.folder, "", "", None)
        looks = RateSamples()

        def look(second: float, ran: int) -> float | None:
            now = ObserverStatus("split", (), 0, 0, None, 0, active=True, ran=ran)
            seen: Any = SimpleNamespace(time=int(second * 1e6), observers=(now,))
            found = looks.rates(known, web.db, seen)
            return found["split"].runs if found else None

        assert look(1000, 0) is None
        assert look(1000.5, 5) is None
        assert look(1003, 30) == 10
        assert look(1006, 60) == 10
        for second in range(1009, 1060, 3):
            look(second, 60)
        assert look(1060, 60) == 0
        assert look(1062, 160) == pytest.approx(100 / 17, abs=2)
        # A later request of another user was served first.
        assert look(1061.9, 160) is not None
        assert look(1400, 200) is None
        # The counts started again, for example after the namespace was dropped.
        assert look(1403, 0) == 0
        # The server's clock was set back.
        assert look(500, 10) is None
        assert look(503, 40) == 10

    def test_without_a_look_of_its_own_the_monitors_is_taken(self, web: Web) -> None:
        from percolator_airflow.ui.chains import KnownChain
        from percolator_core.ui.standing import RateSamples

        web.chain.create_tables(web.db)
        now = status(web.db, web.chain)
        record(web.db, now, 3600)
        known = KnownChain(web.name, web.folder, "", "", None)
        later = [ObserverStatus("split", (), 0, 0, None, 0, active=True, ran=100)]
        seen: Any = SimpleNamespace(time=now.time + 10_000_000, observers=later)
        assert RateSamples().rates(known, web.db, seen)["split"].runs == pytest.approx(10, abs=0.2)


class TestOverview:
    def test_a_card_for_each_chain(self, web: Web) -> None:
        web.chain.create_tables(web.db)
        web.write(1200)
        card = _card(web.client.get("/", headers=PAGE).text, web.name)
        assert "behind" in card
        assert "1,200" in card

    def test_a_store_that_is_away_is_not_waited_for_again(self, web: Web) -> None:
        from percolator_core.ui import stores

        give_dag(web.folder, web.name, conn_id="away")
        with connection_to("redis://127.0.0.1:9", "away"), pytest.MonkeyPatch.context() as patch:
            patch.setattr(stores, "PATIENCE", 0.2)
            for _ in range(3):
                assert "did not answer" in _card(web.client.get("/", headers=PAGE).text, web.name)
                # A request to the store would now fail in another way.
                patch.setattr(stores.Stores, "_of", None)

    @pytest.mark.parametrize(
        ("part", "page"), [("load", ""), ("observe", ""), ("monitor", "plots"), ("maintain", "locks")]
    )
    def test_from_a_dag_to_its_chain(self, web: Web, part: str, page: str) -> None:
        answer = web.client.get(f"/dag/{web.name}_{part}")
        assert answer.status_code == 302
        assert answer.headers["location"] == f"/{web.name}/{page}"

    def test_a_dag_without_a_chain_is_told_so(self, web: Web) -> None:
        for dag in ("somebody_elses", web.name, f"x{web.name}_observe", "_observe"):
            answer = web.client.get(f"/dag/{dag}", headers=PAGE)
            assert answer.status_code == 200
            assert "is not a DAG of a chain" in answer.text


def _card(page: str, name: str) -> str:
    return next(card for card in page.split('<li class="card">') if f'id="chain-{name}"' in card)
