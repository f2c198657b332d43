"""What `durability=` promises: a commit is reported only when so many replicas, or the disk, have it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from typing import Any

import pytest

import percolator_core as percolator
from percolator_core import CommitUndetermined, ConfigurationError, Database, Durability, StoreUnavailable
from tests.servers.cluster import Cluster
from tests.servers.plain import Faults, Server, binaries, rows_apart, some_namespace, until
from tests.store.bank import await_replicas, read, write

BINARIES = binaries()
SYSTEM = BINARIES.get("system", "")
X, Y, Z = rows_apart(3)
Connect = Callable[..., Database]
SHORT = "replicas=1,timeout=0.1"


def counts_disk(db: Database) -> bool:
    """Whether the server knows WAITAOF."""
    return db.store.server_info().version_pair >= (7, 2)


class Group:
    """A master with replicas that can be stopped."""

    def __init__(self, binary: str, replicas: int, *settings: str) -> None:
        self.master = Server(binary, *settings)
        self.replicas: list[Server] = []
        for _ in range(replicas):
            self.replicas.append(Server(binary, "--repl-diskless-sync-delay", "0"))
            with self.replicas[-1].client() as client:
                client.replicaof("127.0.0.1", self.master.port)
        with self.master.client() as client:
            until(lambda: client.wait(replicas, 100) == replicas)

    def signal(self, number: int, count: int | None = None) -> None:
        for replica in self.replicas[:count]:
            assert replica.process is not None
            replica.process.send_signal(number)

    @contextmanager
    def stopped(self, count: int | None = None) -> Iterator[None]:
        self.signal(signal.SIGSTOP, count)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT, count)

    def close(self) -> None:
        for server in [*self.replicas, self.master]:
            server.close()


@pytest.fixture(scope="module", params=list(BINARIES))
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    """A master and two replicas."""
    with closing(Group(BINARIES[request.param], 2)) as group:
        yield group


@pytest.fixture
def connect(group: Group) -> Iterator[Connect]:
    namespace = some_namespace()
    with ExitStack() as stack:

        def make(durability: str = "", **settings: Any) -> Database:
            url = f"{group.master.unix}?durability={durability}"
            return stack.enter_context(percolator.connect(url, namespace, **settings))

        yield make


@pytest.fixture(params=[False, True], ids=["one-call", "two-phase"])
def two_phase(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


@pytest.fixture(params=[False, True], ids=["blocking", "hub"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Calls a function, straight away or as a task among others."""

    def run(db: Database, fn: Callable[[], Any]) -> Any:
        if not request.param:
            return fn()
        with db.concurrency(8) as executor:
            future = executor.submit(fn)
            for number in range(6):
                executor.submit(read, db, b"%d" % number)
            error = future.exception()
        if error is not None:
            raise error
        return future.result()

    return run


def write_all(db: Database, value: bytes) -> None:
    t = db.begin()
    assert t.start_timestamp
    for row in (X, Y, Z):
        t.set("t", row, "v", value)
    t.commit()


def values(db: Database) -> set[bytes | None]:
    return {read(db, row) for row in (X, Y, Z)}


