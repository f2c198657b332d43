"""What a connection makes of answers, errors and breaks, on a scripted connection."""

from __future__ import annotations

import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.backoff import NoBackoff
from redis.connection import UnixDomainSocketConnection
from redis.exceptions import BusyLoadingError, NoScriptError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from percolator_core.errors import PercolatorError, StoreUnavailable
from percolator_core.store.pipeline import Pipeline, Stream
from percolator_core.store.refusals import judge
from percolator_core.store.request import AFTER, BEFORE, SPARE, Exchange, pack

BREAK = RedisConnectionError("broken")


class Script:
    """A stream that answers from a list; what of it means a broken connection, or Ctrl-C, is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.sent: list[bytes] = []
        self.open = False

    def __call__(self) -> Any:
        self.open = True
        return self

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def read(self) -> Any:
        assert self.open, "read from a closed connection"
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException) and (answer is BREAK or not isinstance(answer, RedisError)):
            raise answer
        # A timestamp comes with the catalog's epoch; smaller numbers are counts.
        return [answer, b"7"] if isinstance(answer, int) and answer >= 100 else answer

    def close(self) -> None:
        self.open = False


def wire_with(*answers: Any) -> tuple[Pipeline, Script]:
    script = Script(*answers)
    return Pipeline(script, lambda count: pack((b"STAMPS", count))), script


def read(name: str, stamp: int = BEFORE) -> Exchange:
    return Exchange([(b"GET", name)], stamp)


def telling(told: list[Exchange], exchange: Exchange) -> Exchange:
    """Have the end of each attempt put the exchange into the list."""
    exchange.on_done = told.append
    return exchange


def test_an_attempt_after_a_dial_that_failed_counts() -> None:
    """Its reply is not taken for one behind a refusal, or the command would go out once more."""
    script = Script(b"done")
    dials: list[Exception] = [RedisConnectionError("refused")]

    def dial() -> Any:
        if dials:
            raise dials.pop()
        return script()

    pipeline = Pipeline(dial, lambda count: pack((b"STAMPS", count)))
    exchange = Exchange([(b"INCR", b"n")])
    pipeline.run(exchange)
    assert exchange.trouble is not None
    pipeline.run(exchange)
    assert exchange.done
    assert exchange.result() == [b"done"]
    assert len(script.sent) == 1


def test_a_dial_that_is_put_off_is_told_each_time() -> None:
    """Whoever waits for the exchange would else wait for ever."""
    told: list[Exchange] = []

    def silent() -> Any:
        time.sleep(0.05)
        raise RedisTimeoutError("silent")

    pipeline = Pipeline(silent, lambda count: pack((b"STAMPS", count)))
    exchange = telling(told, Exchange([(b"GET", "a")]))
    for attempt in range(1, 4):
        pipeline.send([exchange])
        assert told == [exchange] * attempt
        assert exchange.trouble is not None


def test_what_is_known_is_not_asked_again_for_a_timestamp_that_is_not_needed() -> None:
    """A commit whose outcome is known must not wait until the store is back."""
    pipeline, _ = wire_with(b"committed", BREAK)
    exchange = Exchange([(b"SET", "a", "b")], SPARE)
    pipeline.run(exchange)
    assert exchange.done
    assert (exchange.result(), exchange.timestamp) == ([b"committed"], 0)
    pipeline, _ = wire_with(b"prewritten", BREAK)
    exchange = Exchange([(b"SET", "a", "b")], AFTER)
    pipeline.run(exchange)
    assert not exchange.done


def test_scripts_are_not_loaded_again_for_a_connection_that_broke() -> None:
    pipeline, _ = wire_with(NoScriptError("NOSCRIPT"), 101, BREAK)
    exchange = read("a")
    found = []
    for _ in range(2):
        pipeline.run(exchange)
        found.append((exchange.missing_script, exchange.needs_pause))
    assert found == [(True, False), (False, True)]


def test_exchanges_of_a_batch_share_a_request_for_timestamps() -> None:
    pipeline, script = wire_with(102, b"a", b"b", b"c", 204)
    first, second, third = read("a"), read("b"), read("c", AFTER)
    pipeline.send([first, second, third])
    pipeline.drain()
    assert [(e.timestamp, e.replies) for e in (first, second, third)] == [
        (101, [b"a"]),
        (102, [b"b"]),
        (204, [b"c"]),
    ]
    assert script.sent[0].count(b"STAMPS") == 2


def test_a_read_that_broke_off_keeps_its_timestamp_and_not_what_was_read_before_it() -> None:
    pipeline, _ = wire_with(101, BREAK, b"a", NoScriptError("NOSCRIPT"), b"early", 300, b"late")
    exchange = read("a")
    pipeline.run(exchange)
    assert not exchange.done
    assert exchange.executed_maybe
    pipeline.run(exchange)
    assert (exchange.timestamp, exchange.replies) == (101, [b"a"])
    other = read("b")
    pipeline.run(other)
    assert not other.done
    assert other.missing_script
    pipeline.run(other)
    assert (other.timestamp, other.replies) == (300, [b"late"])


def test_a_timestamp_in_front_of_a_repeated_command_is_not_kept() -> None:
    """Attempt 1: a prewrite misses its script, the timestamp arrives. Attempt 2: the prewrite is executed,
    the timestamp lost. Were the first kept, the commit would lie below snapshots that did not see its lock.
    """
    pipeline, _ = wire_with(b"ok", NoScriptError("NOSCRIPT"), 100, b"ok", BREAK, 200)
    exchange = Exchange([(b"P", 1), (b"P", 2)], AFTER)
    finished = []
    for _ in range(3):
        pipeline.run(exchange)
        finished.append((exchange.done, list(exchange.replies)[:1]))
    assert finished == [(False, [b"ok"]), (False, [b"ok"]), (True, [b"ok"])]
    assert exchange.timestamp == 200


def test_a_repetition_under_way_does_not_take_the_first_attempts_timestamp() -> None:
    done: list[Exchange] = []
    pipeline, _ = wire_with(NoScriptError("NOSCRIPT"), 100, b"ok", 200)
    exchange = telling(done, Exchange([(b"P", 1)], AFTER))
    pipeline.send([exchange])
    pipeline.receive()
    assert done == [exchange]
    assert exchange.trouble is not None
    # It is sent again while the timestamp of its first attempt is still to come.
    pipeline.send([exchange])
    pipeline.receive()
    assert done == [exchange]
    pipeline.drain()
    assert done == [exchange] * 2
    assert (exchange.timestamp, exchange.replies) == (200, [b"ok"])


def test_an_acknowledgement_speaks_for_its_own_connection_alone() -> None:
    """What was written over the one that broke is written again, so that there is something to wait for."""
    script = Script(b"ok", BREAK, b"ok", 1)
    pipeline = Pipeline(
        script, lambda count: pack((b"STAMPS", count)), acknowledge=lambda _: [(b"WAIT", 1, 100)]
    )
    exchange = Exchange([(b"EVALSHA", b"sha", 1, b"key")], durable=True)
    for done in (False, True):
        pipeline.run(exchange)
        assert exchange.done is done
        assert exchange.executed_maybe
    assert exchange.acknowledged == (0, 1)
    assert script.sent[1] == script.sent[0]


def test_another_server_is_asked_for_everything() -> None:
    """What the first one answered is of no use, but it was executed."""
    first, _ = wire_with(101, b"a", BREAK)
    second, _ = wire_with(202, b"x", b"y")
    exchange = Exchange([(b"GET", "a"), (b"GET", "b")], BEFORE)
    first.run(exchange)
    assert exchange.replies == [b"a"]
    second.run(exchange)
    assert (exchange.timestamp, exchange.replies) == (202, [b"x", b"y"])
    assert exchange.executed_maybe


def test_another_server_acknowledges_for_itself() -> None:
    pipelines = [
        Pipeline(script, lambda count: pack((b"STAMPS", count)), acknowledge=lambda _: [(b"WAIT", 1, 100)])
        for script in (Script(b"ok", 1, BREAK), Script(b"ok", [1, 0], 300))
    ]
    exchange = Exchange([(b"EVALSHA", b"sha", 1, b"key")], AFTER, durable=True)
    pipelines[0].run(exchange)
    assert exchange.acknowledged == (0, 1)
    assert not exchange.timestamp
    pipelines[1].run(exchange)
    assert (exchange.acknowledged, exchange.timestamp) == ((1, 0), 300)


def test_an_error_of_the_oracle_reaches_all_who_asked() -> None:
    pipeline, _ = wire_with(ResponseError("LOADING"), b"x", b"ok", ResponseError("OOM command not allowed"))
    before, after = read("a"), read("b", AFTER)
    pipeline.send([before, after])
    pipeline.drain()
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
    pipeline, script = wire_with(*answers[: position + 1])
    told: list[Exchange] = []
    exchanges = [
        telling(told, Exchange([(b"GET", "a")], BEFORE)),
        telling(told, Exchange([(b"GET", "b1"), (b"GET", "b2")], BEFORE)),
        telling(told, Exchange([(b"GET", "c")], AFTER)),
    ]
    pipeline.send(exchanges)
    with pytest.raises(stop):
        pipeline.drain()
    assert not script.open
    assert pipeline.in_flight() == 0
    # Everybody has been told once: that all is well, or that it has to be repeated.
    assert sorted(map(id, told)) == sorted(map(id, exchanges))
    assert any(not exchange.done for exchange in exchanges)
    script.answers = [b"mine"]
    mine = Exchange([(b"GET", "mine")])
    pipeline.run(mine)
    assert mine.result() == [b"mine"]


def test_an_interruption_while_sending_ends_the_connection() -> None:
    pipeline, script = wire_with(b"a")
    pipeline.send([Exchange([(b"GET", "a")])])
    script.send = lambda _: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[assignment, method-assign]
    other = Exchange([(b"GET", "b")])
    with pytest.raises(KeyboardInterrupt):
        pipeline.send([other])
    assert not script.open
    assert pipeline.in_flight() == 0
    assert other.trouble is not None


def test_what_cannot_be_packed_fails_its_caller_alone() -> None:
    with pytest.raises(UnicodeEncodeError):
        Exchange([(b"HGET", "\ud800")])


def test_failed_replies_in_the_middle_do_not_shift_the_others() -> None:
    pipeline, _ = wire_with(b"1", ResponseError("no"), b"3", b"mine")
    first, second = Exchange([(b"GET", i) for i in range(3)]), read("x", 0)
    pipeline.send([first, second])
    pipeline.drain()
    assert second.result() == [b"mine"]
    with pytest.raises(Exception, match="no"):
        first.result()


class Echo(socketserver.StreamRequestHandler):
    """Answers ``GET name`` with the name, and ``GET loading`` as a server does that loads its data."""

    def handle(self) -> None:
        while self.rfile.readline():
            for _ in range(2):
                self.rfile.readline()
            self.rfile.readline()
            name = self.rfile.readline()
            self.wfile.write(b"-LOADING the dataset\r\n" if name == b"loading\r\n" else b"+" + name)


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "echo")
    with socketserver.ThreadingUnixStreamServer(path, Echo) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield path
        server.shutdown()
        thread.join()


def test_an_error_among_replies_leaves_those_behind_it_to_their_callers(echo: str) -> None:
    """LOADING is a ConnectionError to redis-py, and no reason to hang up: replies behind it are still to
    come, and each belongs to its own caller."""

    kind: Any = UnixDomainSocketConnection  # without an attribute that its base class calls abstract

    def dial() -> Any:
        connection = kind(path=echo, protocol=2, driver_info=None, retry=Retry(NoBackoff(), 0))
        connection.connect()
        return Stream(connection)

    pipeline = Pipeline(dial, lambda count: pack((b"STAMPS", count)))
    batch = [Exchange([(b"GET", name)]) for name in ("a", "loading", "b")]
    pipeline.send(batch)
    pipeline.receive()
    pipeline.receive()
    pipeline.send([Exchange([(b"GET", "c")])])  # while a reply to the first batch is still to come
    pipeline.drain()
    assert [exchange.replies for exchange in batch] == [[b"a"], [], [b"b"]]
    assert isinstance(batch[1].trouble, BusyLoadingError)
    again = Exchange([(b"GET", "d")])
    pipeline.run(again)
    assert again.replies == [b"d"]
    pipeline.close()


def test_a_signal_while_a_command_is_packed() -> None:
    """hiredis would run handlers while it turns numbers into text, and would not notice if one has raised."""
    storm = (
        "import signal, time\n"
        "from percolator_core.store.request import Exchange\n"
        "def bang(*_): raise KeyboardInterrupt\n"
        "signal.signal(signal.SIGALRM, bang)\n"
        "command, hits, until = (b'EVALSHA', b'x', *range(500)), 0, time.monotonic() + 1\n"
        "while time.monotonic() < until:\n"
        "    try:\n"
        "        signal.setitimer(signal.ITIMER_REAL, 0.0002)\n"
        "        while True: Exchange([command])\n"
        "    except KeyboardInterrupt:\n"
        "        hits += 1\n"
        "print(hits)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", storm], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) > 100


@pytest.mark.parametrize("word", ["NOREPLICAS", "READONLY", "BUSY", "MISCONF"])
def test_redis_6_wraps_what_a_script_met(word: str) -> None:
    text = f"Error running script (call to f_0): @user_script:9: @user_script: 9: -{word} Not now"
    verdict = judge(ResponseError(text))
    assert not verdict.executed_maybe
    assert (verdict.failure is None) == (word != "MISCONF")


def test_an_error_in_the_middle_of_a_script_leaves_its_outcome_open() -> None:
    pipeline, _ = wire_with(ResponseError("user_script:9: Script attempted to access a global variable"))
    exchange = Exchange([(b"EVALSHA", b"x", 0)])
    pipeline.run(exchange)
    assert exchange.executed_maybe
    with pytest.raises(PercolatorError, match="the store answered"):
        exchange.result()
