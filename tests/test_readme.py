"""README.md stays a short entry page; links and paths in it and in the pages of docs/ lead to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub forms them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links() -> list[tuple[Path, str]]:
    found = []
    for page in PAGES:
        prose = re.sub(r"`[^`\n]*`", "", FENCED.sub("", page.read_text(encoding="utf-8")))
        found += [(page, link) for link in LINK.findall(prose) if "://" not in link]
    return found


def test_the_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 180


def test_the_readme_has_one_picture():
    assert README.read_text(encoding="utf-8").count("![") == 1


@pytest.mark.parametrize(("page", "link"), links(), ids=lambda v: v if isinstance(v, str) else v.name)
def test_a_link_leads_somewhere(page, link):
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    assert target.exists(), f"{page.name}: {link}"
    if anchor:
        assert anchor in anchors(target), f"{page.name}: {link}"


def test_the_index_names_every_page_of_docs():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    named = {link for link in LINK.findall(index) if "/" not in link}
    assert named == {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}


PATH = re.compile(r"`((?:ptxkit|cu|ptx|tests|scripts|docs)/[\w./-]*)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_on_a_page_exist(page):
    missing = {path for path in PATH.findall(page.read_text(encoding="utf-8")) if not (ROOT / path).exists()}
    assert not missing, f"{page.name} names files that do not exist: {sorted(missing)}"


def test_the_architecture_page_names_every_package():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(PATH.findall(text)) > 80
    packages = {path.parent for path in (ROOT / "ptxkit").glob("*/__init__.py")}
    assert not {f"{p.name}" for p in packages if f"ptxkit/{p.name}/" not in text}