def test_the_text(recwarn: pytest.WarningsRecorder) -> None:
    assert Durability.parse("") == Durability()
    assert not Durability().required
    assert Durability.parse("replicas=2") == Durability(2)
    assert Durability.parse("fsync, replicas=1,timeout=2.5") == Durability(1, fsync=True, timeout=2.5)
    for text in (
        "replicas",
        "replicas=-1",
        "replicas=101",
        "sync",
        "timeout=0",
        "timeout=1e3",
        "fsync=1",
        "timeout=3601",
    ):
        with pytest.raises(ConfigurationError, match="durability"):
            Durability.parse(text)
        with pytest.raises(ConfigurationError, match="durability"):
            percolator.connect("redis://127.0.0.1:1", durability=text)
        with pytest.raises(ConfigurationError, match="durability"):
            percolator.connect(f"redis://127.0.0.1:1?durability={text}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("replicas=1,replicas=0", "says replicas twice: leave one out"),
        ("replicas=1,replicas=1", "replicas twice"),
        ("fsync,fsync", "fsync twice"),
        ("timeout=1,fsync,timeout=2", "timeout twice"),
        ("replicas=", "write replicas=1"),
        ("replicas=1.5", "write replicas=1"),
        ("replicas=\uff11", "write replicas=1"),
        ("replicas=" + "9" * 5000, "write replicas=1"),
        ("timeout=" + "9" * 5000, "write replicas=1"),
        ("timeout=0.0001", "timeout is 0.001 to 3600 seconds"),
        ("timeout=nan", "write replicas=1"),
        ("timeout=inf", "write replicas=1"),
        ("replicas=1;fsync", "write replicas=1"),
    ],
)
def test_text_that_cannot_be(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as error:
        Durability.parse(text)
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigurationError, match=words):
        percolator.connect("redis://127.0.0.1:1", durability=text)


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"replicas": 0.5}, TypeError, "replicas is an int, not float: write replicas=1"),
        ({"replicas": float("nan")}, TypeError, "not float"),
        ({"replicas": "1"}, TypeError, "not str"),
        ({"replicas": None}, TypeError, "not NoneType"),
        ({"replicas": True}, TypeError, "not bool"),
        ({"replicas": -1}, ConfigurationError, "replicas is 0 to 100, not -1"),
        ({"replicas": 101}, ConfigurationError, "not 101"),
        ({"replicas": 10**5000}, ConfigurationError, "replicas is 0 to 100, not one of hundreds of digits"),
        ({"fsync": "no"}, TypeError, "fsync is a bool, not str: write fsync=True"),
        ({"fsync": 1}, TypeError, "not int"),
        ({"fsync": None}, TypeError, "not NoneType"),
        ({"timeout": "1"}, TypeError, "timeout is a number, not str: write timeout=2.5"),
        ({"timeout": True}, TypeError, "not bool"),
        ({"timeout": None}, TypeError, "not NoneType"),
        ({"timeout": timedelta(1)}, TypeError, "not timedelta"),
        ({"timeout": 0}, ConfigurationError, "timeout is 0.001 to 3600 seconds, not 0"),
        ({"timeout": -1.0}, ConfigurationError, "not -1"),
        ({"timeout": 1e-9}, ConfigurationError, "not 1e-09"),
        ({"timeout": float("nan")}, ConfigurationError, "not nan"),
        ({"timeout": float("inf")}, ConfigurationError, "not inf"),
        ({"timeout": 3601}, ConfigurationError, "not 3601"),
        ({"timeout": 10**400}, ConfigurationError, "one of hundreds of digits"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        Durability(**settings)


def test_what_a_setting_asks_for() -> None:
    asked = Durability(1, fsync=True, timeout=1)
    assert Durability.of(asked, "replicas=2") is asked
    assert Durability.of("fsync", "replicas=2") == Durability(fsync=True)
    assert Durability.of("", "replicas=2") == Durability()
    assert Durability.of(None, "replicas=2") == Durability(2)
    assert Durability.of(None) == Durability()
    for value in (1, b"fsync", True, 2.5, ["fsync"], Durability):
        with pytest.raises(
            TypeError, match=r"Durability or text, not .*: write durability='replicas=1,fsync'"
        ):
            Durability.of(value)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="Durability or text"):
            percolator.connect("redis://127.0.0.1:1", durability=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "plain"), [("replicas=1", "WAIT"), ("fsync", "WAITAOF")])
def test_what_meets_it(text: str, plain: str) -> None:
    wanted = Durability.parse(text)
    assert wanted.requests(b"{tag}", counts_disk=True)[-1][0] == plain.encode()
    assert [request[0] for request in wanted.requests(b"{tag}", counts_disk=False)] == [b"WAIT"]
    assert not wanted.met_by(None, counts_disk=True)
    assert not wanted.met_by((0, 0), counts_disk=True)
    assert wanted.met_by((1, 1), counts_disk=True)
    assert wanted.met_by((0, 0), counts_disk=False) == wanted.fsync


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_commit_that_is_safe_enough(connect: Connect, run: Any, replicas: int, two_phase: bool) -> None:
    db = connect(f"replicas={replicas},timeout=9")
    db.client.one_call_a_tablet = two_phase
    db.create_table("t")
    run(db, lambda: write_all(db, b"new"))
    assert values(db) == {b"new"}


@pytest.mark.parametrize(("wanted", "stopped"), [(1, 2), (2, 1), (3, 0)])
def test_a_shortfall(  # noqa: PLR0917
    group: Group, connect: Connect, run: Any, wanted: int, stopped: int, two_phase: bool
) -> None:
    """In front of the commit point nothing was written; at the commit point the outcome is open."""
    plain = connect()
    db = connect(f"replicas={wanted},timeout=0.1")
    db.client.one_call_a_tablet = two_phase
    plain.create_table("t")
    write_all(plain, b"old")
    with group.stopped(stopped):
        if two_phase:
            with pytest.raises(
                StoreUnavailable, match=rf"only {2 - stopped} of {wanted} replicas.*repair the replicas"
            ):
                run(db, lambda: write_all(db, b"new"))
            plain.resolve_locks(timedelta(0))
            assert values(plain) == {b"old"}
            assert list(plain.locks()) == []
        else:
            with pytest.raises(CommitUndetermined):
                run(db, lambda: write_all(db, b"new"))
            assert values(plain) == {b"new"}
    if stopped:
        run(db, lambda: write_all(db, b"newest"))
        assert values(plain) == {b"newest"}


