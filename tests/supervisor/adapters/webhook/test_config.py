"""What adapters.json may say of a webhook, and that no secret shows in what is said about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from relay_core.adapters.validation import read_shape
from relay_supervisor.adapters.webhook.adapter import WebhookAdapter
from relay_supervisor.adapters.webhook.config import InboundConfig, OutboundConfig, WebhookConfig
from tests.kit.servers.webhook import OLD_SECRET, SECRET, a_webhook

IN: dict[str, Any] = {"port": 8080, "subject": "relay.in", "secret": SECRET}
OUT: dict[str, Any] = {"url": "https://example.com/hook", "patterns": ["relay.out.>"], "secret": SECRET}


def test_the_least_that_is_needed() -> None:
    config = WebhookConfig.model_validate({"inbound": IN, "outbound": OUT})
    assert config.inbound is not None
    assert config.outbound is not None
    assert (config.inbound.host, config.inbound.tolerance_secs) == ("127.0.0.1", 300)
    assert (config.outbound.allow_http, config.outbound.allow_hosts) == (False, ())


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "inbound, outbound, or both"),
        ({"inbund": IN}, "inbund"),
        ({"inbound": {**IN, "prot": 1}}, "prot"),
        ({"inbound": {**IN, "port": 65536}}, "port"),
        ({"inbound": {**IN, "port": -1}}, "port"),
        ({"inbound": {**IN, "subject": "relay.>"}}, "wildcard"),
        ({"inbound": {**IN, "sender": "a b"}}, "token"),
        ({"inbound": {**IN, "replyTo": ""}}, "empty"),
        ({"inbound": {**IN, "toleranceSecs": 301}}, "300"),
        ({"inbound": {**IN, "maxBodyBytes": 0}}, "maxBodyBytes"),
        ({"inbound": {**IN, "scheme": "none"}}, "scheme"),
        ({"inbound": {**IN, "secret": "short"}}, "at least 16 bytes"),
        ({"inbound": {**IN, "secret": "env:RELAY_TEST_NO_SUCH"}}, "RELAY_TEST_NO_SUCH"),
        ({"inbound": {**IN, "previousSecret": SECRET}}, "must be left out"),
        ({"inbound": {**IN, "previousSecret": "whsec_%%%%"}}, "base64"),
        ({"outbound": {**OUT, "patterns": []}}, "patterns"),
        ({"outbound": {**OUT, "patterns": ["relay.>.x"]}}, "last token"),
        ({"outbound": {**OUT, "url": "http://example.com"}}, "allowHttp"),
        ({"outbound": {**OUT, "url": "ftp://example.com"}}, "https://example.com/hook"),
        ({"outbound": {**OUT, "url": "https://"}}, "https://example.com/hook"),
        ({"outbound": {**OUT, "url": "https://a b/"}}, "https://example.com/hook"),
        ({"outbound": {**OUT, "url": "https://example.com:99999/"}}, "not a URL"),
        ({"outbound": {**OUT, "url": "https://me:pw@example.com/"}}, "Authorization"),
        ({"outbound": {**OUT, "url": "https://example.com/#top"}}, "#"),
        ({"outbound": {**OUT, "allowHosts": ["127.0.0.1/99"]}}, "#1"),
        ({"outbound": {**OUT, "caFile": "ca.pem"}}, "absolute"),
        ({"outbound": {**OUT, "headers": {"Host": "x"}}}, "leave it out"),
        ({"outbound": {**OUT, "headers": {"Webhook-Id": "x"}}}, "leave it out"),
        ({"outbound": {**OUT, "headers": {"a b": "x"}}}, "name"),
        ({"outbound": {**OUT, "headers": {"X-Key": "a\r\nHost: b"}}}, "one line"),
        ({"outbound": {**OUT, "headers": {"X-Key": "a", "x-KEY": "b"}}}, "twice"),
        ({"outbound": {**OUT, "scheme": "both"}}, "scheme"),
        ({"outbound": {**OUT, "timeoutSecs": 0}}, "timeoutSecs"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_used_is_refused_with_the_key_or_the_remedy(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError) as caught:
        WebhookConfig.model_validate(config)
    said = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in caught.value.errors())
    assert problem in said
    assert SECRET.removeprefix("whsec_") not in said


def test_secrets_come_from_the_environment_and_from_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RELAY_TEST_HOOK", SECRET)
    file = tmp_path / "old"
    file.touch(mode=0o600)
    file.write_text(OLD_SECRET + "\n")
    part = InboundConfig.model_validate({**IN, "secret": "env:RELAY_TEST_HOOK", "previousSecret": f"file:{file}"})
    assert part.secret.reveal() == SECRET
    assert part.previous_secret is not None
    assert part.previous_secret.reveal() == OLD_SECRET


def test_no_secret_shows_in_the_config_or_its_adapter() -> None:
    config = WebhookConfig.model_validate(
        {"inbound": IN, "outbound": {**OUT, "headers": {"Authorization": "Bearer t0k3n"}}}
    )
    adapter = WebhookAdapter("hook", config)
    for shown in (repr(config), str(config), config.model_dump_json(), repr(adapter), repr(adapter.status)):
        assert SECRET.removeprefix("whsec_") not in shown
        assert "t0k3n" not in shown


def test_names_and_networks_may_be_allowed() -> None:
    config = OutboundConfig.model_validate({**OUT, "allowHosts": ["Intra.Example.", "10.0.0.0/8", "::1", "localhost"]})
    assert config.allowed_names == {"intra.example", "localhost"}
    assert [str(network) for network in config.allowed_networks] == ["10.0.0.0/8", "::1/128"]


def test_the_shape_that_the_bus_sees() -> None:
    both = read_shape(a_webhook({}, {"url": "https://example.com", "rate": 5, "timeoutSecs": 7}))
    assert (both.patterns, both.senders, both.rate, both.timeout) == (("relay.out.>",), ("relay.webhook.hook",), 5, 12)
    only_in = read_shape(a_webhook({"sender": "relay.shop"}))
    assert (only_in.patterns, only_in.senders) == (("relay.adapter.hook",), ("relay.shop",))
    assert read_shape(a_webhook(None, {"url": "https://example.com"})).senders == ()
