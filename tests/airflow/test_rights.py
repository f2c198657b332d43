"""The rights of docs/how-to/secure.md suffice for the user of an Airflow connection."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.pages import PAGE, WRITE, forget_dags, give_dag, site
from tests.airflow.project import CONN_ID, make_project, set_connection
from tests.security.jobs import refusals
from tests.security.rules import PASSWORD, rule_for
from tests.servers.plain import Server

USER = "airflow"
PAGES = (
    *("", "plots", "quarantine", "quarantine?row=row1", "locks", "tables", "tables/docs", "trace"),
    "observers/first",
    *("tables/docs/rows", "tables/docs/rows?prefix=row&where=text%3D%27a%27", "tables/docs/row?key=row0"),
    *(
        "tables/docs/row?key=row0&at=0.001s",
        "tables/docs/cell?key=row0&column=text",
        "trace?table=docs&row=row0",
    ),
)


def allow(server: Server, namespace: str) -> None:
    """Create the user of an Airflow connection by docs/how-to/secure.md."""
    with server.client() as client:
        selectors = int(client.info("server")["redis_version"].partition(".")[0]) >= 7
        worker, maintenance = (
            rule_for(role, selectors=selectors).words(namespace) for role in ("worker", "maintenance")
        )
        client.execute_command("ACL", "SETUSER", USER, *worker)
        client.execute_command("ACL", "SETUSER", USER, *(word for word in maintenance if word != "reset"))
        client.execute_command("ACL", "SETUSER", USER, "+hkeys", "+hstrlen")


def test_tasks_and_pages_do_with_the_documented_rights(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from percolator_airflow import (
        BackupOperator,
        CollectGarbageOperator,
        DrainOperator,
        IdleSensor,
        MaintainBasesOperator,
        MonitorOperator,
        PublishOperator,
        ResolveLocksOperator,
    )

    project = make_project(tmp_path, server.unix)
    place: dict[str, Any] = {"chain": project.chain, "conn_id": CONN_ID}
    set_connection(monkeypatch, host=server.tcp, login=USER, password=PASSWORD)
    allow(server, "words")

    class Task:
        def xcom_push(self, **_: Any) -> None: ...

    DrainOperator(task_id="first", engine="local", **place).execute({})
    project.put("a", "boom")
    done = DrainOperator(task_id="drain", engine="local", **place).execute({})
    assert (done["quarantined"], done["left"]) == (1, 0)
    MonitorOperator(task_id="look", on_breach="warn", **place).execute({"ti": Task()})
    assert IdleSensor(task_id="idle", **place).poke({})

    give_dag(Path(project.chain), "words", conn_id=CONN_ID)
    try:
        with site() as pages, pages.as_("ADMIN") as client:
            for path in PAGES:
                answer = client.get(f"/words/{path}", headers=PAGE)
                assert answer.status_code == 200, f"{path}: {answer.text}"
            for path, body in (
                ("quarantine/retry", {"observer": "*"}),
                ("quarantine/discard", {"observer": "*"}),
                ("locks/resolve", {}),
            ):
                answer = client.post(f"/words/{path}", json=body, headers=WRITE)
                assert answer.status_code == 200, f"{path}: {answer.text}"
    finally:
        forget_dags()
    ResolveLocksOperator(task_id="locks", **place).execute({})
    CollectGarbageOperator(task_id="garbage", keep=0, **place).execute({})
    with project.connect() as db:
        db.set_base("docs", str(tmp_path / "base"), cold_after=timedelta(0))
    MaintainBasesOperator(task_id="bases", **place).execute({})
    PublishOperator(task_id="publish", table="docs", url=str(tmp_path / "open"), **place).execute({})
    BackupOperator(task_id="backup", url=str(tmp_path / "backup"), **place).execute({})
    assert refusals(server) == []
