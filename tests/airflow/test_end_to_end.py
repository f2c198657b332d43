"""Everything on a real Airflow: loads, observers, pages and maintenance, with a browser and with kills.

One ``airflow standalone`` serves all tests of this file, in the environment of somebody who has installed the
library and nothing else of this repository. The store has a password, which must be nowhere in what Airflow
wrote, and three chains: the shipped web index, a small one that was dropped beside the DAG files, and the
first project of the README.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest

import percolator_core as percolator
from percolator_core import Chain, Database
from percolator_core.admin.status import status
from tests.airflow.standalone import PATIENCE, Standalone, standalone
from tests.servers.plain import Server, binaries
from tests.stranger import stranger_in
from tests.test_readme import write_project

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
PASSWORD = "canary-7f3a91-canary"
CHROMIUM = shutil.which("chromium")
SCREENSHOTS = Path(os.environ.get("PERCOLATOR_SCREENSHOTS", ""))
USERS = {"admin": "admin", "viewer": "viewer"}
PAGES = ("", "plots", "quarantine", "locks", "tables", "tables/orders", "tables/orders/rows", "trace")

CHAIN = """\
version: 1
chain: shop
trace: true
tables:
  orders: {tablets: 4}
  totals: {tablets: 2}
airflow:
  default_args: {retries: 0}
  observe: {engine: local}
  monitor: {schedule: null}
  maintain: {schedule: null}
"""
OBSERVER = """\
version: 1
observer: add_up
description: Adds an order to the total of its row.
observe: orders.amount
function: shop.work:add_up
writes: [totals.sum, totals.count]
retry: {attempts: 1}
"""
WORK = """\
import time
from pathlib import Path


def add_up(t, cell):
    amount = t.get("orders", cell.row, "amount")
    if amount == b"x" and (Path(__file__).parent / "strict").exists():
        raise ValueError("an order of x pieces <b>cannot</b> be")
    if amount == b"slow":
        time.sleep(0.05)
    number = 0 if not amount.isdigit() else int(amount)
    for column, more in (("sum", number), ("count", 1)):
        t.set("totals", cell.row, column, b"%d" % (int(t.get("totals", cell.row, column) or 0) + more))
"""
DAG_FILE = """\
from percolator_airflow import chain_dags

globals().update(chain_dags({arguments}))
"""


DOCS = (ROOT / "docs" / "how-to" / "airflow.md").read_text()
FIRST = ("words_load", "words_observe", "words_maintain", "words_monitor")
"""The DAGs of the README's first project, paused until its test, the last: one of them runs every minute."""

NAMELESS = """() => [...document.querySelectorAll('a, button, input, select, textarea')]
    .filter(one => one.offsetParent
        && !(one.textContent.trim() || one.ariaLabel || one.labels?.length || one.title))
    .map(one => one.outerHTML)"""
"""Return the controls of a page without an accessible name."""