def test_garbage_is_collected_when_replicas_have_what_it_is_judged_by(group: Group, connect: Connect) -> None:
    """Else a failover could bring a lock back whose transaction nobody knows any more."""
    db = connect("replicas=1,timeout=0.3")
    db.create_table("t")
    for value in (b"old", b"new"):
        write_all(db, value)
    with group.stopped(2):
        with pytest.raises(StoreUnavailable, match="only 0 of 1 replicas"):
            db.collect_garbage(timedelta(0))
        assert {len(db.history("t", row, "v")) for row in (X, Y, Z)} == {2}
    db.collect_garbage(timedelta(0))
    assert {len(db.history("t", row, "v")) for row in (X, Y, Z)} == {1}


def test_a_table_is_dropped_when_replicas_have_what_it_judges(group: Group, connect: Connect) -> None:
    """Else a failover could bring a lock back whose primary lay in the table."""
    db = connect("replicas=1,timeout=0.3")
    db.create_table("t")
    db.create_table("other")  # where a lock may be whose primary is in the first one
    write_all(db, b"new")
    rows = [(b"ZCARD", tag + b"rows") for tag in db.catalog.table("t").tags]
    before = db.store.call(*rows)
    faults = Faults(db)
    faults.plan.append((b"locks", lambda: group.signal(signal.SIGSTOP)))  # as locks are looked for
    try:
        with pytest.raises(StoreUnavailable, match="only 0 of 1 replicas"):
            db.drop_table("t")
        assert faults.plan == []
        assert db.store.call(*rows) == before
    finally:
        group.signal(signal.SIGCONT)
    db.drop_table("t")
    assert [table.name for table in db.tables()] == ["other"]


def test_an_embedded_server_that_starts_again_still_writes_before_it_answers(tmp_path: Any) -> None:
    with percolator.connect(f"embedded:{tmp_path}", durability="fsync") as db:
        server = db.store.embedded
        assert server is not None
        before = server.pid
        os.kill(before, signal.SIGKILL)
        db.create_table("t")
        assert server.pid != before
        assert counts_disk(db) or db.store.one((b"CONFIG", b"GET", b"appendfsync"))[1] == b"always"


def test_a_wait_that_is_longer_than_a_reply_may_take(connect: Connect) -> None:
    with pytest.raises(ConfigurationError, match="give connect a longer timeout"):
        connect("replicas=1,timeout=10")


def test_a_shortfall_at_the_primary(group: Group, connect: Connect, run: Any) -> None:
    plain = connect()
    db = connect(SHORT)
    db.client.one_call_a_tablet = True
    plain.create_table("t")
    write_all(plain, b"old")
    faults = Faults(db)
    faults.script("commit", lambda: group.signal(signal.SIGSTOP))
    try:
        with pytest.raises(CommitUndetermined) as undetermined:
            run(db, lambda: write_all(db, b"new"))
    finally:
        group.signal(signal.SIGCONT)
    assert faults.plan == []
    assert undetermined.value.start_timestamp
    # And it had been executed: whoever looks learns the truth.
    assert values(plain) == {b"new"}
    assert list(plain.locks()) == []


def test_an_acknowledgement_speaks_for_what_was_executed_over_another_connection(
    group: Group, connect: Connect, two_phase: bool
) -> None:
    """The commit is executed and its reply lost. Repeated, it writes nothing, so that WAIT might not wait."""
    db = connect("replicas=1,timeout=0.3")
    db.client.one_call_a_tablet = two_phase
    db.create_table("t")
    faults = Faults(db)

    def execute_and_break() -> str:
        group.signal(signal.SIGSTOP)
        return "lose reply"

    faults.script("commit" if two_phase else "prewrite", execute_and_break)
    try:
        with pytest.raises(CommitUndetermined):
            write_all(db, b"new")
    finally:
        group.signal(signal.SIGCONT)
    assert faults.plan == []
    assert values(connect()) == {b"new"}


def test_who_asks_for_nothing_waits_for_nothing(group: Group, connect: Connect) -> None:
    db = connect()
    db.create_table("t")
    with group.stopped(), group.master.client() as client:
        client.config_resetstat()
        write_all(db, b"new")
        assert not any("wait" in name for name in client.info("commandstats"))


