from __future__ import annotations

import codecs
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from observers.webindex.page import MAX_ANCHORS_A_LINK, MAX_TARGETS, MAX_TEXT, is_page, parse

URL = "http://example.com/dir/page.html"

RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю. " * 8
JAPANESE = "日本国民は、正当に選挙された国会における代表者を通じて行動し、われらとわれらの子孫のために、" * 8


def html(body: str, head: str = "") -> str:
    return f"<!DOCTYPE html><html><head><title>Title</title>{head}</head><body>{body}</body></html>"


@pytest.mark.parametrize(
    ("text", "encoding", "content_type", "head"),
    [
        (RUSSIAN, "windows-1251", "text/html; charset=windows-1251", ""),
        (RUSSIAN, "windows-1251", "text/html", '<meta charset="windows-1251">'),
        (
            RUSSIAN,
            "windows-1251",
            None,
            '<meta http-equiv="Content-Type" content="text/html; charset=cp1251">',
        ),
        (RUSSIAN, "windows-1251", "text/html; charset=utf-8", '<meta charset="windows-1251">'),
        (RUSSIAN, "koi8-r", "text/html; charset=KOI8-R", ""),
        (JAPANESE, "shift_jis", "text/html; charset=Shift_JIS", ""),
        (JAPANESE, "shift_jis", "text/html; charset=utf-8", "<meta charset=x-sjis>"),
        (JAPANESE, "shift_jis", "text/html; charset=utf-8", ""),
        (JAPANESE, "euc_jp", "text/html; charset=euc-jp", ""),
        (JAPANESE, "iso2022_jp", "text/html; charset=iso-2022-jp", ""),
        (RUSSIAN, "utf-8", "text/html; charset=iso-8859-1", ""),
        (RUSSIAN, "utf-8", None, ""),
        (JAPANESE, "utf-8-sig", "text/html; charset=shift_jis", ""),
        (RUSSIAN, "utf-16", "text/html", ""),
        (RUSSIAN, "utf-16-be", "text/html; charset=utf-16be", ""),
        (RUSSIAN, "windows-1251", None, ""),
        (JAPANESE, "euc_jp", None, ""),
        ("Les élèves étaient à l'école, où ça se passe très bien. " * 4, "windows-1252", None, ""),
        ("naïve café “quotes” — déjà", "windows-1252", "text/html; charset=iso-8859-1", ""),
        (RUSSIAN, "windows-1251", "text/html; charset=zlib_codec", "<meta charset=windows-1251>"),
    ],
)
def test_encodings(text: str, encoding: str, content_type: str | None, head: str) -> None:
    contents = html(f"<p>{text}</p>", head).encode(encoding)
    assert parse(URL, contents, content_type).content.text == " ".join(text.split())


def test_utf_16_marks_of_both_orders() -> None:
    for mark, encoding in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        page = parse(URL, mark + html(RUSSIAN).encode(encoding), None)
        assert page.content.title == "Title"
        assert page.content.text == RUSSIAN.strip()


def test_one_broken_byte_does_not_change_the_encoding() -> None:
    contents = html(RUSSIAN).encode().replace("булок".encode(), "бул".encode() + b"\xff" + "ок".encode(), 1)
    assert "мягких французских" in parse(URL, contents, "text/html; charset=utf-8").content.text


def test_title_text_and_boilerplate() -> None:
    page = parse(
        URL,
        html(
            "<nav><a href=home.html>Home</a></nav><script>var hidden = 1</script><style>p {}</style>"
            "<h1>Heading</h1><p>One <b>bo</b>ld word.<p>Two<ul><li>a<li>b</ul><footer>Copyright</footer>"
        ).encode(),
        "text/html",
    )
    assert page.content.title == "Title"
    assert page.content.text == "Heading One bold word. Two a b"
    assert page.outlinks.root == {"http://example.com/dir/home.html": ("Home",)}


def test_links_are_resolved_normalised_and_collected() -> None:
    body = (
        '<a href="b.html">First</a><a href="./b.html#part"> First </a><a href="B/../b.html?">Second</a>'
        '<a href="#top">self</a><a href="page.html">self</a><a href="mailto:x@y">mail</a><a>none</a>'
        '<a href="//Other.example/"><img alt="Logo"></a><a href="c.html" title="Tip"></a>'
        '<a href="d.html"></a>'
    )
    assert parse(URL, html(body).encode()).outlinks.root == {
        "http://example.com/dir/b.html": ("First", "Second"),
        "http://example.com/dir/c.html": ("Tip",),
        "http://example.com/dir/d.html": (),
        "http://other.example/": ("Logo",),
    }


def test_the_base_element_counts() -> None:
    page = parse(URL, html("<a href=x>x</a>", '<base href="http://cdn.example/lib/">').encode())
    assert list(page.outlinks.root) == ["http://cdn.example/lib/x"]


def test_canonical_and_noindex() -> None:
    page = parse(
        URL,
        html(
            "text", '<link rel="Canonical" href="/real"><meta name=Robots content="NoIndex, follow">'
        ).encode(),
    )
    assert page.pointer.next == "http://example.com/real"
    assert not page.pointer.indexable
    assert parse(URL, html("text", f'<link rel=canonical href="{URL}">').encode()).pointer.next is None
    assert parse(URL, html("<link rel=canonical href=/spam>comment").encode()).pointer.next is None


def test_a_redirect_is_its_only_link() -> None:
    page = parse(URL, b"", None, "../new.html#x")
    assert page.pointer.next == "http://example.com/new.html"
    assert page.pointer.fingerprint is None
    assert page.outlinks.root == {"http://example.com/new.html": ()}
    assert parse(URL, b"", None, "javascript:0").pointer.next is None
    assert parse(URL, b"", None, URL).outlinks.root == {}
    assert parse(URL, html("x").encode(), None, " ").pointer.fingerprint is not None