@dataclass
class Site:
    """Airflow, the store, and what the tests do to them."""

    airflow: Standalone
    server: Server
    url: str
    folder: Path

    def connect(self, namespace: str) -> Database:
        return percolator.connect(self.url, namespace)

    @property
    def shop(self) -> Chain:
        return Chain.load(self.folder / "dags" / "shop", import_functions=False)

    def order(self, **amounts: str) -> float:
        """Write orders, and return the time of the commit."""
        with self.connect("shop") as db:
            with db.transaction() as t:
                for row, amount in amounts.items():
                    t.set("orders", row, "amount", amount.encode())
            return time.time()

    def total(self, column: str = "sum") -> int:
        with self.connect("shop") as db:
            return sum(int(cells[column]) for _, cells in db.snapshot().scan("totals", columns=[column]))

    def await_count(self, least: int) -> None:
        self.airflow.until(lambda: self.total("count") >= least, f"{least} runs")

    def idle(self, namespace: str, chain: Chain) -> bool:
        with self.connect(namespace) as db:
            return status(db, chain).idle

    def await_idle(self, namespace: str, chain: Chain) -> None:
        self.airflow.until(lambda: self.idle(namespace, chain), f"{namespace} idle")

    def await_quiet(self, dag: str) -> None:
        """Wait until no run of the DAG is active."""

        def quiet() -> bool:
            runs = self.airflow.api("GET", f"/dags/{dag}/dagRuns?state=running&state=queued")
            return not runs["dag_runs"]

        self.airflow.until(quiet, f"{dag} quiet")

    def run(self, dag: str, conf: dict[str, Any] | None = None) -> None:
        """Start a manual run, and expect its success."""
        run = self.airflow.trigger(dag, conf)
        state = self.airflow.await_run(dag, run)
        assert state == "success", self.logs(dag, run)

    def logs(self, dag: str, run: str) -> str:
        tasks = self.airflow.api("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        states = ", ".join(f"{one['task_id']} {one['state']}" for one in tasks)
        files = sorted((self.airflow.home / "logs").glob(f"dag_id={dag}/run_id={run}/**/*.log"))
        failed = {one["task_id"] for one in tasks if one["state"] != "success"}
        shown = [
            file.read_text() for file in files if any(f"task_id={name}/" in str(file) for name in failed)
        ]
        return "\n".join([states, *shown])[-6000:]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    dags, pages = folder / "dags", folder / "pages"
    (dags / "shop").mkdir(parents=True)
    pages.mkdir()
    for name, text in {
        "chain.yaml": CHAIN,
        "add_up.yaml": OBSERVER,
        "work.py": WORK,
        "dag.py": DAG_FILE.format(arguments="__file__.rpartition('/')[0]"),
    }.items():
        (dags / "shop" / name).write_text(text)
    for number in range(12):
        (pages / f"page{number}.html").write_text(
            f"<title>Page {number}</title><p>All about the wombat number{number}."
            f'<a href="page{(number + 1) % 12}.html">the next wombat</a>'
        )
    source = {"table": "documents", "paths": [str(pages)], "format": "html", "base_url": "http://wombats/"}
    (dags / "index.py").write_text(
        DAG_FILE.format(
            arguments=f"{str(ROOT / 'observers' / 'webindex')!r}, load={{'sources': [{source!r}]}}, "
            "observe={'engine': 'local'}, monitor={'schedule': None}, maintain={'schedule': None}"
        )
    )
    write_project(folder)
    dag_file = DOCS.partition("A DAG file is two lines")[2].partition("```python\n")[2].partition("```")[0]
    (dags / "first.py").write_text(dag_file.replace("webindex", "words"))
    (dags / "broken").mkdir()
    (dags / "broken" / "chain.yaml").write_text("version: 1\nchain: broken\ntablez: {}\n")
    (dags / "broken" / "dag.py").write_text(DAG_FILE.format(arguments="__file__.rpartition('/')[0]"))
    binary = next(iter(binaries().values()))
    with closing(Server(binary)) as server:
        with server.client() as client:
            client.config_set("requirepass", PASSWORD)
        url = f"redis://127.0.0.1:{server.port}/0"
        connection = {"conn_type": "percolator", "host": url, "password": PASSWORD}
        environment = {
            "AIRFLOW_CONN_PERCOLATOR_DEFAULT": json.dumps(connection),
            "PERCOLATOR_SERVING": str(folder / "serving.db"),
            "PYTHONPATH": "",
        }
        program = stranger_in(folder / "environment").airflow
        with standalone(folder / "airflow", dags, users=USERS, env=environment, program=program) as airflow:
            site = Site(airflow, server, url.replace("://", f"://:{PASSWORD}@"), folder)
            wanted = {"shop_observe", "webindex_observe", *FIRST}
            airflow.until(lambda: wanted <= known(airflow), "the DAGs")
            airflow.unpause(*sorted(known(airflow) - set(FIRST)))
            with site.connect("shop") as db:
                site.shop.create_tables(db)
            yield site
        assert_nowhere(PASSWORD, folder / "airflow")


def known(airflow: Standalone) -> set[str]:
    return {dag["dag_id"] for dag in airflow.api("GET", "/dags?limit=100")["dags"]}


def assert_nowhere(secret: str, folder: Path) -> None:
    """No file of Airflow's home holds the secret: logs, rendered fields, XComs and events are there."""
    found = [file for file in folder.rglob("*") if file.is_file() and secret.encode() in file.read_bytes()]
    assert not found, found


def test_a_document_that_was_loaded_is_found(site: Site) -> None:
    from observers.webindex.index import ServingIndex
    from observers.webindex.search import search

    airflow = site.airflow
    site.run("webindex_load")
    chain = Chain.load(ROOT / "observers" / "webindex", import_functions=False)
    # The watcher starts the observers.
    site.await_idle("webindex", chain)
    site.await_quiet("webindex_observe")
    runs = airflow.api("GET", "/dags/webindex_observe/dagRuns")["dag_runs"]
    assert runs
    assert {run["run_type"] for run in runs} == {"asset_triggered"}
    # The watcher may have started another run, which finds no cells.
    assert "success" in {run["state"] for run in runs} <= {"success", "queued", "running"}
    with closing(ServingIndex(site.folder / "serving.db")) as index:
        assert len(search("wombat", 20, index=index)) == 12
        assert [found.title for found in search("number7", 20, index=index)] == ["Page 7"]
    site.run("webindex_maintain")
    site.run("webindex_monitor")
    with site.connect("webindex") as db:
        assert status(db, chain).locks == 0


def test_a_broken_chain_is_an_import_error_of_its_own(site: Site) -> None:
    errors = site.airflow.api("GET", "/importErrors")["import_errors"]
    assert len(errors) == 1
    assert errors[0]["filename"].endswith("broken/dag.py")
    assert "tablez" in errors[0]["stack_trace"]
    assert "chain.yaml" in errors[0]["stack_trace"]


def test_a_write_starts_a_drain_within_seconds(site: Site) -> None:
    airflow = site.airflow
    site.await_quiet("shop_observe")
    before = {run["dag_run_id"] for run in airflow.api("GET", "/dags/shop_observe/dagRuns")["dag_runs"]}
    written = site.order(first="3", second="4")
    site.await_idle("shop", site.shop)
    assert site.total() >= 7

    def started() -> float | None:
        for run in airflow.api("GET", "/dags/shop_observe/dagRuns")["dag_runs"]:
            if run["dag_run_id"] not in before and run["run_type"] == "asset_triggered":
                path = f"/dags/shop_observe/dagRuns/{run['dag_run_id']}/taskInstances"
                for one in airflow.api("GET", path)["task_instances"]:
                    if one["start_date"]:
                        return datetime.fromisoformat(one["start_date"]).timestamp()
        return None

    took = airflow.until(started, "a drain") - written
    print(f"write to drain task: {took:.1f} s")


def test_who_is_not_logged_in_sees_nothing_and_who_only_views_changes_nothing(site: Site) -> None:
    site.order(seen="1")
    for path in PAGES:
        answer = site.airflow.request("GET", f"/percolator/shop/{path}", user=None)
        assert answer.status_code == 401, path
        assert "orders" not in answer.text
        answer = site.airflow.request("GET", f"/percolator/shop/{path}", user="viewer")
        assert answer.status_code == 200, (path, answer.text)
    for path in ("quarantine/retry", "quarantine/discard", "locks/resolve"):
        for user, code in ((None, 401), ("viewer", 403)):
            answer = site.airflow.request("POST", f"/percolator/shop/{path}", {}, user=user)
            assert answer.status_code == code, (path, user, answer.text)


@contextmanager
def browser(
    site: Site, user: str, width: int = 1440, height: int = 900, theme: Literal["light", "dark"] = "light"
) -> Iterator[Any]:
    """A page of a real browser, logged in; nothing that it complains about passes."""
    if CHROMIUM is None:
        pytest.skip("NOT TESTED: there is no chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, base_url=site.airflow.base_url
        )
        # The browser's own 30 seconds are too short for Airflow's pages on a busy machine.
        context.set_default_timeout(PATIENCE * 1000)
        page = context.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda message: (
                complaints.append(message.text)
                if message.type == "error" and "/percolator/" in message.location.get("url", "")
                else None
            ),
        )
        page.goto("/auth/login")
        page.fill("input[name=username]", user)
        page.fill("input[name=password]", site.airflow.password(user))
        page.click("button[type=submit]")
        page.wait_for_url(lambda url: "/auth/login" not in url)
        try:
            yield page
        except BaseException:
            picture(page, "failed")
            raise
        finally:
            chromium.close()
        assert not complaints, complaints


