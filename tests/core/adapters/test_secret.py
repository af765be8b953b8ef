"""Secrets: where they come from, and where they do not go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from relay_core.adapters.secret import Secret, declares_secrets, find_secrets, resolve_secret

VALUE = "swordfish-42"


class Inner(BaseModel):
    env: dict[str, Secret] = {}
    keys: list[Secret] = []


class Config(BaseModel):
    token: Secret
    spare: Secret | None = None
    inner: Inner = Inner()
    host: str = "h"


class Plain(BaseModel):
    host: str = "h"


def put(path: Path, data: bytes = f"{VALUE}\n".encode(), mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return path


def test_a_reference_is_resolved_as_the_model_is_validated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "from the environment")
    put(tmp_path / "key")
    found: list[Secret] = []
    config = Config.model_validate(
        {"token": "env:MY_TOKEN", "spare": "file:key", "inner": {"env": {"A": "inline one"}, "keys": ["b"]}},
        context={"directory": tmp_path, "secrets": found},
    )
    assert config.token.reveal() == "from the environment"
    assert config.spare is not None
    assert config.spare.reveal() == VALUE
    assert [(where, secret.inline) for where, secret in find_secrets(config)] == [
        ("token", False),
        ("spare", False),
        ("inner.env.A", True),
        ("inner.keys.0", True),
    ]
    assert [secret.reveal() for secret in found] == ["from the environment", VALUE, "inline one", "b"]


def test_nothing_shows_the_value_but_reveal() -> None:
    config = Config.model_validate({"token": VALUE})
    shown = f"{config!r} {config} {config.token} {config.token!r} {config.model_dump()} {config.model_dump_json()}"
    assert VALUE not in shown
    assert config.model_dump() == {"token": "inline", "spare": None, "inner": {"env": {}, "keys": []}, "host": "h"}


def test_secrets_are_equal_by_value() -> None:
    assert Secret(VALUE, "env:A") == Secret(VALUE)
    assert len({Secret(VALUE, "env:A"), Secret(VALUE), Secret("other")}) == 2


BAD: list[Any] = [
    pytest.param("env:NOT_SET", "the environment has no NOT_SET", id="no variable"),
    pytest.param("env:", "the environment has no ", id="no name"),
    pytest.param("", "must not be empty", id="empty"),
    pytest.param("file:gone", "cannot read the secret in", id="no file"),
    pytest.param("file:open", "others can read .*open: run 'chmod 600", id="open to others"),
    pytest.param("file:empty", "must hold one secret", id="empty file"),
    pytest.param("file:.", "is not a file", id="a directory"),
    pytest.param("file:pipe", "is not a file", id="a pipe"),
    pytest.param("file:bytes", "is not UTF-8", id="no text"),
    pytest.param("file:long", "must hold one secret", id="too long"),
]


@pytest.mark.parametrize(("reference", "problem"), BAD)
def test_a_reference_that_cannot_be_resolved_says_what_to_do(reference: str, problem: str, tmp_path: Path) -> None:
    put(tmp_path / "open", mode=0o640)
    put(tmp_path / "empty", b"\n")
    put(tmp_path / "bytes", b"\xff\xfe")
    put(tmp_path / "long", b"x" * 70_000)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ValueError, match=problem):
        resolve_secret(reference, directory=tmp_path)
    with pytest.raises(ValidationError, match=problem):
        Config.model_validate({"token": reference}, context={"directory": tmp_path})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_file_of_somebody_else_is_not_read(tmp_path: Path) -> None:
    os.chown(put(tmp_path / "theirs"), 12345, 12345)
    with pytest.raises(ValueError, match="belongs to uid 12345"):
        resolve_secret("file:theirs", directory=tmp_path)


def test_a_home_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    put(tmp_path / "key")
    assert resolve_secret("file:~/key", directory=Path("/elsewhere")).reveal() == VALUE


@pytest.mark.parametrize(("model", "declares"), [(Config, True), (Inner, True), (Plain, False)])
def test_a_model_tells_whether_it_has_secrets(model: type[BaseModel], declares: bool) -> None:
    assert declares_secrets(model) is declares


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(ValidationError, match="must be text: env:NAME"):
        Config.model_validate({"token": 42})
