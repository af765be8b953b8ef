"""Where the data directory and the socket are, by what was said and by the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay_core.paths import data_path, socket_path


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("RELAY_DATA_DIR", "RELAY_SOCKET", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_the_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_path() == Path("/home/me/.dork/relay")
    monkeypatch.setenv("RELAY_DATA_DIR", "~/elsewhere")
    assert data_path() == Path("/home/me/elsewhere")
    assert data_path("/given") == Path("/given")
    assert data_path("here").is_absolute()


@pytest.mark.parametrize(
    ("chosen", "variables", "expected"),
    [
        pytest.param(None, {}, "/data/relay.sock", id="in-the-data-directory"),
        pytest.param(
            None, {"XDG_RUNTIME_DIR": "/run/user/7"}, "/run/user/7/relay/relay.sock", id="in-the-runtime-directory"
        ),
        pytest.param(None, {"XDG_RUNTIME_DIR": "run"}, "/data/relay.sock", id="a-relative-runtime-directory-is-none"),
        pytest.param(None, {"XDG_RUNTIME_DIR": ""}, "/data/relay.sock", id="an-empty-one-neither"),
        pytest.param(None, {"RELAY_SOCKET": "/s", "XDG_RUNTIME_DIR": "/run"}, "/s", id="as-the-environment-says"),
        pytest.param("/mine", {"RELAY_SOCKET": "/s"}, "/mine", id="as-chosen"),
        pytest.param("~/mine", {}, "/home/me/mine", id="in-the-home-directory"),
    ],
)
def test_the_socket(
    chosen: str | None, variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert socket_path(chosen, "/data") == Path(expected)
