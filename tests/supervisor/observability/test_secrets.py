"""Texts without the secrets that the process knows."""

from __future__ import annotations

import io
import json
import logging
from urllib.parse import quote

import pytest

from relay_core.config import LogsConfig
from relay_supervisor.observability.logs import configure_logging
from relay_supervisor.observability.secrets import SecretRedactor
from tests.kit.logs import restored_logging

SECRET = 'pa"ss/wörd zxq'


def test_a_secret_is_found_however_it_is_written() -> None:
    redactor = SecretRedactor()
    redactor.add([SECRET])
    for text in (SECRET, quote(SECRET, safe=""), json.dumps({"a": SECRET}), repr([SECRET])):
        concealed = redactor.redact(f"before {text} after")
        assert "zxq" not in concealed
        assert concealed.startswith("before ")
        assert concealed.endswith(" after")


def test_a_secret_of_several_lines_is_found_on_one_and_line_by_line() -> None:
    redactor = SecretRedactor()
    redactor.add(["-----BEGIN KEY-----\nMIIEvQIBADAN\n-----END KEY-----"])
    assert redactor.redact("bad -----BEGIN KEY----- MIIEvQIBADAN -----END KEY-----") == "bad ***"
    assert redactor.redact("  | MIIEvQIBADAN") == "  | ***"


def test_the_longer_of_two_secrets_goes_first() -> None:
    redactor = SecretRedactor()
    redactor.add(["secret", "secret-and-more"])
    assert redactor.redact("secret-and-more secret") == "*** ***"


def test_what_is_too_short_to_tell_from_text_stays() -> None:
    redactor = SecretRedactor()
    redactor.add(["on"])
    assert redactor.redact("it goes on") == "it goes on"


def test_an_old_secret_stays_one() -> None:
    redactor = SecretRedactor()
    redactor.add(["first one"])
    redactor.add(["second one"])
    assert redactor.redact("first one, second one") == "***, ***"


@pytest.mark.parametrize("format", ["json", "human"])
def test_a_log_line_has_none_wherever_it_comes_from(format: str) -> None:
    redactor, stream = SecretRedactor(), io.StringIO()
    redactor.add([SECRET])
    with restored_logging():
        configure_logging(LogsConfig.model_validate({"format": format}), stream=stream, redact=redactor.redact)
        logging.getLogger("somebody.else").warning("cannot reach https://example.com/%s", quote(SECRET, safe=""))
        try:
            raise ValueError(f"{SECRET} is wrong")
        except ValueError:
            logging.getLogger("x").exception("it failed", extra={"header": SECRET})
    assert stream.getvalue().count("***") >= 3
    assert "zxq" not in stream.getvalue()
