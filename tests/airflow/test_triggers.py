"""Triggers: one event when a chain has pending work, and one when it is idle."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from percolator_core import StoreUnavailable, connect
from percolator_core.admin.demand import Demand, demand
from tests.airflow.project import CONN_ID, Project, project_with_store, set_connection
from tests.servers.plain import free_port


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    with project_with_store(tmp_path, monkeypatch) as words:
        words.activate()
        yield words


def demand_of(due: int, *, backlog: int | None = None, workers: int = 0, drains: int = 0) -> Demand:
    unattended = 0 if workers else due
    return Demand(due if backlog is None else backlog, due, 1.0 if due else None, workers, drains, unattended)


def rewrite(path: Path, text: str) -> None:
    """Replace a file at once: a reader finds no half of it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


class TestEdges:
    """Events are due when work becomes pending, and then at intervals."""

    def events(self, *looks: tuple[float, Demand], remind: float = 30) -> list[float]:
        from percolator_airflow.triggers import Edges

        edges, sent = Edges(remind), []
        for clock, now in looks:
            if edges.wants_event(now, clock):
                edges.sent(clock)
                sent.append(clock)
        return sent

    def test_one_event_however_many_cells(self) -> None:
        assert self.events((0, demand_of(0)), (1, demand_of(1)), (2, demand_of(1000)), (3, demand_of(5))) == [
            1
        ]

    def test_another_one_when_it_was_idle_between(self) -> None:
        assert self.events((0, demand_of(1)), (1, demand_of(0)), (2, demand_of(1))) == [0, 2]

    def test_reminds_while_nobody_comes(self) -> None:
        assert self.events(*((clock, demand_of(1)) for clock in range(0, 100, 10))) == [0, 30, 60, 90]

    def test_none_while_a_worker_or_a_drain_is_at_it(self) -> None:
        assert self.events((0, demand_of(1, workers=1)), (50, demand_of(1, drains=1))) == []

    def test_one_for_what_no_worker_takes(self) -> None:
        """A worker for some observers, for example for one that needs a machine of its own."""
        partly = Demand(5, 5, 1.0, 1, 0, 3)
        assert self.events((0, Demand(2, 2, 1.0, 1, 0, 0)), (1, partly), (2, partly)) == [1]

    def test_one_when_the_worker_is_gone(self) -> None:
        assert self.events((0, demand_of(1, workers=1)), (1, demand_of(1))) == [1]

    def test_none_for_what_a_drain_leaves_between_two_of_its_observers(self) -> None:
        leased = demand_of(0, backlog=1, drains=1)
        assert self.events((0, demand_of(1)), (5, leased), (6, demand_of(1))) == [0]

    def test_one_for_what_comes_after_a_drain(self) -> None:
        assert self.events((0, demand_of(1)), (5, demand_of(0, drains=1)), (6, demand_of(1))) == [0, 6]

    def test_none_for_cells_that_wait_for_a_retry(self) -> None:
        assert self.events((0, demand_of(0, backlog=3)), (1, demand_of(0, backlog=3))) == []


async def first(events: AsyncIterator[Any], seconds: float = 60) -> Any:
    async with asyncio.timeout(seconds):
        return (await anext(events)).payload


