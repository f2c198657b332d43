"""A Redis Cluster of our own: it starts, fails over, and moves slots, by commands alone."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from redis.connection import Connection
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from tests.servers.plain import Server, free_port, until

SLOTS: Final = 16384

_PATIENCE: Final = 30.0


@dataclass(frozen=True)
class View:
    """One node as another one sees it, or as it sees itself."""

    id: str
    flags: frozenset[str]
    primary: str | None
    epoch: int
    linked: bool
    slots: frozenset[int] = field(repr=False)


class Node(Server):
    """One node of a cluster."""

    def __init__(self, binary: str, *settings: str) -> None:
        self.id = ""
        self.held: frozenset[int] = frozenset()
        """The slots that it held when it was killed or stopped."""
        self.stopped = False
        try:
            super().__init__(binary, *settings)
        except BaseException:
            self.close()
            raise
        self.id = self.ask("CLUSTER", "MYID").decode()

    def __repr__(self) -> str:
        return f"<Node {self.port} {self.id[:6]}>"

    def start(self) -> None:
        if self.process is None:
            self.port = free_port()
        super().start()

    @property
    def alive(self) -> bool:
        """Whether it runs and is not stopped."""
        return self.process is not None and self.process.poll() is None and not self.stopped

    def ask(self, *command: str | bytes | int) -> Any:
        """The plain reply to one command; raises `redis.exceptions.ResponseError` for an error reply."""
        connection = Connection(host="127.0.0.1", port=self.port, protocol=2, socket_timeout=10)
        try:
            connection.send_command(*command)
            return connection.read_response(disable_decoding=True)
        finally:
            connection.disconnect()

    def views(self) -> dict[str, View]:
        """All nodes that this one knows, by id."""
        return {view.id: view for view in map(_view, self.ask("CLUSTER", "NODES").decode().splitlines())}

    @property
    def me(self) -> View:
        """What this node says of itself."""
        return self.views()[self.id]

    def info(self, section: str, name: str) -> str:
        """One line of INFO, or "" where it is missing."""
        for line in self.ask("INFO", section).decode().splitlines():
            if line.startswith(name + ":"):
                return str(line.partition(":")[2])
        return ""


class Cluster:
    """Local redis-servers that make a cluster. A context manager that ends them.

    ``settings`` go to every node, as on the command line: ``"--appendonly", "yes"``. ``node_timeout`` is in
    milliseconds; a killed primary that has a replica is failed over in about that time and two seconds more.
    """

    def __init__(
        self,
        binary: str,
        primaries: int = 3,
        replicas: int = 1,
        *settings: str,
        node_timeout: int = 1500,
    ) -> None:
        common = (
            "--cluster-enabled", "yes",
            "--cluster-node-timeout", str(node_timeout),
            "--cluster-announce-ip", "127.0.0.1",
            "--cluster-replica-validity-factor", "0",
            "--repl-diskless-sync-delay", "0",
            "--appendonly", "no",
        )  # fmt: skip
        self.nodes: list[Node] = []
        try:
            for _ in range(primaries * (1 + replicas)):
                self.nodes.append(_start(binary, *common, *settings))
            self._form(primaries)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The URL of the store, naming every node."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def alive(self) -> list[Node]:
        return [node for node in self.nodes if node.alive]

    @property
    def primaries(self) -> list[Node]:
        """The living nodes that say they are primaries and hold slots."""
        return [node for node in self.alive if "master" in node.me.flags and node.me.slots]

    def node(self, id_: str) -> Node:
        return next(node for node in self.nodes if node.id == id_)

    def owner(self, slot: int) -> Node:
        """The living node that holds the slot by its own account; the newest one should there be two."""
        found = [(view.epoch, node) for node, view in self._own_views() if slot in view.slots]
        assert found, f"no living node holds slot {slot}"
        return max(found, key=lambda pair: pair[0])[1]

    def primary_of(self, key: bytes) -> Node:
        """The node that serves the key now."""
        return self.owner(key_slot(key))

    def replicas_of(self, primary: Node) -> list[Node]:
        return [node for node, view in self._own_views() if view.primary == primary.id]

    def replica_of(self, primary: Node) -> Node:
        """A living replica of the node."""
        return self.replicas_of(primary)[0]

    # What goes wrong.

    def kill(self, node: Node) -> None:
        """SIGKILL. Without ``--appendonly yes`` its data is gone."""
        node.held = node.me.slots
        node.kill()

    def stop(self, node: Node) -> None:
        """SIGSTOP: it holds its connections and answers nothing, until `resume`."""
        node.held = node.me.slots
        assert node.process is not None
        node.process.send_signal(signal.SIGSTOP)
        node.stopped = True

    def resume(self, node: Node) -> None:
        assert node.process is not None
        node.process.send_signal(signal.SIGCONT)
        node.stopped = False

    def restart(self, node: Node) -> None:
        """Start a killed node again, at its old port, and wait until the cluster is whole."""
        node.start()
        self.await_ready()

    def await_failover(self, old: Node) -> Node:
        """Wait until another node has taken over what ``old``, killed or stopped by us, held; returns it."""
        slots = old.held
        assert slots, f"{old} held no slots when it was killed or stopped"
        others = self.alive

        def heirs() -> set[Node]:
            found = set()
            for node in others:
                me = node.me
                if "master" in me.flags and me.slots & slots:
                    found.add(node)
            return found

        def over() -> bool:
            return sum(len(node.me.slots & slots) for node in heirs()) >= len(slots) and all(
                node.ask("CLUSTER", "INFO").startswith(b"cluster_state:ok") and self._agrees(node, slots, old)
                for node in others
            )

        until(over, _PATIENCE)
        return min(heirs(), key=lambda node: node.port)

    def promote(self, replica: Node) -> None:
        """Make a replica the primary, without asking the others: what its primary had not sent it is lost."""
        replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
        until(lambda: "master" in replica.me.flags and bool(replica.me.slots), _PATIENCE)
        self.await_ready()

    def change_roles(self, replica: Node) -> None:
        """A planned failover: the primary takes no writes until its replica has everything and takes over."""
        asked_at = -math.inf

        def is_over() -> bool:
            nonlocal asked_at
            me = replica.me
            if "master" in me.flags and me.slots:
                return True
            # The replica gives up after five seconds, as happens soon after another failover.
            if time.monotonic() - asked_at > 6:
                asked_at = time.monotonic()
                with suppress(ResponseError):  # it may be over by now
                    replica.ask("CLUSTER", "FAILOVER")
            return False

        until(is_over)
        self.await_ready()

    # Moving slots.

    def begin_move(self, slot: int, to: Node) -> Move:
        """Begin to move a slot: from now on the old node answers ASK for keys that it does not have."""
        return Move(self, slot, self.owner(slot), to)

    def move_slot(
        self, slot: int, to: Node, batch: int = 10, pause: Callable[[], object] | None = None
    ) -> int:
        """Move a slot with its keys while it is in use; returns how many keys moved.

        ``pause`` is called once before the first key, after each batch, and before the move is concluded.
        """
        move = self.begin_move(slot, to)
        while True:
            if pause is not None:
                pause()
            if not move.step(batch):
                break
        move.finish()
        return move.moved

    # When all is well.

    def await_ready(self) -> None:
        """Wait until every living node agrees that all slots are served, and replicas are in step."""
        until(self._ready, _PATIENCE)

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self.nodes.clear()

    def _form(self, count: int) -> None:
        primaries, replicas = self.nodes[:count], self.nodes[count:]
        for number, node in enumerate(self.nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for number, node in enumerate(primaries):
            node.ask("CLUSTER", "ADDSLOTS", *range(SLOTS * number // count, SLOTS * (number + 1) // count))
        for node in self.nodes:
            for other in self.nodes:
                if other is not node:
                    node.ask("CLUSTER", "MEET", "127.0.0.1", other.port)
        everybody = {node.id for node in self.nodes}

        def met() -> bool:
            return all(
                {view.id for view in node.views().values() if "handshake" not in view.flags} == everybody
                for node in self.nodes
            )

        until(met, _PATIENCE)
        for number, node in enumerate(replicas):
            node.ask("CLUSTER", "REPLICATE", primaries[number % count].id)
        self.await_ready()

    def _own_views(self) -> Iterator[tuple[Node, View]]:
        for node in self.alive:
            yield node, node.me

    def _ready(self) -> bool:
        try:
            mine = dict(self._own_views())
            held = {node.id: view.slots for node, view in mine.items() if "master" in view.flags}
            if sum(map(len, held.values())) != SLOTS:
                return False
            return all(self._in_step(node, view, held) for node, view in mine.items())
        except (RedisConnectionError, OSError, KeyError):
            return False

    def _in_step(self, node: Node, view: View, held: dict[str, frozenset[int]]) -> bool:
        if not node.ask("CLUSTER", "INFO").startswith(b"cluster_state:ok"):
            return False
        seen = node.views()
        if any(id_ not in seen or seen[id_].slots != slots for id_, slots in held.items()):
            return False
        living = {other.id for other in self.alive}
        if any(not seen[id_].linked or "fail" in seen[id_].flags for id_ in living):
            return False
        if view.primary is None:
            return True
        return node.info("replication", "master_link_status") == "up"

    def _agrees(self, node: Node, slots: frozenset[int], old: Node) -> bool:
        seen = node.views()
        return not (seen[old.id].slots & slots if old.id in seen else False)


class Move:
    """A slot on its way from one node to another."""

    def __init__(self, cluster: Cluster, slot: int, source: Node, target: Node) -> None:
        self.cluster = cluster
        self.slot = slot
        self.source = source
        self.target = target
        self.moved = 0
        assert source is not target
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def keys(self, count: int = 1_000_000) -> list[bytes]:
        """Keys that are still at the old node."""
        found: list[bytes] = self.source.ask("CLUSTER", "GETKEYSINSLOT", self.slot, count)
        return found

    def step(self, batch: int = 10) -> int:
        """Move some keys; returns how many, 0 when none was left."""
        return self.send(self.keys(batch))

    def send(self, keys: Sequence[bytes]) -> int:
        """Move just these keys.

        A key that is at the new node already fails (BUSYKEY): somebody wrote there what belongs here.
        """
        if keys:
            there = ("127.0.0.1", self.target.port)
            assert self.source.ask("MIGRATE", *there, "", 0, 5000, "KEYS", *keys) in (b"OK", b"NOKEY")
            self.moved += len(keys)
        return len(keys)

    def finish(self, batch: int = 100) -> None:
        """Move what is left and conclude: the new node first, then the old one, then all others."""
        while self.step(batch):
            pass
        others = [node for node in self.cluster.primaries if node not in (self.source, self.target)]
        for node in (self.target, self.source, *others):
            node.ask("CLUSTER", "SETSLOT", self.slot, "NODE", self.target.id)
        self.cluster.await_ready()

    def conclude_at_target(self) -> None:
        """Only the new node takes the slot; all others still send callers to the old one."""
        while self.step(100):
            pass
        self.target.ask("CLUSTER", "SETSLOT", self.slot, "NODE", self.target.id)


def _start(binary: str, *settings: str) -> Node:
    """A node; another process may take its port between our look and its start, so there are three tries."""
    for left in (2, 1, 0):
        try:
            return Node(binary, *settings)
        except (AssertionError, ResponseError):
            if not left:
                raise
    raise AssertionError("unreachable")


def _view(line: str) -> View:
    id_, _, flags, primary, _, _, epoch, link, *ranges = line.split(" ")
    slots: set[int] = set()
    for one in ranges:
        if not one.startswith("["):  # a slot on its way
            first, _, last = one.partition("-")
            slots.update(range(int(first), int(last or first) + 1))
    return View(
        id=id_,
        flags=frozenset(flags.split(",")),
        primary=None if primary == "-" else primary,
        epoch=int(epoch),
        linked="myself" in flags or link == "connected",
        slots=frozenset(slots),
    )
