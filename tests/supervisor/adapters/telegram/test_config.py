from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from relay_supervisor.adapters.telegram.config import TelegramConfig
from tests.kit.servers.telegram import TOKEN


def test_no_one_is_allowed_unless_listed() -> None:
    config = TelegramConfig.model_validate({"token": TOKEN})
    assert (config.allow_users, config.allow_chats, config.attachment_dirs) == (frozenset(), frozenset(), ())
    assert config.bot_id == 4242


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        pytest.param({}, "Field required", id="no token"),
        pytest.param({"token": "hello CANARY"}, "BotFather", id="no token at all"),
        pytest.param({"token": f"{TOKEN} "}, "without spaces", id="a token with a space"),
        pytest.param({"token": "env:RELAY_TEST_NOT_SET"}, "the environment has no", id="a variable that is not set"),
        pytest.param({"token": TOKEN, "apiBase": "http://api.telegram.org"}, "use https", id="plain http"),
        pytest.param({"token": TOKEN, "apiBase": "ftp://x"}, "must be a URL", id="another scheme"),
        pytest.param({"token": TOKEN, "apiBase": "https://a:b@c"}, "must be a URL", id="a user in the URL"),
        pytest.param({"token": TOKEN, "apiBase": "https://[::1"}, "must be a URL", id="no URL"),
        pytest.param({"token": TOKEN, "allowUsers": [-5]}, "greater than 0", id="a group among the users"),
        pytest.param({"token": TOKEN, "allowChats": [5]}, "less than 0", id="a user among the groups"),
        pytest.param({"token": TOKEN, "allowChats": [-5]}, "groupMembers", id="a group in which no one may write"),
        pytest.param({"token": TOKEN, "pollTimeoutSecs": 0}, "greater than or equal to 1", id="too short a poll"),
        pytest.param({"token": TOKEN, "maxAttachmentBytes": 1 << 40}, "less than or equal", id="too large files"),
        pytest.param({"token": TOKEN, "attachmentDirs": ["here"]}, "absolute", id="a relative directory"),
        pytest.param({"token": TOKEN, "alowUsers": [1]}, "alowUsers", id="a typo"),
    ],
)
def test_a_bad_config_is_explained_without_the_token(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TelegramConfig.model_validate(config)
    [found] = caught.value.errors(include_input=False, include_context=False)
    shown = f"{found['loc']}: {found['msg']}"
    assert problem in shown
    assert "CANARY" not in shown


@pytest.mark.parametrize("host", ["127.0.0.1:8081", "localhost", "[::1]:8081"])
def test_plain_http_is_for_this_machine(host: str) -> None:
    assert TelegramConfig.model_validate({"token": TOKEN, "apiBase": f"http://{host}/"}).api_base == f"http://{host}"


def test_the_token_is_in_no_text_of_the_config() -> None:
    config = TelegramConfig.model_validate({"token": TOKEN})
    texts = [repr(config), str(config), config.model_dump_json(), str(config.to_wire())]
    with pytest.raises(ValidationError) as caught:
        TelegramConfig.model_validate({"token": f"{TOKEN}!"})
    assert not any("CANARY" in text for text in [*texts, caught.value.errors()[0]["msg"]])
