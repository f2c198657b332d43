"""The documentation's site is built without a warning, and works from disk."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import percolator_airflow
import percolator_core
from percolator_core import recipes
from tests.site.pages import ROOT, pages

CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documentation") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_page_is_in_the_navigation_and_loads_nothing_from_the_network(site: Path) -> None:
    navigation = (site / "index.html").read_text(encoding="utf-8")
    for page in pages():
        html = site / Path(page).with_suffix(".html")
        assert html.is_file()
        assert f'href="{html.relative_to(site)}"' in navigation
        text = html.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"?([^\s\">]+)", text)
        loaded += re.findall(r"<link[^>]*rel=\"?(?:stylesheet|preconnect|icon)\"?[^>]*>", text)
        assert not [one for one in loaded if "//" in one]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("package", "names"),
    [
        ("percolator_core", percolator_core.__all__),
        ("percolator_core.recipes", recipes.__all__),
        ("percolator_airflow", percolator_airflow.__all__),
    ],
)
def test_each_public_name_is_in_the_reference(site: Path, package: str, names: list[str]) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (site / "reference" / "api").iterdir())
    described = set(re.findall(r'id="([\w.]+)"', text))
    assert {f"{package}.{name}" for name in names} - described == set()
    if package == "percolator_core":
        calls = [f"{package}.Database.{name}" for name in ("run", "begin", "collect_garbage", "resolve_lock")]
        calls += [
            f"{package}.Transaction.{name}" for name in ("get_many", "notify", "upsert", "commit", "cost")
        ]
        calls += [f"{package}.Worker.{name}" for name in ("run", "run_until_idle", "stop")]
        assert set(calls) - described == set()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_search_box_finds_a_page_from_disk(site: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("NOT TESTED: there is no chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = browser.new_page()
            asked: list[str] = []
            errors: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto((site / "index.html").as_uri())
            page.click(".md-search__input")
            page.keyboard.type("quarantine")
            page.wait_for_selector(".md-search-result__link", timeout=60_000)
            found = page.locator(".md-search-result__link").first
            assert found.get_attribute("href", timeout=60_000)
            assert "Deal with failures" in page.inner_text(".md-search-result__list")
            found.click()
            page.wait_for_url("**/*.html?h=*", timeout=60_000)
            assert "quarantine" in page.inner_text("article").lower()
            assert not errors
            assert not [url for url in asked if not url.startswith(("file:", "data:", "about:"))]
        finally:
            browser.close()
