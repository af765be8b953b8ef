"""The package's root: every public name is there, comes from where it says, and costs nothing until it is asked for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import relay_core


@pytest.mark.parametrize("name", relay_core.__all__)
def test_a_name_is_what_its_home_has(name: str) -> None:
    assert getattr(relay_core, name).__name__ == name


def test_the_tour_leads_to_modules_that_are_there() -> None:
    root = Path(relay_core.__file__).parent
    places = re.findall(r"`([\w/]+\.py)`", relay_core.__doc__ or "")
    assert len(places) > 10
    assert [place for place in places if not any(root.rglob(place))] == []


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'RelayKore'"):
        getattr(relay_core, "RelayKore")  # noqa: B009 -- the stub has no such name
    assert {"RelayCore", "RelayClient"} <= set(dir(relay_core))


def test_the_client_does_without_the_bus() -> None:
    look = "import sys, relay_core; relay_core.RelayClient; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True).stdout.split()
    assert "relay_core.client.client" in loaded
    assert not {"relay_core.core", "relay_core.bus", "sqlite3", "watchdog"} & set(loaded)