class TestDirtyTrigger:
    def make(self, words: Project, **arguments: Any) -> Any:
        from percolator_airflow import DirtyTrigger

        return DirtyTrigger(words.chain, CONN_ID, **{"poll": 0.02, "settle": 0.02, **arguments})

    def test_tells_of_cells_that_come(self, words: Project) -> None:
        async def wait() -> dict[str, Any]:
            trigger = self.make(words)
            events = trigger.run()
            coming = asyncio.create_task(first(events))
            await asyncio.sleep(0.1)
            assert not coming.done()
            await asyncio.to_thread(words.put, "a", "b")
            try:
                return dict(await coming)
            finally:
                await events.aclose()
                await trigger.cleanup()

        event = asyncio.run(wait())
        assert event["chain"] == "words"
        assert 1 <= event["due"] <= event["backlog"] <= 2
        assert event["oldest"] >= 0
        assert json.loads(json.dumps(event)) == event

    def test_again_after_a_drain(self, words: Project) -> None:
        words.put("a")

        async def wait() -> tuple[Any, Any]:
            trigger = self.make(words)
            events = trigger.run()
            before = await first(events)
            await asyncio.to_thread(words.drain)
            coming = asyncio.create_task(first(events))
            await asyncio.sleep(0.3)
            assert not coming.done()
            await asyncio.to_thread(words.put, "b")
            after = await coming
            await trigger.cleanup()
            return before, after

        assert [event["due"] for event in asyncio.run(wait())] == [1, 1]

    def test_a_store_that_is_away_is_waited_for(
        self, words: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from percolator_airflow import triggers

        monkeypatch.setattr(triggers, "_PAUSE", 0.05)
        words.put("a")
        right = f"embedded:{words.url.partition(':')[2]}"
        set_connection(monkeypatch, host="127.0.0.1", port=free_port())
        told: list[str] = []

        async def wait() -> Any:
            trigger = self.make(words)
            monkeypatch.setattr(
                type(trigger), "log", type("Log", (), {"warning": told_by(told), "info": told_by(told)})()
            )
            coming = asyncio.create_task(first(trigger.run()))
            while not told:
                await asyncio.sleep(0.02)
            assert not coming.done()
            set_connection(monkeypatch, host=right)  # the connection was mended
            event = await coming
            await trigger.cleanup()
            return event

        assert asyncio.run(wait())["due"] == 1
        assert "127.0.0.1" in told[0]
        assert "answers again" in told[-1]
        assert len(told) == 2

    def test_after_trouble_the_connection_is_read_anew(
        self, words: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from percolator_airflow import triggers

        monkeypatch.setattr(triggers, "_PAUSE", 0.05)
        other = Project(words.folder, f"embedded:{tmp_path}/other", words.module)
        moved = threading.Event()

        def look(db: Any, chain: Any) -> Demand:
            if moved.is_set():
                moved.clear()
                raise StoreUnavailable("it was moved")
            return demand(db, chain)

        monkeypatch.setattr(triggers, "demand", look)

        async def wait() -> Any:
            trigger = self.make(words)
            coming = asyncio.create_task(first(trigger.run()))
            await asyncio.sleep(0.2)
            set_connection(monkeypatch, host=other.url)
            moved.set()
            event = await coming
            await trigger.cleanup()
            return event

        with other.connect():
            other.activate()
            other.put("a", "b", "c")
            assert asyncio.run(wait())["due"] == 3

    def test_a_connection_that_is_changed_is_followed_although_the_old_store_answers(
        self, words: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from percolator_airflow import triggers

        monkeypatch.setattr(triggers, "RECONNECT", 0.0)
        opened: list[str] = []

        def noted(**given: Any) -> Any:
            opened.append(given["url"])
            return connect(**given)

        monkeypatch.setattr(triggers, "connect", noted)
        other = Project(words.folder, f"embedded:{tmp_path}/other", words.module)

        async def wait() -> Any:
            trigger = self.make(words)
            coming = asyncio.create_task(first(trigger.run()))
            await asyncio.sleep(0.2)
            assert opened == [words.url]
            set_connection(monkeypatch, host=other.url)
            event = await coming
            await trigger.cleanup()
            return event

        with other.connect():
            other.activate()
            other.put("a", "b", "c")
            assert asyncio.run(wait())["due"] == 3
        assert opened == [words.url, other.url]

    def test_a_chain_that_breaks_is_told_once_and_read_again_when_it_is_mended(
        self, words: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from percolator_airflow import triggers

        monkeypatch.setattr(triggers, "_PAUSE", 0.02)
        monkeypatch.setattr(triggers, "RELOAD", 0.1)
        path = Path(words.chain, "first.yaml")
        text = path.read_text()
        told: list[str] = []

        async def wait() -> Any:
            trigger = self.make(words)
            monkeypatch.setattr(
                type(trigger), "log", type("Log", (), {"warning": told_by(told), "info": told_by(told)})()
            )
            coming = asyncio.create_task(first(trigger.run()))
            await asyncio.sleep(0.1)
            rewrite(path, text.replace("docs.text", "dosc.text"))
            while not told:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.5)
            rewrite(path, text)
            await asyncio.to_thread(words.put, "a")
            event = await coming
            await trigger.cleanup()
            return event

        assert asyncio.run(wait())["due"] == 1
        assert len(told) == 2, told
        assert "dosc" in told[0]

    def test_a_connection_that_cannot_even_be_closed_does_not_end_it(
        self, words: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from percolator_airflow import triggers

        monkeypatch.setattr(triggers, "_PAUSE", 0.02)
        words.put("a")
        troubles = iter([StoreUnavailable("away")])

        def look(db: Any, chain: Any) -> Demand:
            for trouble in troubles:
                raise trouble
            return demand(db, chain)

        async def closing(watch: Any) -> None:
            watch.db = None
            raise OSError("the embedded server's folder is gone")

        monkeypatch.setattr(triggers, "demand", look)
        monkeypatch.setattr(triggers.ChainWatch, "close", closing)
        assert asyncio.run(first(self.make(words).run()))["due"] == 1

    def test_a_chain_that_grows_an_observer_is_read_again(
        self, words: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from percolator_airflow import triggers

        monkeypatch.setattr(triggers, "RELOAD", 0.0)
        watch = triggers.ChainWatch(words.chain, CONN_ID, None)

        async def names() -> set[str]:
            await watch.look()
            assert watch.folder is not None
            return set(watch.folder.declared.observers)

        async def both() -> tuple[set[str], set[str]]:
            before = await names()
            text = Path(words.chain, "first.yaml").read_text()
            Path(words.chain, "third.yaml").write_text(
                text.replace("observer: first", "observer: third").replace("docs.seen", "docs.also")
            )
            after = await names()
            await watch.close()
            return before, after

        assert asyncio.run(both()) == ({"first", "second"}, {"first", "second", "third"})

    def test_is_made_again_from_what_airflow_stores(self, words: Project) -> None:
        from airflow._shared.module_loading import import_string
        from airflow.serialization.encoders import encode_trigger
        from airflow.triggers.base import BaseEventTrigger

        trigger = self.make(words, namespace="other")
        path, arguments = trigger.serialize()
        assert arguments == {
            "chain": words.chain,
            "conn_id": CONN_ID,
            "namespace": "other",
            "poll": 0.02,
            "settle": 0.02,
            "remind": 30.0,
        }
        again = import_string(path)(**arguments)
        assert again.serialize() == (path, arguments)
        assert isinstance(again, BaseEventTrigger)
        assert json.dumps(encode_trigger(trigger))
        assert BaseEventTrigger.hash(path, arguments) == BaseEventTrigger.hash(*again.serialize())


def told_by(told: list[str]) -> Any:
    return lambda _self, message, *values: told.append(message % values)


class TestIdleTrigger:
    def wait(self, words: Project, **arguments: Any) -> Any:
        from percolator_airflow.triggers import IdleTrigger

        async def wait() -> Any:
            trigger = IdleTrigger(words.chain, **{"conn_id": CONN_ID, "poll": 0.02, **arguments})
            coming = asyncio.create_task(first(trigger.run()))
            try:
                await asyncio.sleep(0.2)
                if not coming.done():
                    await asyncio.to_thread(words.drain)
                return await coming
            finally:
                await trigger.cleanup()

        return asyncio.run(wait())

    def test_waits_for_a_drain(self, words: Project) -> None:
        words.put("a")
        assert self.wait(words) == {"chain": "words", "backlog": 0, "due": 0, "oldest": None}

    def test_what_cannot_be_ends_it_with_a_sentence(self, words: Project) -> None:
        assert "there is no connection 'nowhere'" in self.wait(words, conn_id="nowhere")["error"]


def test_numbers_that_cannot_be(airflow_home: Path) -> None:
    from percolator_airflow import DirtyTrigger

    with pytest.raises(ValueError, match="poll is a number of seconds above 0"):
        DirtyTrigger("chain", poll=0)
