"""Whatever breaks and whenever: what a finished exchange holds was answered in the order that it promises.

A scripted server executes what it is sent at once and notes when. Connections break, while sending or between
any two replies, and commands are refused; the exchanges are sent again, over this connection or another one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import hiredis
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.exceptions import AskError, BusyLoadingError, ClusterDownError, NoScriptError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError

from percolator_core.store.pipeline import Pipeline
from percolator_core.store.request import AFTER, BEFORE, NONE, Exchange, pack

REFUSALS = [
    NoScriptError("NOSCRIPT"),
    BusyLoadingError("loading"),
    TryAgainError("try again"),
    ClusterDownError("down"),
    AskError("1 127.0.0.1:1"),
]


class Executed(NamedTuple):
    """One execution: when, over which connection, and of what."""

    at: int
    connection: int
    command: tuple[bytes, ...]


@dataclass
class Server:
    """Servers with one clock, whose replies tell what was executed and when."""

    draw: Any
    log: list[Executed] = field(default_factory=list)
    connections: int = 0
    calm: bool = False

    def happens(self) -> bool:
        return not self.calm and bool(self.draw(st.integers(0, 7)) == 7)

    def execute(self, connection: int, command: tuple[bytes, ...]) -> Any:
        done = Executed(len(self.log) + 1, connection, command)
        self.log.append(done)
        if command[0] == b"STAMPS":
            return [done.at * 1000, None]
        if command[0] == b"WAIT":
            return [done.at, connection]
        return done


def dial(server: Server) -> Any:
    if server.happens():
        raise RedisConnectionError("while dialling")
    return Connection(server)


def dial_and_keep(server: Server, connections: list[Any]) -> Any:
    """Dial, and add the connection to those that the test has."""
    connections.append(dial(server))
    return connections[-1]


class Connection:
    def __init__(self, server: Server) -> None:
        server.connections += 1
        self.server = server
        self.number = server.connections
        self.replies: deque[Any] = deque()
        self.open = True

    def send(self, data: bytes) -> None:
        assert self.open
        reader = hiredis.Reader()
        reader.feed(data)
        while (command := reader.gets()) is not False:
            if self.server.happens():
                raise RedisConnectionError("while sending")
            if self.server.happens():
                self.replies.append(self.server.draw(st.sampled_from(REFUSALS)))
            else:
                self.replies.append(self.server.execute(self.number, tuple(command)))

    def read(self) -> Any:
        assert self.open
        if self.server.happens():
            raise RedisConnectionError("while reading")
        return self.replies.popleft()

    def ready(self) -> bool:
        return True

    def close(self) -> None:
        self.open = False


kinds = st.lists(
    st.tuples(st.sampled_from([NONE, BEFORE, AFTER]), st.booleans(), st.integers(0, 3)),
    min_size=1,
    max_size=4,
)


def check(exchange: Exchange, number: int, server: Server) -> None:
    replies: list[Executed] = exchange.replies
    mine = [done for done in server.log if done.command[:2] == (b"DO", b"%d" % number)]
    # Every command was answered once, in its place.
    assert [done.command[2] for done in replies] == [b"%d" % place for place in range(len(exchange.packed))]
    assert all(done in mine for done in replies)
    assert all(one.at < other.at for one, other in pairwise(replies))
    stamp = exchange.timestamp and -(-exchange.timestamp // 1000)
    if exchange.stamp == BEFORE:
        assert all(stamp < done.at for done in replies)
    if exchange.stamp == AFTER:
        assert all(done.at < stamp for done in mine), "a command was executed behind the timestamp"
    if exchange.durable:
        assert exchange.acknowledged is not None
        at, connection = exchange.acknowledged
        assert all(done.connection == connection and done.at < at for done in replies)
    if len(exchange.packed) == 1 and not exchange.executed_maybe and exchange.stamp != BEFORE:
        # The commands on which an outcome hangs go alone.
        assert len(mine) == 1, "executed twice, and not told"


@settings(max_examples=400, deadline=None)
@given(st.data(), kinds, st.booleans())
def test_a_finished_exchange_holds_what_it_promises(
    data: st.DataObject, kinds: list[tuple[int, bool, int]], unawaited: bool
) -> None:
    server = Server(data.draw)

    def pipeline() -> Pipeline:
        return Pipeline(
            lambda: dial(server),
            lambda count: pack((b"STAMPS", count)),
            acknowledge=lambda key: [(b"SET", key), (b"WAIT", 1)],
        )

    pipelines = [pipeline(), pipeline()]
    exchanges = [
        Exchange(
            [(b"DO", number, place, b"key") for place in range(count)], stamp, durable=durable and count > 0
        )
        for number, (stamp, durable, count) in enumerate(kinds)
    ]
    for attempt in range(60):
        server.calm = attempt > 30
        left = [exchange for exchange in exchanges if not exchange.done]
        if not left:
            break
        chosen = pipelines[data.draw(st.integers(0, 1))] if not server.calm else pipelines[0]
        if unawaited:
            chosen.send_unawaited(Exchange([(b"DO", 99, attempt)]))
        chosen.send(left)
        chosen.drain()
        assert not any(exchange.under_way for exchange in exchanges)
    for number, exchange in enumerate(exchanges):
        assert exchange.done
        check(exchange, number, server)
    stamps = [exchange.timestamp for exchange in exchanges if exchange.stamp != NONE]
    assert len(set(stamps)) == len(stamps)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_what_another_server_answered_is_forgotten(data: st.DataObject) -> None:
    """The half of an exchange that one server has may never come to its successor."""
    server = Server(data.draw, calm=True)
    dialled: list[Any] = []
    first, second = (
        Pipeline(
            lambda: dial_and_keep(server, dialled),
            lambda count: pack((b"STAMPS", count)),
            acknowledge=lambda key: [(b"SET", key), (b"WAIT", 1)],
        )
        for _ in range(2)
    )
    stamp, durable = data.draw(st.sampled_from([NONE, BEFORE, AFTER])), data.draw(st.booleans())
    exchange = Exchange([(b"DO", 0, place, b"key") for place in range(3)], stamp, durable=durable)
    first.send([exchange])
    (connection,) = dialled
    replies = data.draw(st.integers(0, len(connection.replies) - 1))
    read, answered = connection.read, 0

    def break_off() -> Any:
        nonlocal answered
        answered += 1
        if answered > replies:
            raise RedisConnectionError("gone")
        return read()

    connection.read = break_off
    first.drain()
    assert not exchange.done
    assert exchange.executed_maybe
    second.send([exchange])
    second.drain()
    check(exchange, 0, server)
    assert {done.connection for done in exchange.replies} == {2}
    if stamp != NONE:
        assert exchange.timestamp // 1000 > max(done.at for done in server.log if done.connection == 1)


def test_a_reply_that_is_forgotten_was_executed_all_the_same() -> None:
    """The commit was answered, the timestamp behind it was not, and another server is asked next."""
    server = Server(None, calm=True)
    dialled: list[Any] = []
    first, second = (
        Pipeline(lambda: dial_and_keep(server, dialled), lambda count: pack((b"STAMPS", count)))
        for _ in range(2)
    )
    exchange = Exchange([(b"DO", 0, 0)], AFTER)
    first.send([exchange])
    (connection,) = dialled
    connection.replies[1] = NoScriptError("NOSCRIPT")
    first.drain()
    assert not exchange.executed_maybe
    assert len(exchange.replies) == 1
    second.send([exchange])
    second.drain()
    assert exchange.done
    assert exchange.executed_maybe
