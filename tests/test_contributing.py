"""The docs name only paths, lists, pages, commands and options that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from relay_supervisor.cli.groups import COMMON_FLAGS, COMMON_VALUES, root_app
from relay_supervisor.main import app
from tests.kit import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
FOLDERS = "relay_core|relay_supervisor|relay_tui|spark|tests|tools|benchmarks|examples|docs"


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """Return the text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_path_exists(page: Path) -> None:
    paths = set(re.findall(rf"`((?:{FOLDERS})/[\w./-]*)`", prose(page)))
    assert {path for path in paths if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_no_module_is_named_without_its_folder(page: Path) -> None:
    """A bare name would go stale unnoticed when its module moves."""
    assert re.findall(r"`[\w]+\.py`", prose(page)) == []


CONTRIBUTING = prose(ROOT / "CONTRIBUTING.md")
LISTS = re.findall(r"`([A-Z_]{4,})`\s(?:\(|(?:of|in)\s)`((?:[\w.]+/)+\w+\.py)`", CONTRIBUTING)


@pytest.mark.parametrize(("name", "path"), sorted(LISTS))
def test_every_list_of_contributing_exists(name: str, path: str) -> None:
    assert re.search(rf"^{name}\b", (ROOT / path).read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, link


PROGRAMS: dict[str, Any] = {
    "relay": typer.main.get_command(root_app()),
    "relay-supervisor": typer.main.get_command(app),
}


def command_lines(text: str) -> Iterator[str]:
    """Yield the calls of our programs in a page's blocks of shell and in its backticks."""
    code = re.findall(r"^ *```(?:sh|console)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    code += re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL))
    for part in code:
        part = re.sub(r"'[^'\n]*'|\\\n", "", part)
        yield from re.findall(r"(?<![\w./~{-])(?:relay|relay-supervisor) [a-z][a-z-]+[^\n;|&)#]*", part)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_command_and_option_exists(page: Path) -> None:
    for line in command_lines(page.read_text()):
        program, *words = line.split()
        command = PROGRAMS[program]
        while hasattr(command, "get_command"):
            if words and re.fullmatch(r"[a-z-]+", words[0]) and not words[0].startswith("-"):
                command = command.get_command(None, words.pop(0))
            else:
                command = command.get_command(None, command.default)
            assert command is not None, line
        known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
        options = set(re.findall(r"(?<!\S)\[?(--[a-z-]+)", " ".join(words)))
        assert options - known - {*COMMON_VALUES, *COMMON_FLAGS, "--help"} == set(), line
