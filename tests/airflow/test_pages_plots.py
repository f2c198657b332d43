"""The plots: a chain's history, and the computation of curves and axes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import percolator_core as percolator
from percolator_core import Chain
from percolator_core.admin.samples import record
from percolator_core.admin.status import status
from tests.airflow.pages import PAGE, Site, give_dag, write_chain
from tests.airflow.web import Reader, Web
from tests.servers.plain import Server


class TestPlots:
    def test_lines_of_what_was_recorded(self, web: Web) -> None:
        web.chain.create_tables(web.db)
        for count in (10, 0, 20):
            web.write(count, first=100 * count)
            record(web.db, status(web.db, web.chain), 3600)
        web.work("split")
        record(web.db, status(web.db, web.chain), 3600)
        text = web.look("plots?span=all")
        backlog = _plot(text, "backlog")
        assert "last 30" in backlog  # those of join
        assert _values(backlog) == [[10, 10, 30, 0], [0, 0, 0, 30]]
        assert re.findall(r'data-series="(\d)" data-name="(\w+)"', backlog) == [("0", "split"), ("1", "join")]
        (runs, _) = _values(_plot(text, "runs"))
        # Two samples of the same millisecond give no rate.
        assert set(runs[:3]) <= {None, 0}
        assert runs[3] > 0
        assert _values(_plot(text, "crew")) == [[0] * 4, [0] * 4]
        assert row_cells(text, "split") == ["0", "30", "30", "0", "0"]
        page = Reader(text)
        assert len([one for one in page.all("div") if one.get("role") == "slider"]) == 8
        labels = set(re.findall(r'<text x="100%"[^>]*>([^<]*)</text>', backlog))
        assert labels == {"0", "10", "20", "30"}

    def test_a_span_shows_its_own_time_only(self, web: Web) -> None:
        web.chain.create_tables(web.db)
        now = status(web.db, web.chain)
        record(web.db, now, 3600)
        (key,) = [one for one in web.db.store.call((b"KEYS", b"*samples*"))[0] if web.name.encode() in one]
        ((_, fields),) = web.db.store.call((b"XRANGE", key, b"-", b"+"))[0]
        web.db.store.call((b"DEL", key))
        for hours in (30, 8, 2):
            moment = b"%d" % (now.time // 1000 - hours * 3_600_000)
            web.db.store.call((b"XADD", key, moment, *fields))
        for span, looks in (("24h", 2), ("6h", 1), ("all", 3)):
            (values, _) = _values(_plot(web.look(f"plots?span={span}"), "backlog"))
            assert len(values) == looks, span
        text = web.look("plots?span=1h")
        assert "No sample was recorded in this period" in text
        assert "<figure" not in text
        assert web.client.get(f"/{web.name}/plots?span=2h").status_code == 400

    def test_without_a_history_the_monitor_is_named(self, web: Web) -> None:
        text = web.look("plots?span=all")
        assert "No sample has been recorded yet" in text
        assert f"{web.name}_monitor" in text

    def test_a_dozen_of_many_observers_and_those_that_are_chosen(
        self, site: Site, server: Server, tmp_path: Path
    ) -> None:
        observers = {f"o{number:02}": f"observe: docs.c{number}" for number in range(20)}
        folder = write_chain(tmp_path / "many", "many", "{docs: {tablets: 2}}", observers)
        give_dag(folder, "many")
        client = site.as_("VIEWER")
        with percolator.connect(server.unix, "many") as db:
            chain = Chain.load(folder, import_functions=False)
            chain.create_tables(db)
            with db.transaction() as t:
                for number in range(4, 20):
                    for row in range(number):
                        t.set("docs", f"r{row}", f"c{number}", b"x")
            record(db, status(db, chain), 3600)
            busy = client.get("/many/plots", headers=PAGE).text
            chosen = client.get("/many/plots?observer=o01&observer=o19&observer=nobody", headers=PAGE).text
        assert _legend(busy) == [f"o{number:02}" for number in range(8, 20)]
        assert "12 of 20 observers" in busy
        assert " checked" not in busy
        assert _legend(chosen) == ["o01", "o19"]
        assert chosen.count(" checked") == 2
        assert "?span=24h&amp;observer=o01&amp;observer=o19&amp;observer=nobody" in chosen


def _plot(page: str, key: str) -> str:
    found = re.search(rf'<figure [^>]*id="plot-{key}".*?</figure>', page, re.DOTALL)
    assert found is not None
    return found[0]


def _values(plot: str) -> Any:
    import json
    from html import unescape

    found = re.search(r'data-values="([^"]*)"', plot)
    assert found is not None
    return json.loads(unescape(found[1]))


def _legend(page: str) -> list[str]:
    found = re.search(r'<div class="legend".*?</div>', page, re.DOTALL)
    assert found is not None
    return re.findall(r"</svg> (\w+)", found[0])


def row_cells(page: str, observer: str) -> list[str]:
    found = re.search(rf'<th [^>]*class="mono">{observer}</th>(.*?)</tr>', page, re.DOTALL)
    assert found is not None
    named = re.findall(r'data-name="([^"]*)" class="n">([^<]*)<', found[1])
    return [text for name, text in named if name != "Oldest"]


class TestPlotting:
    """Axes and curves as numbers."""

    def plot(self, values: Sequence[float | None], form: Any = "count", times: Any = None) -> Any:
        from percolator_core.ui.plotting import Curve, Plot, Span

        times = times or [60.0 * index for index in range(len(values))]
        return Plot("k", "t", "u", form, [Curve("one", 0, values)], Span(times[0], times[-1] or 1, times))

    @pytest.mark.parametrize(
        ("most", "form", "labels"),
        [
            (0, "count", ["0", "1"]),
            (1, "count", ["0", "1"]),
            (3, "count", ["0", "1", "2", "3"]),
            (17, "count", ["0", "5", "10", "15", "20"]),
            (1234, "count", ["0", "500", "1,000", "1,500"]),
            (2.5e9, "count", ["0", "1,000,000,000", "2,000,000,000", "3,000,000,000"]),
            (0.07, "rate", ["0", "0.02", "0.04", "0.06", "0.08"]),
            (50, "age", ["0 s", "15 s", "30 s", "45 s", "60 s"]),
            (7200, "age", ["0 s", "30 min", "60 min", "90 min", "2 h"]),
            (900_000, "age", ["0 s", "4 d", "8 d", "12 d"]),
            (3 * 2**20, "size", ["0 B", "1 MiB", "2 MiB", "3 MiB"]),
        ],
    )
    def test_round_labels_up_to_the_highest_value(self, most: float, form: str, labels: list[str]) -> None:
        plot = self.plot([0, most], form)
        assert [tick.label for tick in plot.ticks] == labels
        assert plot.top >= most
        assert [plot.ticks[0].share, plot.ticks[-1].share] == [1, 0]

    @pytest.mark.parametrize(
        ("length", "labels"),
        [
            (3600, ["22:50", "23:00", "23:10", "23:20", "23:30", "23:40"]),
            (6 * 3600, ["23:00", "22 Nov", "01:00", "02:00", "03:00", "04:00"]),
            (24 * 3600, ["22 Nov", "06:00", "12:00", "18:00"]),
            (40 * 86_400, ["26 Nov", "3 Dec", "10 Dec", "17 Dec", "24 Dec", "31 Dec"]),
        ],
    )
    def test_round_times(self, length: int, labels: list[str]) -> None:
        from percolator_core.ui.plotting import Span

        begin = 1_795_301_000.0  # 2026-11-21 22:43:20
        found = Span(begin, begin + length, []).ticks()
        assert [tick.label for tick in found] == labels
        assert all(0 <= tick.share <= 1 for tick in found)

    def test_a_line_breaks_where_nobody_looked(self) -> None:
        times = [0.0, 60, 120, 600, 660]
        ((_, path),) = self.plot([0, 10, 10, 5, None], times=times).lines()
        assert path == "M0.0 200.0h0L90.9 0.0L181.8 0.0M909.1 100.0h0"

    def test_a_curve_of_nothing_has_no_line(self) -> None:
        assert self.plot([None, None]).lines() == []
        assert self.plot([None, None]).newest() == "-"

    def test_rates_leave_out_what_began_anew(self) -> None:
        from percolator_core.ui.plotting import added, rates

        assert rates([0, 10, 20, 30, 40], [0, 50, 5, None, 10]) == [None, 5, None, None, None]
        assert rates([], []) == []
        assert added([0, 50, 5, None, 10]) == 55
