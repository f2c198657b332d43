"""Check a store: its server, settings, memory and disk, and its namespaces with their tables.

The check does not create an embedded store, but it starts an existing one.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import redis

from percolator_core.cli.findings import Finding, fail, ok, warn
from percolator_core.errors import (
    ConfigurationError,
    LockTimeout,
    PercolatorError,
    SnapshotTooOld,
    UnknownTable,
)
from percolator_core.notation.amounts import count_of, show_age, show_size
from percolator_core.store.embedded.binary import OLDEST_SERVER, OVERRIDE
from percolator_core.store.embedded.folder import COMPACT
from percolator_core.store.known_faults import AS_OF, exposure
from percolator_core.store.url import Address, parse

if TYPE_CHECKING:
    from percolator_core.catalog.catalog import Entry
    from percolator_core.database import Database

_TIMEOUT: Final = 5.0
_LITTLE_SPACE: Final = 1 << 30
_TOO_LITTLE_SPACE: Final = 64 << 20
_CLOCK_DIFFERENCE: Final = 1.0
"""Seconds. If the clocks of client and server differ by more, ages and "as of" times are misleading."""

_QUICK: Final = 10_000
"""Indexes of tables with at most this many rows are always compared, which takes less than a second."""

_FULL: Final = 0.9
_SOCKET_PATH_LIMIT: Final = 103
LARGEST: Final = {"proto-max-bulk-len": 512 << 20, "client-query-buffer-limit": 1 << 30}
"""Redis' defaults, in bytes. With less, the server disconnects a client that sends a large value."""


def check_store(url: str, namespace: str | None, *, indexes: bool = False) -> Iterator[Finding]:
    """Run all checks of the store at ``url``, and of one namespace or of all.

    With ``indexes``, also compare the indexes of large tables with their rows.
    """
    try:
        address = parse(url)
    except ConfigurationError as error:
        yield fail("store", "its URL is invalid", str(error))
        return
    if address.folder is not None:
        yield from _folder(address.folder)
        if not (address.folder / "redis.mutex").exists():
            yield ok("store", f"none yet in {address.folder}: the first load, drain or worker creates it")
            return
    yield from _server(url, address, namespace, indexes=indexes)


def _folder(folder: Path) -> Iterator[Finding]:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    found = f"{show_size(free)} free for {folder}"
    if free < _TOO_LITTLE_SPACE:
        yield fail("disk", found, "free some space, or name another folder with --url")
    elif free < _LITTLE_SPACE:
        yield warn("disk", found, "free some space: rewriting the append-only file needs room for a copy")
    else:
        yield ok("disk", found)
    length = len(bytes(folder.resolve() / "redis.sock"))
    if length > _SOCKET_PATH_LIMIT:
        yield ok("socket", f"its path of {length} bytes would be too long, so it is in the temporary folder")
    else:
        yield ok("socket", f"{length} of {_SOCKET_PATH_LIMIT} bytes")


def _server(url: str, address: Address, namespace: str | None, *, indexes: bool) -> Iterator[Finding]:
    from percolator_core.cli.namespaces import existing_store, store_clients

    try:
        with existing_store(url), store_clients(url, address, _TIMEOUT) as clients:
            if address.kind == "cluster":
                yield ok("cluster", f"{len(clients)} primaries serve all slots")
            elif address.kind == "sentinel":
                yield ok("sentinel", f"{', '.join(clients)} is the master of {address.service}")
            for server, client in clients.items():
                for finding in _checks(client, address):
                    # With several servers, each line names its server.
                    check = f"{server}: {finding.check}" if address.kind == "cluster" else finding.check
                    yield replace(finding, check=check)
            yield from _contents(url, namespace, indexes=indexes)
    except ConfigurationError as error:
        yield fail("store", "the server does not fit the URL", str(error))
    except (PercolatorError, redis.RedisError, OSError) as error:
        yield fail("store", f"{' '.join(str(error).split())}", "start it, or name the right one with --url")


def _checks(client: Any, address: Address) -> Iterator[Finding]:
    started = time.time()
    seconds, microseconds = client.time()
    server, client_now = seconds + microseconds / 1e6, (started + time.time()) / 2
    info = client.info()
    yield _version(info)
    yield _known_faults(info, address)
    yield _role(info)
    yield _eviction(info)
    yield _durability(info, address)
    yield _memory(info)
    yield from _compact(client, info)
    yield from _largest(client)
    yield _clock(server - client_now)