def picture(page: Any, name: str) -> None:
    if SCREENSHOTS.name:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


def test_every_page_in_a_browser(site: Site) -> None:
    site.order(plain="5")
    site.await_idle("shop", site.shop)
    site.run("shop_monitor")
    site.run("shop_monitor")
    looks: list[tuple[int, int, Literal["light", "dark"]]] = [(1440, 900, "light"), (390, 844, "dark")]
    for width, height, theme in looks:
        with browser(site, "admin", width, height, theme) as page:
            for path in PAGES:
                answer = page.goto(f"/percolator/shop/{path}")
                assert answer.status == 200, path
                assert page.locator("h1").count() == 1, path
                # No element is wider than a narrow screen.
                assert page.evaluate("document.documentElement.scrollWidth") <= width, path
                nameless = page.evaluate(NAMELESS)
                assert not nameless, (path, nameless)
                picture(page, f"{path.replace('/', '-') or 'graph'}-{width}")
    with browser(site, "admin") as page:
        page.goto("/")
        page.get_by_role("link", name="Percolator").or_(
            page.get_by_role("button", name="Percolator")
        ).first.click()
        page.frame_locator("iframe").get_by_role("link", name="shop").first.wait_for()
        picture(page, "entry")
        page.goto("/dags/shop_observe/plugin/percolator-chain")
        page.frame_locator("iframe").get_by_role("heading", level=1).wait_for()
        picture(page, "tab")


