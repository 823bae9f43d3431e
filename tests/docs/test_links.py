"""Every relative link leads to a file that is there, and every anchor to a heading."""

import re
from functools import cache

import pytest

from documents import ROOT, tokens

PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *ROOT.glob(".github/**/*.md"), *ROOT.glob("docs/**/*.md")]
    if not {"_build", "gallery"} & set(page.parts)
)


def inline(page):
    return [token for token in tokens(page) if token.type == "inline"]


def links(page):
    """(target, whether it is a picture) of all links of a page."""
    for token in inline(page):
        for child in token.children:
            if child.type == "link_open":
                yield str(child.attrs["href"]), False
            elif child.type == "image":
                yield str(child.attrs["src"]), True


@cache
def anchors(page):
    """The anchors of a page's headings, as code hosts make them."""
    found, heading = [], False
    for token in tokens(page):
        if heading:
            text = "".join(child.content for child in token.children if child.content)
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
        heading = token.type == "heading_open"
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target, picture in links(page):
        if re.match(r"[a-z]+:", target):
            assert not picture, f"{target} comes from outside"
            continue
        path, _, anchor = target.partition("#")
        if path == "gallery/index":  # made from the examples
            assert (ROOT / "examples" / "GALLERY_HEADER.rst").is_file()
            continue
        there = (page.parent / path) if path else page
        assert there.is_file(), target
        if anchor:
            assert anchor in anchors(there.resolve()), target


def test_the_first_page_is_one_page():
    """At most 120 lines, and one picture."""
    readme = ROOT / "README.md"
    assert len(readme.read_text(encoding="utf-8").splitlines()) <= 120
    assert [target for target, picture in links(readme) if picture] == ["docs/demo.webp"]


WRITTEN = [page for page in PAGES if not page.with_suffix(".md.j2").is_file()]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_wrapped(page):
    """At 100 characters."""
    for token in tokens(page):
        if token.type == "paragraph_open":
            lines = page.read_text(encoding="utf-8").splitlines()[slice(*token.map)]
            assert all(len(line) <= 100 or "](" in line for line in lines), lines


def test_every_page_is_in_the_contents():
    """Of the site: reachable from docs/index.md by the tables of contents."""
    docs, seen, waiting = ROOT / "docs", set(), ["index"]
    while waiting:
        name = waiting.pop()
        seen.add(name)
        path = docs / f"{name}.md"
        if not path.is_file():
            continue
        for token in tokens(path):
            if token.type == "fence" and token.info == "{toctree}":
                for line in token.content.splitlines():
                    if line.strip() and not line.startswith(":"):
                        entry = (path.parent / line.strip()).resolve().relative_to(docs.resolve())
                        waiting.append(str(entry))
    pages = {str(p.relative_to(docs).with_suffix("")) for p in PAGES if docs in p.parents}
    assert pages - seen == set()
    assert {name for name in seen - pages if not name.startswith("gallery/")} == set()
