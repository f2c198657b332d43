"""The one setting of telemetry, and the environment variables of OpenTelemetry that limit it.

``PERCOLATOR_OTEL=on`` sends spans and metrics. ``OTEL_TRACES_EXPORTER=none`` leaves out the spans, and
``OTEL_METRICS_EXPORTER=none`` the metrics. OpenTelemetry itself reads the other variables that begin with
``OTEL_``: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Final, Literal, TypeAlias

from percolator_core.errors import ConfigurationError

SETTING: Final = "PERCOLATOR_OTEL"

Signal: TypeAlias = Literal["traces", "metrics"]

_ON: Final = frozenset({"on", "1", "true", "yes"})
_OFF: Final = frozenset({"", "off", "0", "false", "no"})
_PROTOCOL: Final = "http/protobuf"
_PACKAGES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def is_on(signal: Signal) -> bool:
    """Return True if the process has to send traces or metrics.

    Raises:
        ConfigurationError: a variable has a value that cannot work, or the extra ``otel`` is not installed.
    """
    if not _is_set():
        return False
    exporter = _variable(f"OTEL_{signal.upper()}_EXPORTER") or "otlp"
    if exporter == "none":
        return False
    if exporter != "otlp":
        raise ConfigurationError(
            f"OTEL_{signal.upper()}_EXPORTER is {exporter!r}, but only 'otlp' is supported: set it to "
            f"'otlp', or to 'none' to send no {signal}"
        )
    for name in (f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = _variable(name)
        if protocol:
            if protocol != _PROTOCOL:
                raise ConfigurationError(
                    f"{name} is {protocol!r}, but only {_PROTOCOL!r} is supported: set it to that, and the "
                    "endpoint to the collector's port for HTTP, usually 4318"
                )
            break
    if not all(map(_is_installed, _PACKAGES)):
        raise ConfigurationError(
            f"{SETTING} is set, but OpenTelemetry is not installed: pip install 'percolator-core[otel]'"
        )
    return True


def _is_set() -> bool:
    value = _variable(SETTING)
    if value not in _ON | _OFF:
        raise ConfigurationError(f"{SETTING} is {value!r}: set it to 'on' or 'off'")
    return value in _ON and _variable("OTEL_SDK_DISABLED") != "true"


def _variable(name: str) -> str:
    return os.environ.get(name, "").strip().lower()


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # a package above it is missing
        return False
