"""Logs: what a line looks like, that no secret and no forged line gets into one, and that logging never fails."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core.config import LogsConfig
from relay_supervisor.observability.logs import configure_logging
from relay_supervisor.observability.redaction import REDACTED, redact, redact_text
from tests.kit.logs import restored_logging

Format = Literal["human", "json"]
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
CANARY = "CaNaRy"
LONG = CANARY + "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJ"
SECRETS = {
    "our token": f"relay_{LONG}",
    "bot token": f"123456789:{LONG[:35]}",
    "bot token in a URL": f"https://api.telegram.org/bot123456789:{LONG[:35]}/sendMessage",
    "bot token quoted": f"https://api.telegram.org/bot123456789%3A{LONG[:35]}/getMe",
    "bearer": f"Bearer {LONG}",
    "bearer in lower case": f"authorization: bearer {LONG}",
    "basic": f"Authorization: Basic {LONG}==",
    "header of a dict": f"{{'Authorization': 'Basic {LONG}'}}",
    "cookie": f"Set-Cookie: session={CANARY}; path=/",
    "model key": f"sk-ant-{LONG}",
    "webhook key": f"whsec_{LONG}",
    "code host": f"ghp_{LONG}",
    "chat": f"xoxb-{LONG}",
    "web token": f"eyJhbGciOiJI.{LONG}.{LONG}",
    "URL password": f"postgres://user:{CANARY}@db/x",
    "URL password with an at": f"https://user:p@{CANARY}@host",
    "URL password alone": f"redis://:{CANARY}@host:6379",
    "query": f"https://h/?a=1&token={CANARY}&b=2",
    "assignment": f"password={CANARY}",
    "repr of a model": f"Config(bot_token='{CANARY} x', id=1)",
    "repr of a dict": f"{{'apiKey': '{CANARY}'}}",
    "JSON": f'{{"client_secret":"{CANARY}","x":1}}',
    "JSON in JSON": f'{{"text":"{{\\"secret\\":\\"{CANARY}\\"}}"}}',
    "bytes": f"signature=b'{CANARY}'",
    "prose": f"wrong password: {CANARY}",
    "prose that begins like a remark": f"wrong password: required,{CANARY}",
    "prose after a field": f"config.outbound.secret: missing;{CANARY}) or Field",
    "URL in prose": f"cannot reach http://me:{CANARY}@h:1/x, token={CANARY}.",
}
SECRET_NAMES = [
    "token",
    "TOKEN",
    "botToken",
    "bot_token",
    "access-token",
    "secret",
    "clientSecret",
    "password",
    "passwd",
    "Authorization",
    "api_key",
    "apiKey",
    "X-Api-Key",
    "cookie",
    "Set-Cookie",
    "signature",
    "X-Hub-Signature-256",
    "credentials",
    "private_key",
]


@pytest.fixture(autouse=True)
def _undo() -> Iterator[None]:
    with restored_logging():
        yield


@pytest.fixture(params=["human", "json"])
def format(request: pytest.FixtureRequest) -> Format:
    return "human" if request.param == "human" else "json"


def logged(format: Format, say: Callable[[logging.Logger], object], level: str = "debug") -> str:
    stream = io.StringIO()
    logging.getLogger().handlers = []  # pytest's own, which raise what they cannot render
    configure_logging(LogsConfig.model_validate({"format": format, "level": level}), stream=stream)
    say(logging.getLogger("relay_core.test"))
    return stream.getvalue()


def failing(log: Any, text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("failed")


# What a line looks like


def test_a_human_line_has_time_level_event_and_fields() -> None:
    line = logged("human", lambda log: log.warning("mail for %s", "a", extra={"depth": 3, "why": "too slow"}))
    assert re.fullmatch(
        TIME + r" warning  mail for a depth=3 why=\"too slow\" logger=relay_core\.test\n",
        line,
    )


def test_a_json_line_is_one_object_with_time_level_logger_and_event() -> None:
    line = logged("json", lambda log: log.warning("mail for %s", "a", extra={"depth": 3}))
    found = json.loads(line)
    assert re.fullmatch(TIME, found.pop("time"))
    assert found == {"level": "warning", "logger": "relay_core.test", "event": "mail for a", "depth": 3}
    assert line.count("\n") == 1


def test_an_exception_is_text_in_json_and_barred_lines_for_people() -> None:
    def say(log: logging.Logger) -> None:
        failing(log, "no\nway")

    found = json.loads(logged("json", say))
    assert found["event"] == "failed"
    assert found["exception"].startswith("Traceback (most recent call last):\n")
    assert found["exception"].endswith("ValueError: no\nway")
    first, *rest = logged("human", say).splitlines()
    assert "failed" in first
    assert rest[-2:] == ["  | ValueError: no", "  | way"]
    assert all(line.startswith("  | ") for line in rest)


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_only_lines_of_the_level_and_above_are_written(format: Format, level: str) -> None:
    def say(log: logging.Logger) -> None:
        for name in ("debug", "info", "warning", "error"):
            getattr(log, name)(f"said at {name}")

    at = ["debug", "info", "warning", "error"].index(level)
    heard = re.findall("said at ([a-z]+)", logged(format, say, level))
    assert heard == ["debug", "info", "warning", "error"][at:]


@pytest.mark.parametrize("name", ["apscheduler.scheduler", "asyncio", "urllib3", "watchdog.observers"])
def test_chatty_libraries_are_heard_from_warning_on(format: Format, name: str) -> None:
    def say(log: logging.Logger) -> None:
        logging.getLogger(name).info("chatter")
        logging.getLogger(name).warning("trouble")

    text = logged(format, say)
    assert "trouble" in text
    assert "chatter" not in text
    assert logged(format, say, "error") == ""


def test_a_new_configuration_takes_the_place_of_the_old_one() -> None:
    old, new = io.StringIO(), io.StringIO()
    log = logging.getLogger("relay_core.test")
    configure_logging(LogsConfig(level="error", format="human"), stream=old)
    log.info("before")
    configure_logging(LogsConfig(level="info", format="json"), stream=new)
    log.info("after")
    assert old.getvalue() == ""
    assert [json.loads(line)["event"] for line in new.getvalue().splitlines()] == ["after"]


def test_everything_can_be_undone() -> None:
    root = logging.getLogger()
    logging.getLogger("asyncio").setLevel(logging.DEBUG)
    before = (root.handlers[:], root.level, logging.getLogger("asyncio").level)
    with restored_logging():
        configure_logging(LogsConfig(level="debug"), stream=io.StringIO())
        assert root.handlers != before[0]
    assert (root.handlers, root.level, logging.getLogger("asyncio").level) == before


def test_auto_means_people_on_a_terminal_and_programs_elsewhere() -> None:
    controller, terminal = pty.openpty()
    try:
        with open(terminal, "w") as stream:
            configure_logging(LogsConfig(format="auto"), stream=stream)
            logging.getLogger("relay_core.test").error("hello\x1b[2J")
        seen = os.read(controller, 4096).decode()
    finally:
        os.close(controller)
    assert "\x1b[31merror   \x1b[0m hello\\x1b[2J" in seen
    stream2 = io.StringIO()
    configure_logging(LogsConfig(format="auto"), stream=stream2)
    logging.getLogger("relay_core.test").error("hello")
    assert json.loads(stream2.getvalue())["event"] == "hello"


def test_there_are_no_colours_without_a_terminal() -> None:
    assert "\x1b" not in logged("human", lambda log: log.error("x"))


# Secrets

Say = Callable[[logging.Logger, str], object]


class Shown:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Shown {self.text}"


def chained(log: logging.Logger, text: str) -> None:
    try:
        try:
            raise OSError(text)
        except OSError as error:
            raise RuntimeError("outer") from error
    except RuntimeError:
        log.exception("failed")


def noted(log: logging.Logger, text: str) -> None:
    error = ValueError("inner")
    error.add_note(text)
    try:
        raise ExceptionGroup("several", [error])
    except ExceptionGroup:
        log.exception("failed")


PLACES: dict[str, Say] = {
    "the message": lambda log, text: log.info(text),
    "an argument": lambda log, text: log.info("got %s", text),
    "an argument that is a dict": lambda log, text: log.info("got %s", {"x": [text]}),
    "a field": lambda log, text: log.info("got", extra={"field": text}),
    "a nested field": lambda log, text: log.info("got", extra={"field": {"a": [{"b": (text, {text})}]}}),
    "a name": lambda log, text: log.info("got", extra={"field": {text: 1}}),
    "a name of a field": lambda log, text: log.info("got", extra={text: 1}),
    "bytes": lambda log, text: log.info("got", extra={"field": text.encode(errors="surrogatepass")}),
    "an object": lambda log, text: log.info("got", extra={"field": Shown(text)}),
    "an object as a name": lambda log, text: log.info("got", extra={"field": {Shown(text): 1}}),
    "an error as a field": lambda log, text: log.info("got", extra={"field": OSError(5, text)}),
    "an exception": failing,
    "a chained exception": chained,
    "a note in a group": noted,
    "the logger's name": lambda log, text: logging.getLogger(text).info("got"),
    "deep down": lambda log, text: log.info("got", extra={"field": [[[[[[[[[text]]]]]]]]]}),
    "a long text": lambda log, text: log.info("%s %s", "x " * 8_180, text),
    "before a very long text": lambda log, text: log.info("%s %s", text, "x " * 40_000),
    "a very long text": lambda log, text: log.info("%s%s", "x " * 32_760, text * 10),
}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS.keys())
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_no_secret_is_written(place: Say, secret: str) -> None:
    for format in ("human", "json"):
        text = logged("human" if format == "human" else "json", lambda log: place(log, secret))
        assert text
        assert CANARY.lower() not in text.lower()


@pytest.mark.parametrize("name", SECRET_NAMES)
@pytest.mark.parametrize(
    "value",
    [CANARY, CANARY.encode(), [CANARY], {"x": CANARY}, Shown(CANARY)],
    ids=["str", "bytes", "list", "dict", "object"],
)
def test_what_stands_under_a_secret_name_is_not_written(format: Format, name: str, value: object) -> None:
    def say(log: logging.Logger) -> None:
        log.info("plain", extra={name: value})
        log.info("nested", extra={"field": [{"inner": {name: value}}]})

    text = logged(format, say)
    assert CANARY not in text
    assert text.count(REDACTED) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"token_id": "ab12"},
        {"tokens": 3},
        {"requireTokens": True},
        {"token": None},
        {"password_file": "/etc/x"},
        {"author": "me"},
        {"key": "relay.agent.a"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_only_speaks_about_a_secret_is_kept(fields: dict[str, Any]) -> None:
    assert redact(fields) == fields


@pytest.mark.parametrize(
    "text",
    [
        "subject 'a..b' has an empty token: remove the extra dot",
        "relay_core.adapters.interface.telegram: relay_supervisor is up",
        "2026-01-01T10:20:30.400Z 127.0.0.1:9464 http://127.0.0.1:4318/v1/traces",
        "relay.agent.task-runner-for-the-big-project",
        "01ARZ3NDEKTSV4RRFFQ69G5FAV handled in 12 ms (3/5 hops)",
        "no token for relay.agent.*",
        "adapter hook: config.outbound.secret is not valid: Field required",
        "config.inbound: previousSecret is the same as secret and must be left out",
        "config.secret is not valid: the environment has no HOOK_SECRET (set it where the supervisor is started)",
        "mail to someone@example.org from http://host/a@b",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    "piece", ["eyJ-", "relay_", "://a:", "x-", "token=", "'", "\\", "1", "sk-", "bearer ", "a", "\n"]
)
def test_no_text_takes_long_to_redact(piece: str) -> None:
    # A pattern that tried every way to fail would not end within the test's time limit.
    redact_text(piece * (1_000_000 // len(piece)))


def test_long_texts_and_large_values_are_cut() -> None:
    assert len(redact_text("x" * 1_000_000)) < 17_000
    assert len(redact(list(range(1_000_000)))) == 100
    loop: list[Any] = []
    loop.append(loop)
    assert "…" in json.dumps(redact(loop), ensure_ascii=False)


# Forged lines

FORGED = "x\n2026-01-01T00:00:00.000Z error    forged logger=a\r\x1b[2J\x9b31m\u2028\u202e\x00\x85\x7f\ud800"


@pytest.mark.parametrize(
    "place",
    [place for name, place in PLACES.items() if "long" not in name],
    ids=[name for name in PLACES if "long" not in name],
)
def test_foreign_text_forges_neither_a_line_nor_an_escape_sequence(format: Format, place: Say) -> None:
    text = logged(format, lambda log: place(log, FORGED))
    assert text.endswith("\n")
    first, *rest = text[:-1].split("\n")
    assert all(line.startswith("  | ") for line in rest)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]", text)
    assert len(text.splitlines()) == 1 + len(rest)
    if format == "json":
        assert not rest
        json.loads(first)


@given(st.text(), st.dictionaries(st.text(), st.text() | st.floats() | st.binary() | st.none(), max_size=3))
def test_any_text_makes_one_line_that_can_be_encoded(text: str, fields: dict[str, Any]) -> None:
    for format in ("human", "json"):
        with restored_logging():
            line = logged(
                "human" if format == "human" else "json",
                lambda log: log.info("%s", text, extra={"field": fields, "text": text}),
            )
        assert line.encode().count(b"\n") == 1
        if format == "json":
            json.loads(line, parse_constant=lambda constant: pytest.fail(constant))


def test_a_field_cannot_take_the_place_of_a_records_own() -> None:
    fields = {"time": "never", "level": "error", "logger": "other", "event": "forged"}
    found = json.loads(logged("json", lambda log: log.info("true", extra=fields)))
    assert (found["level"], found["logger"], found["event"]) == ("info", "relay_core.test", "true")
    assert found["time"] != "never"
    assert found["level_"] == "error"


def test_json_gives_text_back_as_it_was() -> None:
    text = "two\nlines, \x1b and é \x7f"
    assert json.loads(logged("json", lambda log: log.info("%s", text)))["event"] == text


# Trouble


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError(CANARY)


@pytest.mark.parametrize(
    "say",
    [
        lambda log: log.info("%d", CANARY),
        lambda log: log.info("%s %s", CANARY),
        lambda log: log.info("%s", Unshowable()),
    ],
    ids=["wrong type", "too few", "object"],
)
def test_a_record_that_cannot_be_rendered_is_told_of_in_its_place(
    format: Format, say: Callable[[logging.Logger], object], capfd: pytest.CaptureFixture[str]
) -> None:
    text = logged(format, say)
    assert "a log record could not be rendered" in text
    assert text.count("\n") == 1
    assert CANARY not in text
    assert capfd.readouterr() == ("", "")


def test_a_field_that_cannot_be_shown_costs_only_itself(format: Format) -> None:
    text = logged(format, lambda log: log.info("event", extra={"field": Unshowable(), "other": 1}))
    assert "<Unshowable>" in text
    assert "event" in text


def test_a_closed_stream_fails_no_caller(capfd: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    configure_logging(LogsConfig(), stream=stream)
    stream.close()
    logging.getLogger("relay_core.test").error("lost")
    configure_logging(LogsConfig(), stream=stream)
    assert capfd.readouterr() == ("", "")


def test_a_full_disk_fails_no_caller(capfd: pytest.CaptureFixture[str]) -> None:
    stream = open("/dev/full", "w")  # noqa: SIM115
    configure_logging(LogsConfig(), stream=stream)
    for _ in range(1_000):
        logging.getLogger("relay_core.test").error("lost %s", "x" * 100)
    with suppress(OSError):
        stream.close()
    assert capfd.readouterr() == ("", "")


def test_a_reader_that_went_away_fails_no_caller(capfd: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    stream = open(writer, "w")  # noqa: SIM115
    os.close(reader)
    configure_logging(LogsConfig(), stream=stream)
    logging.getLogger("relay_core.test").error("lost")
    with suppress(OSError):
        stream.close()
    assert capfd.readouterr() == ("", "")


def test_a_stream_that_knows_only_ascii_gets_the_line_all_the_same() -> None:
    raw = io.BytesIO()
    configure_logging(LogsConfig(format="human"), stream=io.TextIOWrapper(raw, encoding="ascii"))
    logging.getLogger("relay_core.test").error("été")
    assert rb"\xe9t\xe9" in raw.getvalue()
