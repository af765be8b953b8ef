"""CONTRIBUTING.md names files and lists that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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
