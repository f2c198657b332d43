"""Access control of the pages; and texts of users and rows never become markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import percolator_core as percolator
from percolator_core import Chain, Worker
from tests.airflow.pages import (
    BUNDLE,
    PAGE,
    WRITE,
    Site,
    connection_to,
    forget_dags,
    give_dag,
    serialized,
    site,
    write_chain,
)
from tests.servers.plain import Server

if TYPE_CHECKING:
    from fastapi.routing import APIRoute

EVIL = "<script>alert(1)</script>"
TABLES = "{docs: {tablets: 2}, out: {tablets: 2}}"
TABS = ("", "plots", "quarantine", "locks", "tables", "trace")


@pytest.fixture(scope="module")
def pages(server: Server, airflow_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A chain ``web`` with hostile texts and a cell in quarantine, and a chain ``other``."""
    folder = tmp_path_factory.mktemp("chains")
    observers = {
        "split": f"observe: docs.text\nwrites: [out.a]\nretry: {{attempts: 1}}\ndescription: '{EVIL}'",
        "join": "observe: out.a",
    }
    web = write_chain(folder / "web", "web", TABLES, observers)
    other = write_chain(folder / "other", "other", TABLES, {"split": "observe: docs.text"})
    with percolator.connect(server.unix, "web") as db, ExitStack() as stack:
        _failing_once(db, web)
        stack.enter_context(connection_to(server.unix))
        give_dag(web, "web")
        give_dag(other, "other")
        stack.callback(forget_dags)
        yield stack.enter_context(site())


def _failing_once(db: percolator.Database, folder: Path) -> None:
    def split(t: Any, cell: Any) -> None:
        raise ValueError(f"{EVIL} in {cell.row!r}")

    declared = Chain.load(folder, import_functions=False)
    declared.create_tables(db)
    object.__setattr__(declared.observers["split"], "function", split)
    with db.transaction() as t:
        t.set("docs", EVIL, "text", EVIL.encode())
    worker = Worker(db, declared, observers=["split"])
    worker.run_until_idle()


def routes(pages: Site) -> list[tuple[str, str]]:
    """Return each method and path of the pages, with names filled in."""
    from fastapi.routing import APIRoute

    found: list[APIRoute] = []

    def walk(some: Any) -> None:
        for route in some:
            if isinstance(route, APIRoute):
                found.append(route)
            else:
                inner = getattr(route, "original_router", None) or getattr(route, "app", None)
                walk(getattr(inner, "routes", ()))

    walk(pages.app.routes)
    filled = [
        (method, re.sub(r"{[^}]*}", "docs", route.path.replace("{name}", "web")))
        for route in found
        for method in sorted(route.methods or ())
    ]
    assert {path for _, path in filled} >= {"/", "/web/", "/web/plots", "/web/quarantine", "/web/tables/docs"}
    return filled


def test_nobody_sees_anything_without_a_login(pages: Site) -> None:
    client = pages.anonymous(follow_redirects=False)
    for method, path in routes(pages):
        for nowhere in (path, path.replace("/web/", "/nowhere/")):
            answer = client.request(method, nowhere, headers=WRITE, json={})
            assert answer.status_code == 401, (method, nowhere)
            assert answer.json() == {"error": "Not authenticated"}


def test_a_browser_without_a_login_is_shown_the_way_to_it(pages: Site) -> None:
    answer = pages.anonymous().get("/web/quarantine", headers=PAGE)
    assert answer.status_code == 401
    assert "Please log in" in answer.text
    assert 'href="/auth/' in answer.text
    assert "next=http%3A%2F%2Ftestserver%2Fweb%2Fquarantine" in answer.text


def test_what_is_no_token_of_airflow_is_refused(pages: Site) -> None:
    client = pages.anonymous()
    client.cookies.set("_token", "e30.e30.e30")
    assert client.get("/web/").status_code == 403
    assert client.get("/web/", headers={"Authorization": f"Bearer {pages.token('ADMIN')}"}).status_code == 200


