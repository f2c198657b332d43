"""Check the installation on this machine: Python, redis-server, Java, packages. No store is needed."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Final

from percolator_core.cli.findings import Finding, fail, ok, warn
from percolator_core.errors import ConfigurationError

PACKAGE: Final = "percolator-core"

_EXTRAS: Final = {
    "ui": (("fastapi", "jinja2", "uvicorn"), "the pages in a browser"),
    "spark": (("pyspark", "pandas"), "large loads, drains and tables with Spark"),
    "webindex": (("selectolax", "charset-normalizer"), "the web index and the demo"),
    "plot": (("matplotlib",), "the figures of the benchmarks"),
}
"""The packages of each extra, and their purpose."""


def check_installation(*, embedded: bool) -> Iterator[Finding]:
    """Run all checks. With ``embedded``, the store needs a redis-server on this machine."""
    yield ok("python", f"{platform.python_version()} in {sys.prefix}")
    yield _redis_server(needed=embedded)
    yield _hiredis()
    yield _java()
    yield from _pyspark()
    for extra in _EXTRAS:
        yield _extra(extra)


def _redis_server(*, needed: bool) -> Finding:
    from percolator_core.store.embedded.binary import find_binary

    try:
        return ok("redis-server", str(find_binary()))
    except ConfigurationError as error:
        if needed:
            return fail("redis-server", "no usable program", str(error))
        return warn("redis-server", "no usable program", f"for an embedded store only: {error}")


def _hiredis() -> Finding:
    found = _version("hiredis")
    if found is None:
        return fail("hiredis", "not installed", "pip install hiredis")
    return ok("hiredis", found)


def _java() -> Finding:
    from percolator_core.spark.java import check_java

    try:
        return ok("java", f"version {check_java()}")
    except ConfigurationError as error:
        found, _, mend = str(error).partition(": ")
        return warn("java", found, mend)


def _pyspark() -> Iterator[Finding]:
    found = _version("pyspark")
    if found is not None:
        yield _pyspark_version(found, _pinned("pyspark"))


def _pyspark_version(found: str, pinned: str | None) -> Finding:
    client = _version("pyspark-client")
    if client is not None and client != found:
        return fail(
            "pyspark",
            f"{found}, but pyspark-client {client} overwrote its files",
            f"pip install --force-reinstall pyspark=={found}",
        )
    if pinned is None:
        return warn(
            "pyspark", f"{found}; the required version is not known", f"install {PACKAGE} itself with pip"
        )
    if found != pinned:
        return fail("pyspark", f"{found}, but {PACKAGE} requires {pinned}", f"pip install pyspark=={pinned}")
    return ok("pyspark", found)


def _extra(extra: str) -> Finding:
    packages, purpose = _EXTRAS[extra]
    versions = {package: _version(package) for package in packages}
    missing = [package for package, version in versions.items() if version is None]
    if missing:
        return warn(
            f"extra {extra}",
            f"{', '.join(missing)} not installed",
            f"for {purpose}: pip install '{PACKAGE}[{extra}]'",
        )
    return ok(f"extra {extra}", ", ".join(f"{package} {version}" for package, version in versions.items()))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _pinned(package: str) -> str | None:
    """Return the version of ``package`` that this library requires exactly; None if it is not known."""
    try:
        requirements = metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return None
    for requirement in requirements:
        found = re.match(rf"{re.escape(package)}\s*==\s*([0-9][^\s;,]*)", requirement)
        if found:
            return found[1]
    return None