def test_fingerprints_follow_contents_and_reading() -> None:
    contents = html("same").encode()
    first = parse(URL, contents, "text/html").pointer.fingerprint
    assert first == parse("http://other.example/", contents, "text/html; charset=utf-8").pointer.fingerprint
    assert first != parse(URL, contents + b" ", "text/html").pointer.fingerprint
    assert first != parse(URL, contents, "text/plain").pointer.fingerprint
    legacy = html("naïve é").encode("latin-1")
    one, other = (parse(URL, legacy, f"text/html; charset={name}") for name in ("latin1", "iso-8859-2"))
    assert one.pointer.fingerprint != other.pointer.fingerprint


def test_markdown() -> None:
    page = parse(
        "http://example.com/a.md",
        b'# The *title*\n\nSee [the guide](guide.md "Guide"), [more][ref] and <http://x.example/>.\n'
        b"![picture](p.png)\n\n[ref]: http://y.example/z\n",
        None,
    )
    assert page.content.title == "The *title*"
    assert page.outlinks.root == {
        "http://example.com/guide.md": ("the guide",),
        "http://x.example/": ("http://x.example/",),
        "http://y.example/z": ("more",),
    }
    assert "See the guide, more and http://x.example/." in page.content.text


def test_restructured_text() -> None:
    page = parse(
        "http://example.com/a.rst",
        b"Intro\n\nThe Title\n=========\n\nSee `the guide <guide.rst>`_ and named_ or `two words`_.\n\n"
        b".. _named: http://n.example/\n.. _two words: two.rst\n",
        None,
    )
    assert page.content.title == "The Title"
    assert page.outlinks.root == {
        "http://example.com/guide.rst": ("the guide",),
        "http://example.com/two.rst": ("two words",),
        "http://n.example/": ("named",),
    }


def test_plain_text() -> None:
    page = parse(URL, b"\n First line \n<b>not a tag</b>", "text/plain; charset=us-ascii")
    assert page.content.title == "First line"
    assert page.content.text == "First line <b>not a tag</b>"
    assert page.pointer.indexable


@pytest.mark.parametrize(
    ("contents", "content_type"),
    [
        (b"%PDF-1.7 " + b"x" * 100, None),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "image/png"),
        (bytes(range(256)) * 50, "text/html"),
        (random.Random(1).randbytes(5000), None),
        (b"plain words", "application/pdf"),
    ],
)
def test_binary_documents_are_known_but_not_shown(contents: bytes, content_type: str | None) -> None:
    page = parse(URL, contents, content_type)
    assert page.pointer.fingerprint is not None
    assert not page.pointer.indexable
    assert page.content.text == ""
    assert page.outlinks.root == {}


def test_an_empty_document_has_no_content() -> None:
    page = parse(URL, b"", "text/html")
    assert page.pointer.fingerprint is None
    assert not page.pointer.indexable
    assert not parse(URL, b"<html></html>", "text/html").pointer.indexable


def test_broken_html() -> None:
    page = parse(
        URL, b"<html><body><p>a<div><a href='x.html'>b<table><td>c</a></html>d<b></i>\0e<", "text/html"
    )
    assert page.content.text.replace(" ", "").startswith("abcd")
    assert list(page.outlinks.root) == ["http://example.com/dir/x.html"]


def test_a_megabyte_of_text_and_many_links_stay_bounded() -> None:
    links = "".join(f"<a href=p{n % 7000}.html#{n}>anchor {n}</a> " for n in range(30_000))
    started = time.process_time()
    page = parse(URL, html(links + "<p>" + "word " * 100_000).encode(), "text/html")
    assert time.process_time() - started < 5
    assert len(page.outlinks.root) == MAX_TARGETS
    assert max(map(len, page.outlinks.root.values())) <= MAX_ANCHORS_A_LINK
    assert len(page.content.text) <= MAX_TEXT


@pytest.mark.parametrize(
    "piece",
    [
        "[",
        "](",
        "<",
        "<a href='",
        "`a",
        "_",
        "<meta charset",
        "[a][",
        "x\n---",
        " ",
        "&",
        "<div>",
        "<ul><li>",
        "<font x>",
    ],
)
@pytest.mark.parametrize("content_type", ["text/html", "text/markdown", "text/x-rst"])
def test_no_repetition_makes_it_slow(piece: str, content_type: str) -> None:
    contents = (piece * (300_000 // len(piece))).encode()
    started = time.process_time()
    parse(URL, contents, content_type)
    assert time.process_time() - started < 5


@given(
    st.binary(max_size=400),
    st.sampled_from([None, "text/html", "text/markdown", "text/x-rst", "text/plain; charset=utf-16", "x"]),
)
def test_no_document_makes_it_fail(contents: bytes, content_type: str | None) -> None:
    page = parse(URL, contents, content_type)
    assert page == parse(URL, contents, content_type)
    for value in (page.pointer, page.content, page.outlinks):
        assert type(value).decode(value.encode()) == value


@given(st.text(max_size=300))
def test_no_text_makes_it_fail(text: str) -> None:
    parse(URL, html(text).encode("utf-8", "surrogatepass"), "text/html")
    parse(URL, text.encode("utf-8", "surrogatepass"), "text/markdown", text)


def test_rows_that_are_pages() -> None:
    assert is_page(b"http://example.com/")
    assert is_page("seite ä".encode())
    assert not is_page(b"")
    assert not is_page(b"a\0b")
    assert not is_page(b"a\nb")
    assert not is_page(b"\xff")