@pytest.mark.skipif(not SYSTEM, reason="NOT TESTED: no redis-server on PATH")
def test_one_shard_of_a_cluster_falls_short() -> None:
    with (
        Cluster(SYSTEM, 3, 1, node_timeout=60_000) as cluster,
        percolator.connect(cluster.url, "ns", durability=SHORT) as db,
        percolator.connect(cluster.url, "ns") as plain,
    ):
        db.create_table("t")
        rows = rows_apart(16)
        tag = db.catalog.table("t").tag
        replica = cluster.replica_of(cluster.primary_of(tag(rows[0])))
        here = [row for row in rows if cluster.primary_of(tag(row)) is cluster.primary_of(tag(rows[0]))]
        elsewhere = [row for row in rows if row not in here]
        for row in rows:
            write(db, row, b"old")
        cluster.stop(replica)
        with db.concurrency(16) as executor:
            outcomes = {row: executor.submit(write, db, row, b"new") for row in rows}
            assert all(outcomes[row].exception() is None for row in elsewhere)
            assert all(isinstance(outcomes[row].exception(), StoreUnavailable) for row in here)
        plain.resolve_locks(timedelta(0))
        assert {read(plain, row) for row in here} == {b"old"}
        assert {read(plain, row) for row in elsewhere} == {b"new"}
        faults = Faults(db)
        cluster.resume(replica)
        await_replicas(cluster.primary_of(tag(rows[0])))
        faults.script("commit", lambda: cluster.stop(replica))
        with pytest.raises(CommitUndetermined):
            write(db, here[0], b"newest")
        assert read(plain, here[0]) == b"newest"
        cluster.resume(replica)


# The disk.


@pytest.mark.parametrize("name", BINARIES)
def test_fsync_needs_a_log(name: str) -> None:
    told = pytest.raises(ConfigurationError, match="keeps no log on disk: set appendonly yes")
    with closing(Server(BINARIES[name])) as server, told:
        percolator.connect(server.unix, durability="fsync")


@contextmanager
def with_log(name: str) -> Iterator[tuple[Server, bool]]:
    """A server that keeps a log, and whether it knows WAITAOF."""
    with closing(Server(BINARIES[name], "--appendonly", "yes")) as server, server.client() as client:
        yield server, client.execute_command("COMMAND INFO", "waitaof") not in ([None], {})


@pytest.mark.parametrize("name", BINARIES)
def test_fsync_where_the_server_cannot_say_what_is_on_disk(name: str, two_phase: bool) -> None:
    with with_log(name) as (server, counts_disk), server.client() as client:
        if counts_disk:
            pytest.skip("this server can say it")
        with pytest.raises(ConfigurationError, match=r"cannot say what is on disk: .*appendfsync always"):
            percolator.connect(server.unix, durability="fsync")
        client.config_set("appendfsync", "always")
        with percolator.connect(server.unix, "ns", durability="fsync") as db:
            db.client.one_call_a_tablet = two_phase
            db.create_table("t")
            write_all(db, b"new")
            server.kill()
            server.start()
            with pytest.raises(ConfigurationError, match="set appendonly yes and appendfsync always"):
                values(db)  # what was set by hand is forgotten
            client.config_set("appendfsync", "always")
            assert values(db) == {b"new"}


@pytest.mark.parametrize("disk", ["works", "lags"])
def test_fsync_where_the_server_says_what_is_on_disk(two_phase: bool, disk: str, run: Any) -> None:
    tested = False
    for name in BINARIES:
        with with_log(name) as (server, counts_disk):
            if counts_disk:
                tested = True
                check_waitaof(server, run, two_phase=two_phase, lags=disk == "lags")
    if not tested:
        pytest.skip("NOT TESTED: no server that knows WAITAOF; name one in PERCOLATOR_TEST_SERVERS")


def check_waitaof(server: Server, run: Any, *, two_phase: bool, lags: bool) -> None:
    with (
        server.client() as client,
        percolator.connect(
            server.unix, "ns", durability="fsync,timeout=0.3" if lags else "fsync,timeout=9"
        ) as db,
        percolator.connect(server.unix, "ns") as plain,
    ):
        db.client.one_call_a_tablet = two_phase
        plain.create_table("t")
        if not lags:
            run(db, lambda: write_all(db, b"new"))
            assert client.info("commandstats")["cmdstat_waitaof"]["calls"] >= (2 if two_phase else 1)
            server.kill()
            server.start()
            assert values(db) == {b"new"}
            return
        client.config_set("appendfsync", "no")
        expected: type[Exception] = StoreUnavailable if two_phase else CommitUndetermined
        with pytest.raises(expected):
            run(db, lambda: write_all(db, b"new"))
        plain.resolve_locks(timedelta(0))
        assert values(plain) == ({None} if two_phase else {b"new"})


@pytest.mark.parametrize("where", ["setting", "url"])
def test_fsync_of_an_embedded_store(tmp_path: Any, where: str) -> None:
    url, durability = f"embedded:{tmp_path}/a%3Fb", "fsync" if where == "setting" else None
    with percolator.connect(url if durability else f"{url}?durability=fsync", durability=durability) as db:
        assert [path.name for path in tmp_path.iterdir()] == ["a?b"]
        db.create_table("t")
        write_all(db, b"new")
        assert db.store.embedded is not None
        assert db.store.one((b"CONFIG", b"GET", b"appendfsync"))[1] == b"always" or counts_disk(db)
