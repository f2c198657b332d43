"""What Airflow is told about the package: connections, decorators, assets and links. Nothing is imported."""

from __future__ import annotations

from typing import Any, Final

INTEGRATION: Final = "Percolator"

FIELD_BEHAVIOUR: Final[dict[str, Any]] = {
    "hidden-fields": [],
    "relabeling": {"host": "Store URL or host", "schema": "Database number", "login": "User"},
    "placeholders": {
        "host": "redis://127.0.0.1:6379/0 or embedded:/var/lib/percolator",
        "port": "6379",
        "schema": "0",
        "login": "of the store, when it has users",
        "password": "put into the URL, and shown nowhere",
        "extra": '{"ssl_ca_certs": "/etc/ssl/redis.pem"}',
    },
}
"""How the form for connections names its fields."""


def _field(label: str, kind: str, description: str) -> dict[str, Any]:
    return {"label": label, "schema": {"type": [kind, "null"]}, "description": description}


_FIELDS: Final[dict[str, Any]] = {
    "namespace": _field("Namespace", "string", "When left out: the chain's name."),
    "durability": _field(
        "Durability",
        "string",
        "What must have a write before its commit is reported: fsync, replicas=1,fsync.",
    ),
    "lock_ttl": _field("Lock lifetime", "number", "Seconds after which a writer that does not stir is dead."),
    "lock_wait": _field("Lock wait", "number", "Seconds that a reader waits for a live writer."),
    "patience": _field("Patience", "number", "Seconds for which requests to a silent store are repeated."),
    "timeout": _field("Timeout", "number", "Seconds that one reply may take."),
    "tls": _field("TLS", "boolean", "Encrypt, as rediss:// in the URL does."),
}


def get_provider_info() -> dict[str, Any]:
    """The entry point ``apache_airflow_provider``."""
    here = __name__.rpartition(".")[0]
    return {
        "package-name": "percolator-core",
        "name": INTEGRATION,
        "description": "Incremental processing with transactions and observers on Redis, scheduled and seen.",
        "integrations": [{"integration-name": INTEGRATION, "tags": ["software"]}],
        "connection-types": [
            {
                "connection-type": "percolator",
                "hook-class-name": f"{here}.hook.PercolatorHook",
                "hook-name": "Percolator",
                "conn-fields": _FIELDS,
                "ui-field-behaviour": FIELD_BEHAVIOUR,
            }
        ],
        "hooks": [{"integration-name": INTEGRATION, "python-modules": [f"{here}.hook"]}],
        "operators": [
            {
                "integration-name": INTEGRATION,
                "python-modules": [
                    f"{here}.operators.{name}" for name in ("load", "drain", "locks", "garbage", "monitor")
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
