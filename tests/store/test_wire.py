"""What a connection makes of answers, errors and breaks, on a scripted connection."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError

from percolator_core.errors import StoreUnavailable
from percolator_core.store.exchange import AFTER, BEFORE, Exchange
from percolator_core.store.wire import Wire

BREAK = RedisConnectionError("broken")


class Script:
    """A connection that answers from a list; an exception in it is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.sent: list[bytes] = []
        self.open = False

    def __call__(self) -> Any:
        self.open = True
        return self

    def send_packed_command(self, chunks: list[bytes], check_health: bool = True) -> None:
        self.sent.append(b"".join(chunks))

    def read_response(self, **_: Any) -> Any:
        assert self.open, "read from a closed connection"
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def disconnect(self) -> None:
        self.open = False


def wire_with(*answers: Any) -> tuple[Wire, Script]:
    script = Script(*answers)
    return Wire(script, lambda count: (b"STAMPS", count)), script


def read(name: str, stamp: int = BEFORE) -> Exchange:
    return Exchange([(b"GET", name)], stamp)


def test_exchanges_of_a_batch_share_a_request_for_timestamps() -> None:
    wire, script = wire_with(102, b"a", b"b", b"c", 204)
    first, second, third = read("a"), read("b"), read("c", AFTER)
    wire.send([first, second, third])
    wire.drain()
    assert [(e.timestamp, e.replies) for e in (first, second, third)] == [
        (101, [b"a"]),
        (102, [b"b"]),
        (204, [b"c"]),
    ]
    assert script.sent[0].count(b"STAMPS") == 2


def test_a_read_that_broke_off_keeps_its_timestamp_and_not_what_was_read_before_it() -> None:
    wire, _ = wire_with(101, BREAK, b"a", NoScriptError("NOSCRIPT"), b"early", 300, b"late")
    exchange = read("a")
    wire.run(exchange)
    assert not exchange.done
    assert exchange.executed_maybe
    wire.run(exchange)
    assert (exchange.timestamp, exchange.replies) == (101, [b"a"])
    other = read("b")
    wire.run(other)
    assert not other.done
    assert other.missing_script
    wire.run(other)
    assert (other.timestamp, other.replies) == (300, [b"late"])


def test_a_timestamp_in_front_of_a_repeated_command_is_not_kept() -> None:
    """Attempt 1: a prewrite misses its script, the timestamp arrives. Attempt 2: the prewrite is executed,
    the timestamp lost. Were the first kept, the commit would lie below snapshots that did not see its lock.
    """
    wire, _ = wire_with(b"ok", NoScriptError("NOSCRIPT"), 100, b"ok", BREAK, 200)
    exchange = Exchange([(b"P", 1), (b"P", 2)], AFTER)
    finished = []
    for _ in range(3):
        wire.run(exchange)
        finished.append((exchange.done, list(exchange.replies)[:1]))
    assert finished == [(False, [b"ok"]), (False, [b"ok"]), (True, [b"ok"])]
    assert exchange.timestamp == 200


def test_a_repetition_under_way_does_not_take_the_first_attempts_timestamp() -> None:
    done: list[Exchange] = []
    wire, _ = wire_with(NoScriptError("NOSCRIPT"), 100, b"ok", 200)
    exchange = Exchange([(b"P", 1)], AFTER, done.append)
    wire.send([exchange])
    wire.receive()
    assert done == [exchange]
    assert exchange.trouble is not None
    # It is sent again while the timestamp of its first attempt is still to come.
    wire.send([exchange])
    wire.receive()
    assert done == [exchange]
    wire.drain()
    assert done == [exchange] * 2
    assert (exchange.timestamp, exchange.replies) == (200, [b"ok"])


def test_an_error_of_the_oracle_reaches_all_who_asked() -> None:
    wire, _ = wire_with(ResponseError("LOADING"), b"x", b"ok", ResponseError("OOM command not allowed"))
    before, after = read("a"), read("b", AFTER)
    wire.send([before, after])
    wire.drain()
    assert not before.done
    assert before.replies == []
    with pytest.raises(StoreUnavailable, match="out of memory"):
        after.result()


@pytest.mark.parametrize("position", range(6))
@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interruption_ends_the_connection(position: int, stop: type[BaseException]) -> None:
    """No reply that is still to come may go to the next caller."""
    answers: list[Any] = [102, b"a", b"b1", b"b2", b"c", 203]
    answers[position] = stop()
    wire, script = wire_with(*answers[: position + 1])
    told: list[Exchange] = []
    exchanges = [
        Exchange([(b"GET", "a")], BEFORE, told.append),
        Exchange([(b"GET", "b1"), (b"GET", "b2")], BEFORE, told.append),
        Exchange([(b"GET", "c")], AFTER, told.append),
    ]
    wire.send(exchanges)
    with pytest.raises(stop):
        wire.drain()
    assert not script.open
    assert wire.in_flight == 0
    # Everybody has been told once: that all is well, or that it has to be repeated.
    assert sorted(map(id, told)) == sorted(map(id, exchanges))
    assert any(not exchange.done for exchange in exchanges)
    script.answers = [b"mine"]
    mine = Exchange([(b"GET", "mine")])
    wire.run(mine)
    assert mine.result() == [b"mine"]


def test_an_interruption_while_sending_ends_the_connection() -> None:
    wire, script = wire_with(b"a")
    wire.send([Exchange([(b"GET", "a")])])
    script.send_packed_command = lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    other = Exchange([(b"GET", "b")])
    with pytest.raises(KeyboardInterrupt):
        wire.send([other])
    assert not script.open
    assert wire.in_flight == 0
    assert other.trouble is not None


def test_what_cannot_be_packed_fails_its_caller_alone() -> None:
    with pytest.raises(UnicodeEncodeError):
        Exchange([(b"HGET", "\ud800")])


def test_failed_replies_in_the_middle_do_not_shift_the_others() -> None:
    wire, _ = wire_with(b"1", ResponseError("no"), b"3", b"mine")
    first, second = Exchange([(b"GET", i) for i in range(3)]), read("x", 0)
    wire.send([first, second])
    wire.drain()
    assert second.result() == [b"mine"]
    with pytest.raises(Exception, match="no"):
        first.result()
