"""What a configuration may say, and what is said about one that may not be."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from relay_core.errors import ConfigError
from relay_supervisor.adapters.nats.config import NatsConfig
from relay_supervisor.adapters.nats.files import ID_FILE, relay_id

GOOD: dict[str, Any] = {"servers": ["nats://10.0.0.1:4222"], "export": ["relay.agent.>"]}


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        pytest.param({"servers": []}, "at least 1", id="no-server"),
        pytest.param({"servers": ["nats://ann:hunter22@host:4222"]}, "use user and password", id="inline-password"),
        pytest.param({"servers": ["nats://hunter22@host:4222"]}, "use user and password", id="inline-token"),
        pytest.param({"servers": ["http://host"]}, "nats://HOST:PORT", id="other-scheme"),
        pytest.param({"servers": ["nats://host:70000"]}, "is not a URL", id="impossible-port"),
        pytest.param({"servers": ["nats://"]}, "nats://HOST:PORT", id="no-host"),
        pytest.param({"export": []}, "must import or export something", id="nothing-to-do"),
        pytest.param({"export": ["relay..x"]}, "empty token", id="bad-pattern"),
        pytest.param({"export": ["relay.system.>"]}, "belongs to the bus", id="system"),
        pytest.param({"import": ["relay.adapter.x"]}, "belongs to the bus", id="adapters"),
        pytest.param({"stream": "A.B"}, "pattern", id="stream-name"),
        pytest.param({"durable": "a b"}, "pattern", id="durable-name"),
        pytest.param({"prefix": "team.*"}, "subject tokens", id="prefix"),
        pytest.param({"user": "ann"}, "go together", id="user-alone"),
        pytest.param({"token": "hunter22", "user": "a", "password": "hunter22"}, "use one of", id="two-ways-in"),
        pytest.param({"token": "env:RELAY_TEST_NOT_SET"}, "no RELAY_TEST_NOT_SET", id="secret-not-there"),
        pytest.param({"createStream": True, "export": ["*.x"]}, "needs a prefix", id="wildcard-stream"),
        pytest.param({"dedupeWindowSecs": 600, "streamMaxAgeSecs": 60}, "must not be longer", id="window-and-age"),
        pytest.param({"tls": {"keyFile": "/k"}}, "needs the certFile", id="key-alone"),
        pytest.param({"maxInFlight": 0}, "greater than or equal to 1", id="bound"),
        pytest.param({"streem": "X"}, "not permitted", id="unknown-key"),
    ],
)
def test_a_bad_config_is_refused_with_a_remedy_and_no_secret(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        NatsConfig.model_validate({**GOOD, **keys})

    # What the loader shows of it: neither the input nor the context.
    shown = " ".join(
        left["msg"] for left in caught.value.errors(include_url=False, include_context=False, include_input=False)
    )
    assert text in shown
    assert "hunter22" not in shown


def test_a_secret_is_not_shown_by_the_model() -> None:
    config = NatsConfig.model_validate({**GOOD, "token": "hunter22"})

    assert "hunter22" not in f"{config!r} {config} {config.to_wire()}"
    assert config.token is not None
    assert config.token.reveal() == "hunter22"


@pytest.mark.parametrize(
    ("keys", "subjects"),
    [
        pytest.param({"prefix": "team.blue"}, ["team.blue.>"], id="prefix"),
        pytest.param({"import": ["relay.human.*", "ops.>"]}, ["ops.>", "relay.>"], id="first-tokens"),
    ],
)
def test_a_stream_that_we_make_has_room_for_other_relays(keys: dict[str, Any], subjects: list[str]) -> None:
    assert NatsConfig.model_validate({**GOOD, **keys}).stream_subjects() == subjects


def test_every_field_is_documented_for_the_docs_page() -> None:
    page = (Path(__file__).parents[4] / "docs/adapters/nats.md").read_text()

    for name, field in NatsConfig.model_fields.items():
        assert f"`{field.alias or name}`" in page, name


def test_the_model_is_strict_about_types() -> None:
    with pytest.raises(ValidationError):
        NatsConfig.model_validate({**GOOD, "token": 5})


def test_a_relay_keeps_its_name(tmp_path: Path) -> None:
    name = relay_id(tmp_path)

    assert relay_id(tmp_path) == name
    assert (tmp_path / ID_FILE).stat().st_mode & 0o077 == 0


def test_bridges_that_start_at_once_agree_on_the_name(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        names = list(pool.map(relay_id, [tmp_path] * 16))

    assert len(set(names)) == 1
    assert [path.name for path in tmp_path.iterdir()] == [ID_FILE]


def test_a_spoilt_name_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / ID_FILE).write_text("no.such thing")

    with pytest.raises(ConfigError, match="remove it"):
        relay_id(tmp_path)