def _version(info: dict[str, Any]) -> Finding:
    name = "Valkey" if "valkey_version" in info else "Redis"
    text = str(info.get("valkey_version") or info["redis_version"])
    found = f"{name} {text}, up for {show_age(int(info.get('uptime_in_seconds', 0)))}"
    pair = tuple(int(part) for part in text.split(".")[:2])
    if pair < OLDEST_SERVER:
        return fail("store", found, f"upgrade the server to {'.'.join(map(str, OLDEST_SERVER))} or newer")
    return ok("store", found)


def _known_faults(info: dict[str, Any], address: Address) -> Finding:
    found = exposure(info)
    if found is None:
        return ok("known faults", f"none that lets clients run code, as of {AS_OF}")
    mend = found.mend
    if address.kind == "embedded":
        mend += f"; only your user can reach an embedded server, and {OVERRIDE} names another program for it"
    return warn(
        "known faults", f"clients can run code on its machine by {found.faults.removeprefix('by ')}", mend
    )


def _role(info: dict[str, Any]) -> Finding:
    role = str(info.get("role", "unknown"))
    if role != "master":
        return fail("role", role, "a replica takes no writes: connect to its master")
    return ok("role", f"master, {info.get('connected_slaves', 0)} replicas")


def _eviction(info: dict[str, Any]) -> Finding:
    policy = str(info.get("maxmemory_policy", "noeviction"))
    evicted = int(info.get("evicted_keys", 0))
    found = f"{policy}, {evicted:,} keys evicted"
    if policy != "noeviction":
        return fail("eviction", found, "the server may drop data: CONFIG SET maxmemory-policy noeviction")
    if evicted:
        return fail(
            "eviction", found, "restore the data from a backup, or accept the loss; then CONFIG RESETSTAT"
        )
    return ok("eviction", found)


def _durability(info: dict[str, Any], address: Address) -> Finding:
    if int(info.get("aof_enabled", 0)):
        statuses = ("aof_last_write_status", "aof_last_bgrewrite_status")
        if all(info.get(name, "ok") == "ok" for name in statuses):
            return ok("append-only file", "on")
        return fail(
            "append-only file", "on, but its last write failed", "read the server's log; is the disk full?"
        )
    if address.kind == "embedded":
        return fail(
            "append-only file", "off", "stop this server: the next command starts one with the right settings"
        )
    return warn(
        "append-only file", "off", "a crash loses writes since the last snapshot: CONFIG SET appendonly yes"
    )


def _memory(info: dict[str, Any]) -> Finding:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    total = int(info.get("total_system_memory", 0))
    most = limit or total
    found = show_size(used)
    if most:
        found += f" of {show_size(most)} {'allowed' if limit else 'in the machine'}"
    if most and used > _FULL * most:
        return warn(
            "memory", found, "collect garbage (percolator gc), raise maxmemory, or use a larger machine"
        )
    return ok("memory", found)


def _setting(client: Any, name: str) -> int | None:
    """Return a numeric setting, or None if this user may not read it."""
    try:
        return int(client.config_get(name)[name])
    except (redis.RedisError, KeyError, ValueError):
        return None


def _largest(client: Any) -> Iterator[Finding]:
    """Warn if a size limit of the server is below the default."""
    for name, usual in LARGEST.items():
        value = _setting(client, name)
        if value is not None and value < usual:
            yield warn(name, show_size(value), f"large values cannot be written: CONFIG SET {name} {usual}")


def _compact(client: Any, info: dict[str, Any]) -> Iterator[Finding]:
    # Redis 7 replaced the ziplist by the listpack, and renamed the settings.
    old = str(info.get("redis_version", "7")).startswith("6.")
    for name, least in COMPACT.items():
        setting = name if old else name.replace("ziplist", "listpack")
        value = _setting(client, setting)
        if value is None:
            yield warn(setting, "this user may not read it", f"make sure that it is {least} or more")
        elif value < least:
            yield warn(setting, str(value), f"to save memory: CONFIG SET {setting} {least}")
        else:
            yield ok(setting, str(value))


def _clock(difference: float) -> Finding:
    found = f"the server's clock is {abs(difference) * 1000:.0f} ms {'ahead' if difference > 0 else 'behind'}"
    if abs(difference) > _CLOCK_DIFFERENCE:
        return warn("clock", found, "synchronise both clocks (NTP); timestamps come from the server")
    return ok("clock", found)


