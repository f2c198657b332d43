"""`percolator ui` as a process: its URL, its end, and mistakes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import Project


def test_it_serves_the_chain_behind_the_token_until_a_signal(project: Project) -> None:
    project.put(one="two words")
    process = project.start("ui", "--chain", "chain", "--port", "0")
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{40,}", url)
    plain, _, token = url.partition("?token=")
    assert httpx.get(plain).status_code == 401
    with httpx.Client(follow_redirects=True) as client:
        overview = client.get(url)
        assert overview.status_code == 200
        assert str(overview.url) == plain
        assert 'id="chain-' in overview.text
        page = client.get(f"{plain}{_name()}/tables/docs/rows")
        assert "two words" in page.text
        with client.stream("GET", f"{plain}events", params={"page": f"/{_name()}/"}) as stream:
            assert stream.status_code == 200
            ended = project.stop(process)
    assert ended.code == 0
    assert token not in ended.err, "the token is printed once, as the result"


def test_ctrl_c_ends_it_and_the_address_may_be_json(project: Project) -> None:
    process = project.start("ui", "--chain", "chain", "--json", variables={"PERCOLATOR_UI_TOKEN": "t" * 20})
    assert process.stdout is not None
    lines = ""
    while not lines.rstrip().endswith("}"):
        lines += process.stdout.readline()
    url = json.loads(lines)["url"]
    assert url.endswith("?token=" + "t" * 20)
    assert (
        httpx.get(url.partition("?")[0], headers={"Authorization": "Bearer " + "t" * 20}).status_code == 200
    )
    assert project.stop(process, signal.SIGINT).code == 130


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--chain", "nowhere"), "nowhere"),
        (("--chain", "chain", "--token", "short"), "16 or more printable"),
        (("--chain", "chain", "--chain", "chain"), "two folders declare the chain"),
        (("--chain", "chain", "--host", "host.invalid"), "cannot listen on port 0 of host.invalid"),
        (("--chain", "chain", "--url", "embedded:none"), "there is no store in"),
    ],
)
def test_mistakes_are_one_sentence(project: Project, arguments: tuple[str, ...], said: str) -> None:
    ended = project("ui", *arguments)
    assert ended.code != 0
    assert said in ended.error


def test_the_chains_of_a_project_are_found(project: Project) -> None:
    """Where `percolator init` and the first project put them; the chain of the current folder goes first."""
    from percolator_core.cli.ui import _found

    assert _found() == [Path("chain")]
    Path("observers").mkdir()
    shutil.copytree("chain", "observers/words")
    assert _found() == [Path("chain"), Path("observers/words")]
    os.chdir("chain")
    assert _found() == [Path()]
    os.chdir("../observers/words")
    Path("chain.yaml").unlink()
    ended = project("ui")
    assert ended.code != 0
    assert (
        "has no chain in NAME/chain.yaml or observers/NAME/chain.yaml: name a chain with --chain"
        in ended.error
    )


def _name() -> str:
    from percolator_core import Chain

    return Chain.load("chain", import_functions=False).name
