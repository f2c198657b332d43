"""The package's metadata for Airflow: connections, operators, decorators, assets and links.

Every process of Airflow reads it, so this module imports nothing of Airflow or the library.
"""

from __future__ import annotations

from typing import Any, Final

INTEGRATION: Final = "Percolator"

_FIELD_BEHAVIOUR: Final[dict[str, Any]] = {
    "hidden-fields": [],
    "relabeling": {"host": "Store URL or host", "schema": "Database number", "login": "User"},
    "placeholders": {
        "host": "redis://127.0.0.1:6379/0 or embedded:/var/lib/percolator",
        "port": "6379",
        "schema": "0",
        "login": "the user of the store, if it has users",
        "password": "becomes part of the URL; never shown",
        "extra": '{"ssl_ca_certs": "/etc/ssl/redis.pem"}',
    },
}
"""Labels and placeholders of Airflow's form for connections."""


def _field(label: str, kind: str, description: str) -> dict[str, Any]:
    return {"label": label, "schema": {"type": [kind, "null"]}, "description": description}


_FIELDS: Final[dict[str, Any]] = {
    "namespace": _field("Namespace", "string", "Default: the chain's name."),
    "durability": _field(
        "Durability",
        "string",
        "The copies of a write that a commit waits for: fsync, or replicas=1,fsync.",
    ),
    "lock_ttl": _field(
        "Lock lifetime", "number", "Seconds without a sign of life after which a writer counts as dead."
    ),
    "lock_wait": _field("Lock wait", "number", "Seconds that a reader waits for a writer that is alive."),
    "patience": _field(
        "Patience", "number", "Seconds for which requests are retried while the store does not answer."
    ),
    "timeout": _field("Timeout", "number", "Seconds to wait for one reply."),
    "tls": _field("TLS", "boolean", "Encrypt the connection, like rediss:// in the URL."),
}


def get_provider_info() -> dict[str, Any]:
    """Return the metadata; the entry point ``apache_airflow_provider``."""
    here = __name__.rpartition(".")[0]
    return {
        "package-name": "percolator-core",
        "name": INTEGRATION,
        "description": "Incremental processing with transactions and observers on Redis, run by Airflow.",
        "integrations": [{"integration-name": INTEGRATION, "tags": ["software"]}],
        "connection-types": [
            {
                "connection-type": "percolator",
                "hook-class-name": f"{here}.hook.PercolatorHook",
                "hook-name": "Percolator",
                "conn-fields": _FIELDS,
                "ui-field-behaviour": _FIELD_BEHAVIOUR,
            }
        ],
        "hooks": [{"integration-name": INTEGRATION, "python-modules": [f"{here}.hook"]}],
        "operators": [
            {
                "integration-name": INTEGRATION,
                "python-modules": [
                    f"{here}.operators.{name}"
                    for name in ("archive", "drain", "load", "maintenance", "monitor")
                ],
            }
        ],
        "sensors": [{"integration-name": INTEGRATION, "python-modules": [f"{here}.sensors"]}],
        "triggers": [{"integration-name": INTEGRATION, "python-modules": [f"{here}.triggers"]}],
        "task-decorators": [{"name": "percolator", "class-name": f"{here}.decorators.percolator_task"}],
        "asset-uris": [
            {
                "schemes": ["percolator"],
                "handler": f"{here}.assets.sanitize_uri",
                "factory": f"{here}.assets.create_asset",
            }
        ],
        "extra-links": [f"{here}.links.ChainLink", f"{here}.links.QuarantineLink"],
    }
