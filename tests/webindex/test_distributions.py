"""The installed distributions as a web site."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urljoin

import pytest

from observers.webindex.demo import to_html
from observers.webindex.demo.distributions import write_site


def links(page: str) -> list[str]:
    return re.findall(r'<a href="([^"]*)">', page)


def install(folder: Path, name: str, headers: str, description: str, files: dict[str, str]) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{headers}\n\n{description}"
    )
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in [*files, "../../bin/x.md"]))


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    licence = {"{}-1.0.dist-info/licenses/LICENSE": "Do <what> you like. See https://l.org/x."}
    install(
        folder,
        "Alpha_One",
        "Summary: A & <b>\nDescription-Content-Type: text/markdown\nHome-page: https://a.org/?x=1&y=2\n"
        "Requires-Dist: beta.two>=1 ; python_version > '3'\nRequires-Dist: gone\n"
        "Requires-Dist: extra-gone ; extra == 'x'\nProject-URL: Docs, https://a.org/docs",
        "# Alpha\n\nSee [Beta](https://b.org/) and [local](docs/x.md).\n\n<script>alert(1)</script>"
        '<a href="javascript:x" onclick="y">no</a><img src="z" alt="logo">',
        {
            "alpha/readme.md": "# Inside\n\n`code`",
            "alpha/data.txt": "a < b",
            "alpha/top_level.txt": "no",
            **{path.format("Alpha_One"): text for path, text in licence.items()},
        },
    )
    install(
        folder,
        "beta.two",
        "Summary: B",
        "Beta\n====\n\nText `of link <https://c.org/>`_ and ``x < y``::\n\n    code <here>\n\n* one\n* two\n",
        {path.format("beta.two"): text for path, text in licence.items()},
    )
    return folder


def build(target: Path, installed: Path) -> dict[str, str]:
    site = write_site(target, metadata.distributions(path=[str(installed)]))
    return {page: (target / page).read_text() for page in site.pages}


def test_pages_and_links(tmp_path: Path, installed: Path) -> None:
    pages = build(tmp_path / "out", installed)
    assert set(pages) == {
        "index.html",
        "pages/alpha-one.html",
        "pages/alpha-one/alpha/readme.md.html",
        "pages/alpha-one/alpha/data.txt.html",
        "pages/alpha-one/Alpha_One-1.0.dist-info/licenses/LICENSE.html",
        "pages/beta-two.html",
        "pages/beta-two/beta.two-1.0.dist-info/licenses/LICENSE.html",
    }
    alpha = pages["pages/alpha-one.html"]
    assert "<title>Alpha_One 1.0</title>" in alpha
    assert "<p>A &amp; &lt;b&gt;</p>" in alpha
    assert links(alpha) == [
        "https://b.org/",
        "beta-two.html",
        "https://a.org/docs",
        "https://a.org/?x=1&amp;y=2",
        "alpha-one/Alpha_One-1.0.dist-info/licenses/LICENSE.html",
        "alpha-one/alpha/data.txt.html",
        "alpha-one/alpha/readme.md.html",
        "../index.html",
    ]
    assert "<li>gone</li>" in alpha
    assert "extra-gone" not in alpha
    assert not re.search("<script|alert|javascript|onclick|<img", alpha)
    assert "logo" in alpha
    beta = pages["pages/beta-two.html"]
    assert '<a href="https://c.org/">of link</a> and <code>x &lt; y</code>:' in beta
    assert "<pre>    code &lt;here&gt;</pre>" in beta
    assert "<ul><li>one</li><li>two</li></ul>" in beta
    licences = [page for path, page in pages.items() if "LICENSE" in path]
    assert licences[0] == licences[1]
    assert (
        '<pre>Do &lt;what&gt; you like. See <a href="https://l.org/x">https://l.org/x</a>.</pre>'
        in licences[0]
    )


def test_inner_links_lead_to_pages(tmp_path: Path, installed: Path) -> None:
    pages = build(tmp_path / "out", installed)
    for path, page in pages.items():
        inner = [link for link in links(page) if not link.startswith("http")]
        assert all(
            unquote(urljoin(f"http://h/{path}", link)).removeprefix("http://h/") in pages for link in inner
        )


def test_the_same_installation_gives_the_same_site(tmp_path: Path, installed: Path) -> None:
    target = tmp_path / "out"
    first = build(target, installed)
    times = {path: (target / path).stat().st_mtime_ns for path in first}
    stale = target / "pages" / "gone.html"
    stale.write_text("x")
    kept = target / "own.html"
    kept.write_text("x")
    assert build(target, installed) == first
    assert {path: (target / path).stat().st_mtime_ns for path in first} == times
    assert (stale.exists(), kept.exists()) == (False, True)


def test_this_installation_makes_a_real_corpus(tmp_path: Path) -> None:
    site = write_site(tmp_path)
    assert len(site.pages) > 100
    assert len(set(site.pages)) == len(site.pages)
    page = (tmp_path / "pages" / "pydantic.html").read_text()
    assert "pydantic-core.html" in links(page)
    assert len(links(page)) > 10


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("Title\n=====\nSub\n---\nText", "<h1>Title</h1>\n<h2>Sub</h2>\n<p>Text</p>"),
        ("=====\nTitle\n=====", "<h1>Title</h1>"),
        ("`Name`_ and name_\n\n.. _name: https://n.org", '<p><a href="https://n.org">Name</a> and <a href="https://n.org">name</a></p>'),
        (".. note:: Mind **this**", "<p>Mind <strong>this</strong></p>"),
        (".. image:: x.png\n   :alt: y", ""),
        ("|b| text\n\n.. |b| image:: x", "<p> text</p>"),
        (".. code-block:: python\n\n   x = 1", "<pre>   x = 1</pre>"),
        ("- a\n  more\n- b", "<ul><li>a more</li><li>b</li></ul>"),
        ("`plain` https://u.org.", '<p>plain <a href="https://u.org">https://u.org</a>.</p>'),
        ("1 * 2 * 3 <x> http://[bad", "<p>1 * 2 * 3 &lt;x&gt; http://[bad</p>"),
    ],
)  # fmt: skip
def test_restructured_text(text: str, html: str) -> None:
    assert to_html.restructured(text) == html


def test_clean_closes_what_is_open() -> None:
    assert to_html.clean("<p><b>x</p><li>y") == "<p><b>x</b></p><li>y</li>"
    assert to_html.clean("a</p></b><style>x{}</style><svg><p>z</p></svg>&lt;&amp;") == "a&lt;&amp;"


def test_plain_text() -> None:
    assert to_html.plain("a <b>\n\n\nhttps://x.org/(y).") == (
        '<p>a &lt;b&gt;</p>\n<p><a href="https://x.org/(y">https://x.org/(y</a>).</p>'
    )