def test_a_viewer_sees_each_page_and_changes_nothing(pages: Site) -> None:
    client = pages.as_("VIEWER", follow_redirects=False)
    written = 0
    for method, path in routes(pages):
        if method == "POST":
            written += 1
            assert client.post(path, headers=WRITE, json={}).status_code == 403, path
    assert written >= 3
    for tab in TABS:
        assert client.get(f"/web/{tab}", headers=PAGE).status_code == 200, tab


def test_a_change_needs_the_permission_and_our_own_header(pages: Site) -> None:
    from fastapi import APIRouter

    from percolator_core.ui.access import EditableChain

    router = APIRouter()
    done = []

    @router.post("/{name}/probe")
    def probe(chain: EditableChain) -> dict[str, str]:
        done.append(chain.name)
        return {"said": chain.name}

    # The module's annotations are strings, which FastAPI resolves in its globals.
    probe.__annotations__["chain"] = EditableChain
    with site() as own:
        own.app.include_router(router)
        user, viewer = own.as_("USER"), own.as_("VIEWER")
        assert viewer.post("/web/probe", headers=WRITE).status_code == 403
        assert user.post("/web/probe").status_code == 403
        assert user.post("/web/probe", headers=WRITE | {"Sec-Fetch-Site": "cross-site"}).status_code == 403
        assert user.post("/web/probe", headers=WRITE | {"Sec-Fetch-Site": "same-site"}).status_code == 403
        assert not done
        assert user.post("/web/probe", headers=WRITE).json() == {"said": "web"}
        same = user.post("/web/probe", headers=WRITE | {"Sec-Fetch-Site": "same-origin"})
        assert same.status_code == 200
        assert user.post("/nowhere/probe", headers=WRITE).status_code == 404
        assert done == ["web", "web"]


def test_every_change_wants_the_header_even_from_an_admin(pages: Site) -> None:
    client = pages.as_("ADMIN")
    for method, path in routes(pages):
        if method == "POST":
            answer = client.post(path, json={})
            assert answer.status_code == 403, path
            assert "x-percolator" in answer.json()["error"]


