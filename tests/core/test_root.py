"""The package's root: every public name is there, comes from where it says, and costs nothing until it is asked for."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import relay_core


def imported_for_type_checkers() -> dict[str, str]:
    tree = ast.parse(Path(relay_core.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        name.name: str(node.module).removeprefix("relay_core.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }


def test_the_names_the_homes_and_the_types_are_one_list() -> None:
    assert sorted(relay_core.__all__) == sorted(relay_core._HOME) == sorted(imported_for_type_checkers())
    assert imported_for_type_checkers() == relay_core._HOME


@pytest.mark.parametrize("name", relay_core.__all__)
def test_a_name_is_what_its_home_has(name: str) -> None:
    assert getattr(relay_core, name).__name__ == name


def test_the_tour_leads_to_modules_that_are_there() -> None:
    places = re.findall(r"`(\w+\.py)`", relay_core.__doc__ or "")
    assert len(places) > 20
    assert [place for place in places if not Path(relay_core.__file__).with_name(place).exists()] == []


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'RelayKore'"):
        _ = relay_core.RelayKore
    assert {"RelayCore", "RelayClient"} <= set(dir(relay_core))


def test_the_client_does_without_the_bus() -> None:
    look = "import sys, relay_core; relay_core.RelayClient; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True).stdout.split()
    assert "relay_core.client" in loaded
    assert not {"relay_core.core", "relay_core.bus", "sqlite3", "watchdog"} & set(loaded)
