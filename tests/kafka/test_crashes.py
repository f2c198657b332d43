"""Nothing is lost, and nothing is repeated: crashes at each step, restarts, rebalances, lost records."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from percolator_core import Database, Transaction, connect
from percolator_core.errors import CommitUndetermined, ConfigurationError, StoreUnavailable
from percolator_core.kafka import ConsumptionProgress, ConsumptionStopped, PartitionInUse, consume
from percolator_core.kafka import consumer as module
from percolator_core.kafka.apply import STATE, Applier, Position
from percolator_core.kafka.records import Converter, Message
from tests.kafka.conftest import Shop
from tests.servers.fixtures import BINARIES
from tests.servers.kafka import broker
from tests.servers.plain import Server, until

GROUP = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
"""A member that is gone is noticed after six seconds."""


class Killed(BaseException):
    """A crash: nothing of the library catches it."""


@contextmanager
def crash(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, when: str, call: int = 1
) -> Iterator[None]:
    """Crash ``before`` or ``after`` one call of a method."""
    original = getattr(owner, method)
    calls = [0]

    def crashing(*arguments: Any, **settings: Any) -> Any:
        calls[0] += 1
        if calls[0] == call and when == "before":
            raise Killed
        result = original(*arguments, **settings)
        if calls[0] == call:
            raise Killed
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, crashing)
        with pytest.raises(Killed):
            yield


def send_turns(shop: Shop, first: int, count: int) -> None:
    """Send records of a few keys. Each has a new number, and sometimes follows a tombstone."""
    for turn in range(first, first + count):
        key = f"k{turn % 7}"
        if turn % 5 == 0:
            shop.kafka.send(shop.topic, key, None, turn % 7 % 4)
        shop.kafka.send(shop.topic, key, {"turn": turn}, turn % 7 % 4)
    shop.kafka.flush()


def must_have_turns(shop: Shop, count: int) -> None:
    """The rows have the last numbers, and each row had rising numbers: no record was applied twice."""
    expected = {f"k{turn % 7}": {"turn": str(turn)} for turn in range(count)}
    assert shop.rows() == expected
    for row in expected:
        values = [int(one.value) for one in shop.db.history("items", row, "turn") if one.value is not None]
        assert values == sorted(set(values), reverse=True), row


def must_have_one_commit(shop: Shop) -> None:
    """Each value of a row was committed together with the offset of its partition."""
    for partition in range(4):
        stored = {one.commit_ts for one in shop.db.history(STATE, shop.position(partition), "position")}
        for key in range(7):
            if key % 4 == partition:
                written = {one.commit_ts for one in shop.db.history("items", f"k{key}", "turn")}
                assert written <= stored, (partition, key)


STEPS = [(Applier, "take_over"), (Applier, "apply"), (Applier, "_write"), (Transaction, "commit")]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("owner", "method"), STEPS)
def test_a_crash_at_each_step(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, when: str
) -> None:
    shop.consume()
    for number in range(4):
        send_turns(shop, 40 * number, 40)
        # The first four commits take over the partitions.
        with crash(monkeypatch, owner, method, when, 1 + number + 4 * (owner is Transaction)):
            shop.consume()
    shop.consume()
    must_have_turns(shop, 160)
    # A batch that is applied again, and is longer then, leaves the same values behind.
    must_have_one_commit(shop)


def test_records_that_are_delivered_again_write_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    send_turns(shop, 0, 60)
    shop.consume()
    before, offsets = list(shop.db.history("items", "k1", "turn")), shop.offsets()
    original = Applier.take_over

    def from_the_beginning(self: Applier, *arguments: Any, **settings: Any) -> int:
        original(self, *arguments, **settings)
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(Applier, "take_over", from_the_beginning)
        assert shop.consume().read == 0
        assert (list(shop.db.history("items", "k1", "turn")), shop.offsets()) == (before, offsets)
        send_turns(shop, 60, 20)
        assert shop.consume().read == 24
    must_have_turns(shop, 80)


def test_a_commit_with_an_unknown_outcome_is_not_repeated(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_turns(shop, 0, 60)
    original = Database.run
    calls = [0]

    def lossy(self: Database, fn: Any, attempts: int = 10) -> Any:
        result = original(self, fn, attempts)
        calls[0] += 1
        if calls[0] % 2:
            raise CommitUndetermined(1)
        return result

    monkeypatch.setattr(Database, "run", lossy)
    shop.consume()
    must_have_turns(shop, 60)


def test_the_rows_and_their_offset_are_one_transaction(shop: Shop) -> None:
    send_turns(shop, 0, 40)
    shop.send(("k0", b"bad"), partition=0)
    shop.consume()
    must_have_one_commit(shop)
    [(aside, _)] = shop.db.snapshot().scan("kafka_aside")
    [bad] = shop.db.history("kafka_aside", aside, "reason")
    assert bad.commit_ts in {one.commit_ts for one in shop.db.history(STATE, shop.position(0), "position")}


def test_a_killed_process_is_continued_by_another(shop: Shop) -> None:
    program = (
        "import sys, percolator_core\n"
        "from percolator_core.kafka import consume\n"
        "url, namespace, servers, topic, name = sys.argv[1:]\n"
        "db = percolator_core.connect(url, namespace)\n"
        "consume(db, servers, topic, 'items', name=name)\n"
    )
    command = [sys.executable, "-c", program, shop.url, shop.db.namespace, shop.kafka.servers, shop.topic]
    command.append(shop.name)
    sent = 0
    child = subprocess.Popen(command)
    try:
        send_turns(shop, 0, 50)
        until(lambda: len(shop.rows()) == 7)
        for sent in range(50, 400, 10):
            send_turns(shop, sent, 10)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    shop.consume()
    must_have_turns(shop, sent + 10)


# Several processes.


def test_members_share_the_partitions_and_take_over(shop: Shop) -> None:
    shared: dict[str, int] = {}
    with shop.following(settings=GROUP, progress=lambda now: shared.update(one=now.partitions)):
        until(lambda: shared == {"one": 4})
        send_turns(shop, 0, 60)
        until(lambda: sum(shop.offsets()) == 72)
        with shop.following(settings=GROUP, progress=lambda now: shared.update(two=now.partitions)):
            until(lambda: shared == {"one": 2, "two": 2})
            send_turns(shop, 60, 60)
            until(lambda: sum(shop.offsets()) == 144)
        until(lambda: shared["one"] == 4)
        send_turns(shop, 120, 60)
        until(lambda: sum(shop.offsets()) == 216)
    must_have_turns(shop, 180)


def test_a_process_that_was_replaced_cannot_write(shop: Shop) -> None:
    shop.consume()
    db, topic = shop.db, shop.topic
    first, second = (
        Applier(db, shop.name, topic, "items", cluster_of(shop), owner, Converter(topic, None, None), None)
        for owner in ("first", "second")
    )
    records = [Message(n, b"k", b'{"n": %d}' % n) for n in range(4)]
    assert first.take_over(0, 0, 10, reset=False) == 0
    first.apply(0, records[:2])
    assert second.take_over(0, 0, 10, reset=False) == 2
    with pytest.raises(
        PartitionInUse, match=f"another process has taken over {shop.position(0)}: let it go on"
    ):
        first.apply(0, records[2:])
    assert shop.rows() == {"k": {"n": "1"}}
    second.apply(0, records)
    assert shop.rows() == {"k": {"n": "3"}}
    assert len(db.history("items", "k", "n")) == 2


def cluster_of(shop: Shop) -> str | None:
    found = Position.of(shop.db.snapshot(), shop.position(0))
    assert found is not None
    return found.cluster


def test_a_member_that_was_replaced_joins_again(shop: Shop) -> None:
    with capture_logs() as logs, shop.following(settings=GROUP):
        send_turns(shop, 0, 60)
        until(lambda: sum(shop.offsets()) == 72)
        shop.consume()  # takes over all partitions
        send_turns(shop, 60, 60)
        until(lambda: sum(shop.offsets()) == 144)
    assert any("has taken over" in one.get("error", "") for one in logs)
    must_have_turns(shop, 120)


# Lost records.


def test_a_topic_that_was_truncated_below_the_stored_offset(shop: Shop) -> None:
    shop.send(("a", {"n": 1}), ("b", {"n": 2}), partition=1)
    shop.consume()
    shop.send(("c", {"n": 3}), partition=1)
    shop.kafka.truncate(shop.topic, 1)
    before = shop.rows()
    message = (
        rf"partition 1 of {shop.topic} has lost records, records 2 to \d+ were deleted .*: .* by --reset"
    )
    for _ in range(2):
        with pytest.raises(ConsumptionStopped, match=message):
            shop.consume()
    assert (shop.rows(), shop.offsets()[1]) == (before, 2)
    report = shop.consume(reset=True)
    assert 0 < report.read <= 12
    assert set(shop.rows()) == {"a", "b", "large"}
    assert shop.offsets()[1] == 15


def test_a_truncation_while_it_reads(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.send(*((f"k{n}", {"n": n}) for n in range(20)), partition=1)
    original = Applier.take_over

    def too_slow(self: Applier, partition: int, *bounds: int, reset: bool) -> int:
        offset = original(self, partition, *bounds, reset=reset)
        if partition == 1:
            monkeypatch.setattr(Applier, "take_over", original)
            shop.kafka.truncate(shop.topic, 1)
        return offset

    monkeypatch.setattr(Applier, "take_over", too_slow)
    with pytest.raises(ConsumptionStopped, match=r"records 0 to \d+ were deleted before they were read"):
        shop.consume()


def test_a_topic_that_ends_before_the_stored_offset_and_another_cluster(shop: Shop) -> None:
    shop.send(("a", {"n": 1}), partition=1)
    shop.consume()
    row = shop.position(1)
    stored = Position.of(shop.db.snapshot(), row)
    assert stored is not None

    def store(**changes: Any) -> None:
        moved = Position(**{"offset": 1, "cluster": stored.cluster, "table": "items", "owner": ""} | changes)
        shop.db.run(lambda t: t.set(STATE, row, "position", moved.to_bytes()))

    store(offset=9)
    with pytest.raises(
        ConsumptionStopped, match="it ends at 1, before the stored offset 9, as after it was made"
    ):
        shop.consume()
    assert shop.consume(reset=True).unchanged == 1
    store(cluster="other")
    with pytest.raises(ConfigurationError, match=r"those of the cluster other, .*: use another name"):
        shop.consume(reset=True)


# Failures of the servers.


def test_a_broker_that_stops_answering_for_a_while(shop: Shop) -> None:
    with broker() as (process, kafka):
        other = Shop(shop.db, shop.url, kafka, kafka.topic())
        settings = {"socket.timeout.ms": "1000", "reconnect.backoff.max.ms": "200", **GROUP}
        with capture_logs() as logs, other.following(settings=settings):
            send_turns(other, 0, 20)
            until(lambda: sum(other.offsets()) == 24)
            process.send_signal(signal.SIGSTOP)
            until(lambda: any("interrupted" in one["event"] for one in logs))
            process.send_signal(signal.SIGCONT)
            send_turns(other, 20, 20)
            until(lambda: sum(other.offsets()) == 48)
        must_have_turns(other, 40)


def test_a_broker_that_is_gone_is_reported(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ANSWER", 1.0)
    with pytest.raises(StoreUnavailable, match=r"Kafka cannot be reached: .*; check its address"):
        consume(shop.db, "127.0.0.1:1", "topic", "items", name="shop", once=True)
    with broker() as (process, kafka):
        other = Shop(shop.db, shop.url, kafka, kafka.topic())
        send_turns(other, 0, 20)

        def kill(now: ConsumptionProgress) -> None:
            if now.read == 24:
                process.kill()

        with pytest.raises(StoreUnavailable, match="Kafka cannot be reached"):
            other.consume(once=False, patience=1.0, settings=GROUP, progress=kill)
    must_have_turns(other, 20)


@pytest.mark.skipif("system" not in BINARIES, reason="NOT TESTED: no redis-server on the path")
def test_the_store_stops_while_records_come(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Server(BINARIES["system"], "--appendonly", "yes", "--appendfsync", "always")
    original = Applier.apply
    calls = [0]

    def stopping(self: Applier, *arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            store.kill()
            threading.Timer(0.3, store.start).start()
        return original(self, *arguments)

    monkeypatch.setattr(Applier, "apply", stopping)
    try:
        with connect(store.unix, shop.db.namespace, patience=0.05) as db:
            shop.db = db
            db.create_table("items", tablets=2)
            send_turns(shop, 0, 80)
            shop.consume()
            must_have_turns(shop, 80)
    finally:
        store.close()


# All of it together.


@pytest.mark.parametrize("seed", range(2))
def test_a_writer_crashes_and_restarts(shop: Shop, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(module, "_BATCH_RECORDS", 20)

    def write() -> None:
        for first in range(0, 600, 10):
            send_turns(shop, first, 10)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while writer.is_alive():
            point = rng.choice(STEPS)
            original = getattr(*point)
            try:
                with crash(monkeypatch, *point, rng.choice(["before", "after"]), rng.randrange(1, 9)):
                    shop.consume()
            except pytest.fail.Exception:
                assert getattr(*point) is original  # it had caught up before the crash
    finally:
        writer.join()
    shop.consume()
    must_have_turns(shop, 600)