def test_a_chain_whose_dag_one_may_not_read_does_not_exist(
    pages: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    def only_other(**asked: Any) -> bool:
        return bool(asked["details"].id == "other_observe")

    monkeypatch.setattr(get_auth_manager(), "is_authorized_dag", only_other)
    client = pages.as_("ADMIN", follow_redirects=False)
    for method, path in routes(pages):
        if path.startswith("/web/"):
            hidden = client.request(method, path, headers=WRITE, json={})
            missing = client.request(method, path.replace("/web/", "/nowhere/"), headers=WRITE, json={})
            assert hidden.status_code == missing.status_code == 404, (method, path)
            assert hidden.json()["error"].replace("web", "nowhere") == missing.json()["error"]
    overview = client.get("/", headers=PAGE).text
    assert "/other/" in overview
    assert "/web/" not in overview
    assert "not a DAG of a chain" in client.get("/dag/web_observe", headers=PAGE).text
    assert client.get("/other/").status_code == 200


def test_who_may_nothing_sees_no_chain(pages: Site) -> None:
    client = pages.as_(None)
    assert client.get("/web/").status_code == 404
    assert "There is no chain that you may see" in client.get("/", headers=PAGE).text


def test_data_is_for_those_who_may_read_xcoms(pages: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity

    monkeypatch.setattr(
        get_auth_manager(),
        "is_authorized_dag",
        lambda **asked: asked.get("access_entity") != DagAccessEntity.XCOM,
    )
    client = pages.as_("VIEWER")
    assert client.get("/web/").status_code == 200
    for path in ("/web/quarantine", "/web/tables/docs/rows", "/web/trace?table=docs&row=a"):
        answer = client.get(path, headers=PAGE)
        assert answer.status_code == 403, path
        assert "XComs of web_observe" in answer.text


def test_log_files_of_workers_are_for_nobody(pages: Site) -> None:
    """One file may have the lines of several chains."""
    answer = pages.as_("ADMIN").get("/web/workers/any", headers=PAGE)
    assert answer.status_code == 403
    assert "you may not see the logs of workers here" in answer.text


def test_security_headers_stand_on_every_answer(pages: Site) -> None:
    admin, nobody = pages.as_("ADMIN"), pages.anonymous()
    answers = [
        admin.get("/web/", headers=PAGE),
        admin.get("/nowhere/"),
        nobody.get("/web/"),
        nobody.get("/static/percolator.js"),
        nobody.get("/static/nothing.js"),
        admin.post("/web/quarantine/retry"),
    ]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'self'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert answers[0].headers["cache-control"] == "no-store"
    assert answers[3].headers["cache-control"] == "no-cache"


def test_a_mistake_of_ours_is_a_sentence_and_no_traceback(
    pages: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from percolator_core.ui.pages import graph

    def broken(*_: Any) -> None:
        raise RuntimeError("secret /etc/passwd")

    monkeypatch.setattr(graph, "status", broken)
    client = pages.as_("VIEWER", raise_server_exceptions=False)
    for headers in ({}, PAGE):
        answer = client.get("/web/", headers=headers)
        assert answer.status_code == 500
        assert "RuntimeError: see the log of Airflow" in answer.text.replace("&#39;", "'")
        assert "secret" not in answer.text
        assert "default-src 'self'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("tab", TABS)
def test_hostile_texts_stay_texts(pages: Site, tab: str) -> None:
    text = pages.as_("ADMIN").get(f"/web/{tab}", headers=PAGE).text
    assert EVIL not in text
    if tab in ("", "quarantine"):
        assert "&lt;script&gt;alert(1)" in text
    _nothing_inline(text)


def test_hostile_questions_stay_texts(pages: Site) -> None:
    client = pages.as_("ADMIN")
    for path in (
        f"/{EVIL}",
        f"/dag/{EVIL}",
        f"/web/plots?span={EVIL}",
        f"/web/plots?observer={EVIL}",
        f"/web/quarantine?observer={EVIL}&row={EVIL}",
        f"/web/tables/{EVIL}",
        f"/web/tables/docs/rows?prefix={EVIL}&where={EVIL}&at={EVIL}&after={EVIL}",
        f"/web/tables/docs/row?key={EVIL}",
        f"/web/trace?table=docs&row={EVIL}&column=text",
        f"/web/trace?table={EVIL}&row={EVIL}&column={EVIL}",
    ):
        answer = client.get(path, headers=PAGE)
        assert answer.status_code < 500, path
        assert EVIL not in answer.text, path
        _nothing_inline(answer.text)


def _nothing_inline(text: str) -> None:
    """Expect no inline scripts and styles, which the policy would block."""
    assert not re.search(r"<script(?![^>]* src=)", text)
    assert not re.search(r"<[^>]*\s(style|on[a-z]+)=", text)
    assert "<style" not in text


def test_a_store_that_is_away_is_one_sentence_without_its_password(
    pages: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from percolator_core.ui import stores

    monkeypatch.setattr(stores, "PATIENCE", 0.2)
    chain = write_chain(tmp_path / "away", "away", TABLES, {"split": "observe: docs.text"})
    give_dag(chain, "away", conn_id="away")
    with connection_to("redis://:hush@127.0.0.1:9", "away"):
        client = pages.as_("VIEWER")
        answer = client.get("/away/", headers=PAGE)
        assert answer.status_code == 503
        assert "did not answer" in answer.text
        assert "Try again" in answer.text
        front = client.get("/", headers=PAGE)
        assert front.status_code == 200
        assert "did not answer" in front.text
        assert 'href="/web/"' in front.text
        assert "hush" not in answer.text + front.text


def test_a_connection_that_is_not_there_is_named(pages: Site, tmp_path: Path) -> None:
    chain = write_chain(tmp_path / "alone", "alone", TABLES, {"split": "observe: docs.text"})
    give_dag(chain, "alone", conn_id="nobody_made_it")
    answer = pages.as_("VIEWER").get("/alone/plots")
    assert answer.status_code == 500
    assert "no connection 'nobody_made_it'" in answer.json()["error"]


def test_links_stand_below_airflows_own_path(pages: Site) -> None:
    from fastapi import FastAPI
    from starlette.testclient import TestClient

    outer = FastAPI(root_path="/deep")
    outer.mount("/percolator", pages.app)
    client = TestClient(outer)
    client.cookies.set("_token", pages.token("VIEWER"))
    text = client.get("/deep/percolator/web/", headers=PAGE).text
    links = set(re.findall(r' (?:href|src)="([^"#]+)', text))
    assert "/deep/percolator/web/plots" in links
    assert "/deep/dags/web_observe" in links
    assert all(link.startswith(("/deep/percolator/", "/deep/dags/")) for link in links), links


class TestChains:
    """The chains are found by the DAGs in Airflow's database."""

    def test_the_newest_version_of_a_dag_counts(self, pages: Site, tmp_path: Path) -> None:
        from airflow.utils.session import create_session

        from percolator_airflow.ui.chains import known_chain

        chain = write_chain(tmp_path / "moved", "moved", TABLES, {"split": "observe: docs.text"})
        for namespace in ("before", "after", None):
            give_dag(chain, "moved", namespace=namespace, project=str(tmp_path))
            with create_session() as session:
                found = known_chain(session, "moved")
            assert found is not None
            assert (found.namespace, found.path) == (namespace, chain)

    def test_a_version_of_before_does_not_count(self, pages: Site, tmp_path: Path) -> None:
        from airflow.models.dag_version import DagVersion
        from airflow.models.serialized_dag import SerializedDagModel
        from airflow.utils.session import create_session

        from percolator_airflow.ui.chains import known_chain

        give_dag(tmp_path, "twice", namespace="now")
        with create_session() as session:
            version = DagVersion(dag_id="twice_observe", version_number=7, bundle_name=BUNDLE)
            session.add(version)
            session.flush()
            before = SerializedDagModel(serialized(tmp_path, "twice", namespace="before"))
            before.dag_version_id, before.created_at = version.id, datetime(2026, 1, 1, tzinfo=UTC)
            session.add(before)
        with create_session() as session:
            found = known_chain(session, "twice")
        assert found is not None
        assert found.namespace == "now"

    def test_a_dag_of_somebody_else_is_no_chain(self, pages: Site, tmp_path: Path) -> None:
        from airflow.models.dag import DagModel
        from airflow.utils.session import create_session

        from percolator_airflow.ui.chains import known_chain, known_chains

        give_dag(tmp_path, "foreign")
        with create_session() as session:
            dag = session.get(DagModel, "foreign_observe")
            dag.tags[:] = [tag for tag in dag.tags if tag.name != "percolator"]
        with create_session() as session:
            assert known_chain(session, "foreign") is None
            assert "foreign" not in {chain.name for chain in known_chains(session)}
            # The underscore of the suffix is not a wildcard, and a part of a name does not match.
            assert known_chain(session, "we") is None
            assert known_chain(session, "web") is not None

    def test_a_dag_that_is_gone_is_no_chain(self, pages: Site, tmp_path: Path) -> None:
        from airflow.models.dag import DagModel
        from airflow.utils.session import create_session

        give_dag(tmp_path, "gone")
        with create_session() as session:
            session.get(DagModel, "gone_observe").is_stale = True
        assert pages.as_("ADMIN").get("/gone/").status_code == 404

    def test_declarations_are_read_again_when_a_file_changed(self, tmp_path: Path) -> None:
        from percolator_airflow.ui.chains import KnownChain
        from percolator_core.ui.declarations import declared

        folder = write_chain(tmp_path / "c", "c", TABLES, {"split": "observe: docs.text"})
        chain = KnownChain("c", folder, "c_observe", "percolator_default", None)
        first = declared(chain)
        assert declared(chain) is first
        write_chain(folder, "c", TABLES, {"join": "observe: out.a"})
        assert set(declared(chain).observers) == {"split", "join"}
        (folder / "join.yaml").write_text("version: 1\n")
        for _ in range(2):
            with pytest.raises(percolator.ConfigurationError, match=r"join\.yaml"):
                declared(chain)
