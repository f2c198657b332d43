"""The references of pages and style sheets, and their snapshots."""

from __future__ import annotations

import time

import pytest

from observers.pagedeps import document, style
from observers.pagedeps.addresses import path_address, resolve
from observers.pagedeps.document import MAX_DEPTH, Source, compose, references
from observers.pagedeps.embedding import content_of

A = "manual/a.html"


def sources(contents: dict[str, str]) -> dict[str, Source]:
    found = {address: content_of(address, text.encode(), None) for address, text in contents.items()}
    return {address: Source(content.kind, content.embedding) for address, content in found.items()}


def made(html: str, contents: dict[str, str], address: str = A) -> str:
    return compose(address, html.encode(), sources(contents)).decode("utf-8-sig")


@pytest.mark.parametrize(
    ("base", "reference", "address"),
    [
        ("manual/a.html", "b.css", "manual/b.css"),
        ("manual/a.html", "../b.css?v=3#x", "b.css"),
        ("manual/a.html", "../../../b.css", "b.css"),
        ("manual/a.html", " a b.png\n", "manual/a%20b.png"),
        ("manual/a.html", "a%20b.png", "manual/a%20b.png"),
        ("manual/a.html", "ä.png", "manual/%C3%A4.png"),
        ("http://X.org/a/", "/b.css?v=3#x", "http://x.org/b.css?v=3"),
        ("https://x.org/a", "//y.org/b", "https://y.org/b"),
        ("manual/a.html", "data:image/png;base64,AA", None),
        ("manual/a.html", "#part", None),
        ("manual/a.html", "", None),
        ("manual/a.html", "http://[", None),
        ("manual/a.html", "javascript:x()", None),
        ("manual/a.html", "x" * 9000, None),
    ],
)
def test_addresses(base: str, reference: str, address: str | None) -> None:
    assert resolve(base, reference) == address


def test_a_file_has_the_address_by_which_pages_name_it() -> None:
    for name in ("a b.png", "a%b.png", "ä.png", "a#b.png", "a?b.png", "a+b&c.png"):
        assert resolve("x/y.html", path_address(name)) == "x/" + path_address(name)


def test_what_a_page_names() -> None:
    html = """
        <base href="/lib/"><link rel="stylesheet icon" href=both><link rel=alternate href=no>
        <link rel="alternate stylesheet" href=no><link rel="Shortcut Icon" href=icon.ico>
        <style>@import "in.css"; p { background: url(in.png) }</style>
        <p style="background: url('attribute.png')"><table background=old.gif><img src=i.png srcset="no 2x">
        <svg><image href=svg1.png /><image xlink:href=svg2.png /></svg><video poster=v.png src=no>
        <a href=no><script src=no></script><iframe src=no></iframe>"""
    names = "attribute.png both i.png icon.ico in.css in.png old.gif svg1.png svg2.png v.png"
    assert references(A, html.encode()) == tuple(f"/lib/{name}" for name in names.split())


def test_what_a_style_sheet_names() -> None:
    text = r"""@charset "utf-8"; /* @import "no1"; url(no2) */ @layer base; @import url( 'a.css' ) print;
        @IMPORT "b.css"; p::before { content: "url(no3)"; background: URL(c\ d.png), url("\65.png") }
        @import "late.css"; q { background: url(#no4) url(data:no5) } my-url(no6)"""
    named = {"a.css", "b.css", "c%20d.png", "e.png"}
    assert style.references("x/s.css", text) == {f"x/{name}" for name in named}


def test_a_snapshot_needs_nothing_else() -> None:
    html = """<!DOCTYPE html><meta charset=latin1><link rel=stylesheet href="../s.css" media=print>
        <img src=i.png#part srcset="no 2x"><p style="background: url(i.png)"><script src=no></script>
        <style>p { background: url(missing.png) }</style><svg><image xlink:href=i.png /></svg>ä"""
    contents = {
        "s.css": "@import 'deep/t.css'; a { b: url(manual/i.png) }",
        "deep/t.css": "c { d: 'é</style>' }",
    }
    snapshot = made(html, contents | {"manual/i.png": "picture"})
    assert references(A, snapshot.encode()) == ()
    assert snapshot.startswith("<!DOCTYPE html>")
    assert snapshot.count("data:image/png;base64,cGljdHVyZQ==") == 4
    assert '#part"' in snapshot
    assert '<style media="print" data-from="s.css">' in snapshot
    assert r"c { d: 'é<\/style>' }" in snapshot
    assert "manual%2Fmissing.png" in snapshot
    assert "no" not in snapshot.replace("none", "").replace("xmlns", "")
    assert snapshot.endswith("ä</p></body></html>")


@pytest.mark.parametrize(
    ("condition", "before"),
    [
        ("", "b{}"),
        ("print, (width > 3px)", "@media print, (width > 3px) {\nb{}"),
        ("layer", "@layer  {\nb{}"),
        (
            "layer(x.y) supports(not (display: grid)) screen",
            "@layer x.y {\n@supports (not (display: grid)) {\n@media screen {\nb{}",
        ),
    ],
)
def test_the_conditions_of_an_import(condition: str, before: str) -> None:
    snapshot = made(f"<style>@import 'b.css' {condition}; a{{}}</style>", {"manual/b.css": "b{}"})
    assert f"<style>{before}" in snapshot
    assert snapshot.count("{") == snapshot.count("}")
    assert snapshot.index("b{}") < snapshot.index("a{}")


def test_sheets_that_import_each_other_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    html = "<link rel=stylesheet href=/0.css>"
    assert (
        made(
            html, {"/0.css": "@import '/0.css'; @import '/1.css'; a{}", "/1.css": "@import '0.css'; b{}"}
        ).count("{}")
        == 2
    )
    # Each sheet is imported twice by the previous one, so the limit of bytes ends the recursion.
    monkeypatch.setattr(document, "MAX_EMBEDDED", 1 << 20)
    twice = {f"/{n}.css": f"@import '/{n + 1}.css'; @import '/{n + 1}.css';" for n in range(30)}
    assert len(made(html, twice)) < 4 << 20
    row = {f"/{n}.css": f"@import '/{n + 1}.css'; a{n}{{}}" for n in range(500)}
    assert made(html, row).count("{}") == MAX_DEPTH


@pytest.mark.parametrize(
    "text",
    [
        "url(" + " " * 300_000,
        "@import 'a' " * 10_000 + "{",
        "@charset " * 40_000,
        "/*" * 200_000,
        "'\\" * 99_999,
        "url('\\" * 50_000,
    ],
)
def test_a_strange_sheet_costs_no_more_than_its_length(text: str) -> None:
    started = time.process_time()
    assert style.references("a.css", text) in (set(), {"a"})
    assert time.process_time() - started < 5  # the square of the length would be minutes