def test_a_cell_in_quarantine_is_put_back_by_a_click(site: Site) -> None:
    strict = site.folder / "dags" / "shop" / "strict"
    strict.touch()
    try:
        counted = site.total("count")
        site.order(odd="x")
        with site.connect("shop") as db:
            site.airflow.until(lambda: status(db, site.shop).failed == 1, "quarantine")
    finally:
        strict.unlink()
    with browser(site, "viewer") as page:
        page.goto("/percolator/shop/quarantine")
        page.get_by_text("an order of x pieces <b>cannot</b> be").first.wait_for()
        assert page.get_by_role("button", name="Retry").count() == 0
    with browser(site, "admin") as page:
        page.goto("/percolator/shop/quarantine")
        picture(page, "quarantine-full")
        page.get_by_role("button", name="Retry odd amount").click()
        dialog = page.locator("dialog[open]")
        if dialog.count():
            dialog.locator("button[value=yes]").click()
        page.locator("#said.shown").wait_for()
        page.get_by_text("an order of x pieces").first.wait_for(state="detached")
    # The watcher starts the observers, and this time they succeed.
    site.airflow.until(lambda: site.total("count") == counted + 1, "the retried cell")


def test_kills_lose_and_double_nothing(site: Site) -> None:
    airflow = site.airflow
    site.await_idle("shop", site.shop)
    counted = site.total("count")
    for round_, victim in enumerate(("scheduler", "api-server", "a task")):
        site.order(**{f"{round_}-{number}": "slow" for number in range(60)})
        site.await_count(counted + 60 * round_ + 3)
        if victim == "a task":
            with_signal(task_of(airflow, "shop_observe"), signal.SIGKILL)
            continue
        killed = airflow.component(victim)
        for process in (*killed.children(recursive=True), killed):
            with_signal(process, signal.SIGKILL)
        airflow.restart(victim)
        airflow.until(lambda: airflow.healthy("scheduler", "metadatabase"), f"{victim} again")
    site.await_idle("shop", site.shop)
    # Each order was counted exactly once.
    assert site.total("count") == counted + 180


def with_signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        pass


def task_of(airflow: Standalone, dag: str) -> psutil.Process:
    """Return the process that runs a task of the DAG."""

    def find() -> psutil.Process | None:
        path = f"/dags/{dag}/dagRuns/~/taskInstances?state=running"
        for one in airflow.api("GET", path)["task_instances"]:
            if one["pid"] and psutil.pid_exists(one["pid"]):
                return psutil.Process(one["pid"])
        return None

    found: psutil.Process = airflow.until(find, "a task")
    return found


def test_the_first_project_of_the_readme(site: Site) -> None:
    """The project has no ``__init__.py``, and Spark, the default engine, runs its observer."""
    texts = site.folder / "texts.jsonl"
    texts.write_text(
        '{"id": "greeting", "text": "hello incremental world"}\n{"id": "short", "text": "bye"}\n'
    )
    site.airflow.unpause(*FIRST)
    site.run("words_load", {"paths": [str(texts)], "table": "documents", "key": "id"})
    site.await_idle("words", Chain.load(site.folder / "observers/words", import_functions=False))
    with site.connect("words") as db:
        counts = {row: cells["words"] for row, cells in db.snapshot().scan("counts")}
    assert counts == {b"greeting": b"3", b"short": b"1"}
    site.await_quiet("words_observe")
    runs = site.airflow.api("GET", "/dags/words_observe/dagRuns")["dag_runs"]
    assert {run["run_type"] for run in runs} == {"asset_triggered"}
    for dag in ("words_observe", "words_maintain", "words_monitor"):
        site.run(dag)
    for dag in FIRST:
        for run in site.airflow.api("GET", f"/dags/{dag}/dagRuns")["dag_runs"]:
            assert run["state"] != "failed", site.logs(dag, run["dag_run_id"])
    for path in ("", "plots", "quarantine", "locks", "tables", "tables/counts/rows", "trace"):
        answer = site.airflow.request("GET", f"/percolator/words/{path}", user="viewer")
        assert answer.status_code == 200, (path, answer.text)