def _contents(url: str, namespace: str | None, *, indexes: bool) -> Iterator[Finding]:
    """Check each namespace: its format (on connecting), workers, quarantine and tables."""
    from percolator_core.cli.namespaces import namespaces
    from percolator_core.database import connect

    found = namespaces(url)
    for name in found if namespace is None else [namespace]:
        if name not in found:
            yield warn(name, "no such namespace in this store", f"namespaces: {', '.join(found) or 'none'}")
            continue
        try:
            with connect(url, name) as db:
                yield from _namespace(db, indexes=indexes)
        except ConfigurationError as error:
            yield fail(name, "cannot be read", str(error))
    if not found:
        yield ok("namespaces", "none yet")


def _namespace(db: Database, *, indexes: bool) -> Iterator[Finding]:
    from percolator_core.admin.status import status
    from percolator_core.store import FORMAT

    now = status(db)
    name = now.namespace
    yield ok(name, f"{len(now.tables)} tables, format {FORMAT}, backlog {now.backlog:,}")
    workers = f"{len(now.workers)} alive"
    if now.backlog and not now.workers:
        yield warn(
            f"{name}: workers",
            workers,
            f"{now.backlog:,} cells wait: run percolator worker PATH, or drain PATH",
        )
    else:
        yield ok(f"{name}: workers", workers)
    if now.failed:
        yield warn(
            f"{name}: quarantine",
            count_of(now.failed, "cell"),
            "list them with percolator failed PATH, then run percolator retry PATH",
        )
    else:
        yield ok(f"{name}: quarantine", "empty")
    yield from _tables(db, indexes=indexes)


def _tables(db: Database, *, indexes: bool) -> Iterator[Finding]:
    """Report unfinished schema changes, and compare tables with their indexes."""
    entries = db.catalog.entries()
    for entry in entries:
        if entry.pending is not None or entry.sweep:
            yield _unfinished(db, entry)
    indexed = [one.definition for one in entries if one.is_there and one.definition.indexes]
    late = [one for one in indexed if not indexes and _rows(db, one.name) > _QUICK]
    wrong = list(_inconsistent(db, [one.name for one in indexed if one not in late]))
    yield from wrong
    check, agreeing = f"{db.namespace}: indexes", sum(len(one.indexes) for one in indexed if one not in late)
    if agreeing and not wrong:
        yield ok(check, f"{agreeing} compared with their tables, without a difference")
    if late:
        names = ", ".join(one.name for one in late)
        yield ok(check, f"not compared for {names}, with over {_QUICK:,} rows; --indexes compares them")


def _rows(db: Database, table: str) -> int:
    snapshot = db.snapshot()
    try:
        tags = snapshot.handle_of(table).tags
    except UnknownTable:
        return 0  # the table was dropped since the catalog was read
    return sum(snapshot.count_rows([(tag, b"", None) for tag in tags]))


def _unfinished(db: Database, entry: Entry) -> Finding:
    pending = entry.pending
    if pending is None:
        found = "cells of a dropped column may remain"
    elif pending["kind"] in {"create", "drop"}:
        step = "creation" if pending["kind"] == "create" else "removal"
        found = f"its {step} is under way or was interrupted"
    else:
        found = "a schema change is under way or was interrupted"
    check = f"{db.namespace}: {entry.definition.name}"
    return warn(check, found, "percolator gc finishes it if no process is working on it")


def _inconsistent(db: Database, names: Sequence[str]) -> Iterator[Finding]:
    from percolator_core.tables.verify import check_indexes

    for name in names:
        try:
            # The snapshot is not pinned: pinning is a write, and this user may have no right to write.
            found = check_indexes(db.snapshot(), name)
        except (LockTimeout, SnapshotTooOld, UnknownTable) as error:
            yield warn(
                f"{db.namespace}: {name}", f"its indexes were not compared: {error}", "check again later"
            )
            continue
        if not found:
            continue
        missing = sum(one.missing for one in found)
        yield fail(
            f"{db.namespace}: {name}",
            f"{', '.join(sorted({one.index for one in found}))}: rows without their entry: {missing:,}, "
            f"entries without their row: {len(found) - missing:,}",
            f"another program changed the store: run percolator reindex {name}",
        )
