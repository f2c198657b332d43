"""A corpus that every machine has: the installed Python distributions as a small web site.

The site has an index page, and a page for each distribution with its description, its links, and links to its
requirements. Each document and licence text in a wheel is a page, too. Licence pages contain only the text,
so that the same licence in many distributions gives real duplicates. The same installation gives the same
bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import quote

from observers.webindex.demo import to_html

MAX_DOCUMENT: Final = 256 * 1024
"""A document of more bytes than this gets no page."""

_DOCUMENTS: Final = frozenset({".md", ".rst", ".txt", ".html", ".htm"})
_LICENCE: Final = re.compile(r"^(licen[cs]e|copying|notice|authors|copyright)", re.IGNORECASE)
_NO_DOCUMENTS: Final = frozenset({"top_level.txt", "entry_points.txt", "sources.txt", "dependency_links.txt"})


@dataclass(frozen=True, slots=True)
class Site:
    """A written site: the folder, and the paths of the site's files in this folder."""

    folder: Path
    pages: tuple[str, ...]


def write_site(folder: Path, distributions: Iterable[metadata.Distribution] | None = None) -> Site:
    """Write the site into ``folder``: ``index.html`` and everything below ``pages/``.

    HTML files below ``pages/`` that this call does not write are removed.

    Args:
        folder: created if it does not exist.
        distributions: the distributions to show; None means all installed distributions.
    """
    named: dict[str, metadata.Distribution] = {}
    for distribution in metadata.distributions() if distributions is None else distributions:
        named.setdefault(_normal(_field(distribution, "Name")), distribution)  # Python imports the first one
    named.pop("", None)
    names = sorted(named)
    written = ["index.html"]
    _write(folder / "index.html", _index(named, names))
    for name in names:
        for path, page in _pages(name, named[name], named):
            _write(folder / path, page)
            written.append(path)
    current = {folder / path for path in written}
    for stale in [path for path in (folder / "pages").rglob("*.html") if path not in current]:
        stale.unlink()
    return Site(folder, tuple(written))


def _pages(
    name: str, distribution: metadata.Distribution, named: Mapping[str, metadata.Distribution]
) -> Iterator[tuple[str, str]]:
    """Yield path and HTML of a distribution's own page and of its documents."""
    documents: list[str] = []
    for path, text in _documents(distribution):
        target = f"pages/{name}/{path}.html"
        documents.append(path)
        yield target, _document_page(name, path, text)
    yield f"pages/{name}.html", _distribution_page(name, distribution, documents, named)


def _index(named: Mapping[str, metadata.Distribution], names: Iterable[str]) -> str:
    items = [
        f'<li><a href="pages/{quote(name)}.html">{escape(_field(named[name], "Name"))}</a> '
        f"{escape(_field(named[name], 'Summary'))}</li>"
        for name in names
    ]
    return _page("Installed Python distributions", f"<ul>\n{chr(10).join(items)}\n</ul>")


def _distribution_page(
    name: str,
    distribution: metadata.Distribution,
    documents: Iterable[str],
    named: Mapping[str, metadata.Distribution],
) -> str:
    summary = _field(distribution, "Summary")
    lists = [
        ("Requires", _requirements(distribution, named)),
        ("Links", [_outward(url, label) for label, url in _project_urls(distribution)]),
        ("Documents", [_inward(f"{name}/{path}.html", PurePosixPath(path).name) for path in documents]),
    ]
    parts = [f"<p>{escape(summary)}</p>" if summary else "", _description(distribution)]
    for title, items in lists:
        if items:
            listed = "\n".join(f"<li>{item}</li>" for item in items)
            parts.append(f"<h2>{title}</h2>\n<ul>\n{listed}\n</ul>")
    parts.append('<p><a href="../index.html">All distributions</a></p>')
    heading = f"{_field(distribution, 'Name')} {_field(distribution, 'Version')}"
    return _page(heading, "\n".join(part for part in parts if part), summary)


