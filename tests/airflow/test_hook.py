"""The hook opens the database of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from percolator_core import connect
from percolator_core.errors import ConfigurationError
from tests.airflow.project import CONN_ID, make_project, set_connection
from tests.servers.plain import free_port


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    url = f"embedded:{tmp_path}/store"
    set_connection(monkeypatch, host=url, extra={"lock_ttl": 3})
    with connect(url):
        yield url


@pytest.mark.parametrize(
    ("given", "namespace"),
    [
        ((None, None, "default"), "default"),
        ((None, None, "chain"), "chain"),
        ((None, "extra", "chain"), "extra"),
        (("given", "extra", "chain"), "given"),
    ],
)
def test_the_namespace_is_the_nearest_that_is_given(
    url: str, monkeypatch: pytest.MonkeyPatch, given: tuple[str | None, str | None, str], namespace: str
) -> None:
    from percolator_airflow import PercolatorHook

    argument, in_extra, default = given
    set_connection(monkeypatch, host=url, extra={"namespace": in_extra})
    with PercolatorHook(CONN_ID, argument, default_namespace=default).get_conn() as db:
        assert db.namespace == namespace


def test_the_connections_settings_are_those_of_connect(url: str) -> None:
    from percolator_airflow import PercolatorHook

    with PercolatorHook(CONN_ID).get_conn() as db:
        assert db.connect_arguments()["lock_ttl"] == 3.0


def test_in_an_event_loop(url: str) -> None:
    from percolator_airflow import PercolatorHook

    hook = PercolatorHook(CONN_ID, "n")
    assert asyncio.run(hook.aarguments()) == hook.arguments()


def test_a_missing_connection(airflow_home: Path) -> None:
    from percolator_airflow import PercolatorHook

    for call in (
        PercolatorHook("nowhere").get_conn,
        lambda: asyncio.run(PercolatorHook("nowhere").aarguments()),
    ):
        with pytest.raises(ConfigurationError, match="there is no connection 'nowhere': add one"):
            call()
    assert PercolatorHook("nowhere").test_connection()[0] is False


def test_airflows_test_button(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk import Connection

    from percolator_airflow import PercolatorHook

    works, said = Connection(conn_id="tried", conn_type="percolator", host=url).test_connection()
    assert works, said
    assert f"at {url} answers" in said
    set_connection(monkeypatch, host="127.0.0.1", port=free_port())
    works, said = PercolatorHook(CONN_ID).test_connection()
    assert not works
    assert "check that it runs and can be reached" in said


class TestChainFolder:
    def test_finds_the_project(self, tmp_path: Path) -> None:
        from percolator_airflow.chains import ChainFolder

        words = make_project(tmp_path / "project", "")
        found = ChainFolder.of(words.chain)
        assert (found.path, found.project, found.name) == (Path(words.chain), words.folder, "words")

    def test_takes_the_folder_above_for_a_chain_whose_functions_are_installed(self, tmp_path: Path) -> None:
        from percolator_airflow.chains import ChainFolder

        words = make_project(tmp_path / "project", "")
        (words.folder / words.module / "steps.py").unlink()
        assert ChainFolder.of(words.chain).project == words.folder / "observers"

    def test_goes_by_the_next_function_or_schema_where_one_is_installed(self, tmp_path: Path) -> None:
        from percolator_airflow.chains import ChainFolder

        words = make_project(tmp_path / "project", "")
        first = Path(words.chain) / "first.yaml"
        first.write_text(first.read_text().replace(f"{words.module}.steps:first", "json:dumps"))
        assert ChainFolder.of(words.chain).project == words.folder
        second = Path(words.chain) / "second.yaml"
        second.write_text(second.read_text().replace(f"{words.module}.steps:second", "json:dumps"))
        assert ChainFolder.of(words.chain).project == words.folder / "observers"
        with (Path(words.chain) / "chain.yaml").open("a") as file:
            file.write(f"schemas: {words.module}.steps\n")
        assert ChainFolder.of(words.chain).project == words.folder

    def test_takes_the_project_that_is_named(self, tmp_path: Path) -> None:
        from percolator_airflow.chains import ChainFolder

        words = make_project(tmp_path / "project", "")
        assert ChainFolder.of(words.chain, tmp_path).project == tmp_path
        with pytest.raises(ConfigurationError, match="is not a folder"):
            ChainFolder.of(words.chain, tmp_path / "nowhere")

    def test_two_projects_with_modules_of_one_name(self, tmp_path: Path) -> None:
        from percolator_airflow.chains import ChainFolder

        words = [make_project(tmp_path / name, "") for name in ("one", "two")]
        for each in words:
            for path in Path(each.chain).glob("*.yaml"):
                path.write_text(path.read_text().replace(each.module, "steps_of"))
            (each.folder / each.module).rename(each.folder / "steps_of")
        for each in words:
            with ChainFolder.of(each.chain).imported() as chain:
                assert Path.cwd() == each.folder  # what it imports later is found there, too
                function = chain.observers["first"].function
                assert Path(function.__code__.co_filename).is_relative_to(each.folder)
