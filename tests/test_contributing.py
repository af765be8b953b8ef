"""CONTRIBUTING.md and docs/ name files and lists that exist, and the map has every module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("relay_core", "relay_supervisor", "relay_tui", "spark")
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
TEXT = re.sub("```.*?```", "", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.DOTALL).replace("NAME", "…")

PATHS = sorted(set(re.findall(r"`((?:[\w.]+/)+[\w.]*)`", TEXT)))
TEST_FILES = sorted(set(re.findall(r"\btest_\w+\.py", TEXT)))
LISTS = sorted(set(re.findall(r"`([A-Z_]{4,})`[^.`]*`((?:[\w.]+/)+\w+\.py)`", TEXT)))


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_there(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("name", TEST_FILES)
def test_a_test_is_there(name: str) -> None:
    assert list((ROOT / "tests").rglob(name))


@pytest.mark.parametrize(("name", "path"), LISTS)
def test_a_list_is_there(name: str, path: str) -> None:
    assert re.search(rf"^{name}\b", (ROOT / path).read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, link


@pytest.mark.parametrize("package", PACKAGES)
def test_the_map_has_every_module_and_no_other(package: str) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"\b\w+\.py\b", text))
    modules = {path.name for path in (ROOT / package).glob("*.py") if not path.name.startswith("__")}
    assert modules - named == set()
    folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    assert {folder for folder in folders if f"{folder}/" not in text} == set()
    there = {path.name for one in PACKAGES for path in (ROOT / one).rglob("*.py")}
    assert named - there == set()
