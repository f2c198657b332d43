"""Reads the replies to INFO, and refuses servers that cannot be used."""

from __future__ import annotations

from dataclasses import dataclass

from percolator_core.errors import ConfigurationError
from percolator_core.store.embedded.binary import OLDEST_SERVER
from percolator_core.store.known_faults import version_numbers


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The reply of a server to INFO."""

    version: str
    role: str
    mode: str
    eviction: str
    maxmemory: int
    used_memory: int
    evicted_keys: int
    raw: dict[str, str]

    @property
    def version_pair(self) -> tuple[int, int]:
        """Major and minor version."""
        return version_numbers(self.version)[:2]


def read_info(raw: bytes) -> ServerInfo:
    """Parse a reply to INFO."""
    lines = raw.decode(errors="replace").splitlines()
    info = dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))
    return ServerInfo(
        version=info.get("valkey_version") or info.get("redis_version", "0"),
        role=info.get("role", ""),
        mode=info.get("redis_mode") or info.get("server_mode") or "standalone",
        eviction=info.get("maxmemory_policy", "noeviction"),
        maxmemory=int(info.get("maxmemory", 0)),
        used_memory=int(info.get("used_memory", 0)),
        evicted_keys=int(info.get("evicted_keys", 0)),
        raw=info,
    )


def refuse_unsuitable(info: ServerInfo, url: str, *, clustered: bool) -> None:
    """Raise ConfigurationError for a server that cannot hold data, or that needs another kind of URL."""
    oldest = ".".join(map(str, OLDEST_SERVER))
    if info.mode == "sentinel":
        raise ConfigurationError(f"{url} is a sentinel: write redis+sentinel://HOST:PORT/SERVICE")
    if info.mode == "cluster" and not clustered:
        raise ConfigurationError(f"{url} belongs to a cluster: write redis+cluster://HOST:PORT")
    if info.version_pair < OLDEST_SERVER:
        raise ConfigurationError(
            f"{url} is Redis {info.version} and {oldest} is the oldest that works: upgrade the server"
        )
    if info.role != "master":
        raise ConfigurationError(f"{url} is a replica, which takes no writes: connect to its master")