def _document_page(name: str, path: str, text: str) -> str:
    file = PurePosixPath(path)
    if _LICENCE.match(file.name):
        return _page(file.stem.upper(), to_html.verbatim(text))
    up = "../" * len(file.parts)
    body = f'{_convert(text, file.suffix)}\n<p>From <a href="{up}{quote(name)}.html">{escape(name)}</a></p>'
    return _page(f"{name}: {path}", body)


def _documents(distribution: metadata.Distribution) -> Iterator[tuple[str, str]]:
    """Yield path and text of the documents in the wheel, in the order of their paths."""
    for file in sorted(distribution.files or [], key=str):
        if ".." in file.parts or file.is_absolute() or file.name.lower() in _NO_DOCUMENTS:
            continue
        if file.suffix.lower() not in _DOCUMENTS and not (_LICENCE.match(file.name) and not file.suffix):
            continue
        try:
            data = Path(str(file.locate())).read_bytes()
        except OSError:
            continue
        if 0 < len(data) <= MAX_DOCUMENT and b"\0" not in data:
            yield str(file), data.decode("utf-8", "replace")


def _description(distribution: metadata.Distribution) -> str:
    kind = _field(distribution, "Description-Content-Type").partition(";")[0].strip().lower()
    text = distribution.metadata.get_payload()  # type: ignore[attr-defined]
    if not text or not text.strip():
        text = _field(distribution, "Description")
    suffix = {"text/markdown": ".md", "text/plain": ".txt"}.get(kind, ".rst")
    return _convert(text, suffix) if text.strip() not in {"", "UNKNOWN"} else ""


def _convert(text: str, suffix: str) -> str:
    match suffix.lower():
        case ".md":
            return to_html.markdown(text)
        case ".rst":
            return to_html.restructured(text)
        case ".html" | ".htm":
            return to_html.clean(text)
        case _:
            return to_html.plain(text)


def _requirements(
    distribution: metadata.Distribution, named: Mapping[str, metadata.Distribution]
) -> list[str]:
    """Return the requirements, with links to installed distributions; those of extras only if installed."""
    found: dict[str, str] = {}
    for requirement in sorted(distribution.requires or []):
        text, _, marker = requirement.partition(";")
        spelled = re.match(r"[A-Za-z0-9._-]+", text.strip())
        if spelled is None:
            continue
        name = _normal(spelled[0])
        if name in named:
            found.setdefault(name, _inward(f"{name}.html", spelled[0]))
        elif "extra" not in marker:
            found.setdefault(name, escape(spelled[0]))
    return [found[name] for name in sorted(found)]


def _project_urls(distribution: metadata.Distribution) -> list[tuple[str, str]]:
    """Return label and URL of the project's links, each URL once."""
    found: dict[str, str] = {}
    home = _field(distribution, "Home-page")
    if home:
        found[home] = "Home page"
    for entry in distribution.metadata.get_all("Project-URL") or []:
        label, _, url = str(entry).partition(",")
        found.setdefault(url.strip(), label.strip())
    return sorted((label, url) for url, label in found.items() if to_html.is_web(url))


def _page(title: str, body: str, description: str = "") -> str:
    about = f'<meta name="description" content="{escape(description)}">\n' if description else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(title)}</title>\n{about}</head>\n<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def _outward(url: str, text: str) -> str:
    return f'<a href="{escape(url)}">{escape(text)}</a>'


def _inward(path: str, text: str) -> str:
    return f'<a href="{escape(quote(path))}">{escape(text)}</a>'


def _field(distribution: metadata.Distribution, name: str) -> str:
    return str(distribution.metadata.get(name) or "").strip()  # type: ignore[attr-defined]


def _normal(name: str) -> str:
    """Normalise a name for comparison: lower case, one hyphen for each run of separators."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _write(path: Path, page: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = page.encode("utf-8", "replace")
    if not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)
