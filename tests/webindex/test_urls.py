from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from observers.webindex.urls import MAX_URL, normalise, resolve


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://Example.COM", "http://example.com/"),
        ("HTTP://example.com:80/a", "http://example.com/a"),
        ("https://example.com:443/", "https://example.com/"),
        ("https://example.com:8443/", "https://example.com:8443/"),
        ("http://example.com:/a", "http://example.com/a"),
        ("http://example.com:0080/a", "http://example.com/a"),
        ("http://example.com/a#part", "http://example.com/a"),
        ("http://example.com/a?#part", "http://example.com/a"),
        ("http://example.com/a?b=1&c=%7e", "http://example.com/a?b=1&c=~"),
        ("http://example.com/a/./b/../c", "http://example.com/a/c"),
        ("http://example.com/../../a", "http://example.com/a"),
        ("http://example.com/a/..", "http://example.com/"),
        ("http://example.com/%7Euser/%e4", "http://example.com/~user/%E4"),
        ("http://example.com/%2e%2e/b", "http://example.com/b"),
        ("http://example.com/a%2Fb", "http://example.com/a%2Fb"),
        ("http://example.com/a b", "http://example.com/a%20b"),
        ("http://example.com/ä", "http://example.com/%C3%A4"),
        ("http://example.com/100%", "http://example.com/100%25"),
        ("http://user:password@example.com/", "http://example.com/"),
        ("http://bücher.example/", "http://xn--bcher-kva.example/"),
        ("  http://example.com/\n", "http://example.com/"),
        ("http://exam\nple.com/", "http://example.com/"),
        ("http:\\\\example.com\\a", "http://example.com/a"),
        ("http://[2001:DB8::1]:80/", "http://[2001:db8::1]/"),
        ("file:///usr/share/doc/a.html", "file:///usr/share/doc/a.html"),
        ("file://localhost/usr/a", "file:///usr/a"),
        ("file:/usr/a", "file:///usr/a"),
        ("doc://corpus/path/page.html#x", "doc://corpus/path/page.html"),
    ],
)
def test_normal_form(url: str, expected: str) -> None:
    assert normalise(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "mailto:a@example.com",
        "javascript:alert(1)",
        "data:text/html,<p>",
        "tel:+123",
        "http://",
        "http:///a",
        "http://exa mple.com/",
        "http://example.com:99999/",
        "http://example.com:port/",
        "http://a\uff20b/",
        "relative/path",
        "http://example.com/" + "a" * MAX_URL,
    ],
)
def test_what_is_no_address(url: str) -> None:
    assert normalise(url) is None


# RFC 3986, section 5.4, with the fragment dropped.
@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("g", "http://a/b/c/g"),
        ("./g", "http://a/b/c/g"),
        ("g/", "http://a/b/c/g/"),
        ("/g", "http://a/g"),
        ("//g", "http://g/"),
        ("?y", "http://a/b/c/d;p?y"),
        ("g?y", "http://a/b/c/g?y"),
        ("#s", "http://a/b/c/d;p?q"),
        ("g#s", "http://a/b/c/g"),
        (";x", "http://a/b/c/;x"),
        ("g;x?y#s", "http://a/b/c/g;x?y"),
        ("", "http://a/b/c/d;p?q"),
        (".", "http://a/b/c/"),
        ("..", "http://a/b/"),
        ("../g", "http://a/b/g"),
        ("../..", "http://a/"),
        ("../../../g", "http://a/g"),
        ("/./g", "http://a/g"),
        ("g.", "http://a/b/c/g."),
        (".g", "http://a/b/c/.g"),
        ("g..", "http://a/b/c/g.."),
        ("./../g", "http://a/b/g"),
        ("g/./h", "http://a/b/c/g/h"),
        ("g/../h", "http://a/b/c/h"),
        ("g;x=1/../y", "http://a/b/c/y"),
        ("g?y/../x", "http://a/b/c/g?y/../x"),
        ("1:2", "http://a/b/c/1:2"),
        ("https://other/x", "https://other/x"),
        ("mailto:x@y", None),
    ],
)
def test_resolution(reference: str, expected: str | None) -> None:
    assert resolve("http://a/b/c/d;p?q", reference) == expected


def test_a_page_whose_key_is_no_url_has_no_relative_links() -> None:
    assert resolve("page 1", "other.html") is None
    assert resolve("page 1", "http://example.com/x") == "http://example.com/x"


pieces = st.sampled_from(
    [
        "http",
        "FILE",
        "doc",
        ":",
        "/",
        "//",
        ".",
        "..",
        "%",
        "%41",
        "%2f",
        "%zz",
        "?",
        "#",
        "@",
        "a",
        "Ä",
        " ",
        "\\",
        "[",
        "]",
        "80",
        "\t",
    ]
)
texts = st.one_of(st.text(max_size=40), st.lists(pieces, max_size=14).map("".join))
urls = st.builds("{}://{}/{}".format, st.sampled_from(["http", "https", "file", "doc"]), texts, texts)


@given(st.one_of(texts, urls))
@example("http://a/%2525")
@example("file:////..//a")
def test_a_normal_form_is_its_own(url: str) -> None:
    normal = normalise(url)
    if normal is not None:
        assert normalise(normal) == normal
        assert normal.isascii()
        assert normal.isprintable()
        assert "#" not in normal
        assert len(normal) <= MAX_URL


@given(urls, texts)
def test_a_resolved_reference_is_normal(base: str, reference: str) -> None:
    url = resolve(base, reference)
    assert url is None or normalise(url) == url


@given(
    st.sampled_from(["doc://corpus/x/y.html", "doc://corpus", "http://h/a//b/../c/d?e/f", "no address"]),
    st.integers(0, 20),
    st.text(alphabet="abc/._-~09", min_size=1, max_size=20),
)
def test_the_short_cut_for_plain_references_changes_nothing(base: str, up: int, reference: str) -> None:
    reference = "../" * up + reference
    # A reference with a query does not use the shortcut for plain references.
    long = resolve(base, reference + "?q")
    assert resolve(base, reference) == (long.removesuffix("?q") if long else None)
