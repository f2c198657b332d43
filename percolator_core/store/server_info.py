"""Reads the replies to INFO."""

from __future__ import annotations

from dataclasses import dataclass

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
