"""What is ours goes into a text and out of it again, and nothing else moves."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_supervisor.agents.client_config.catalog import NAME, PROGRAMS, File, Hook, Server, programs, subject_of
from relay_supervisor.agents.client_config.editing import ByHand, Edited, put, take

SUBJECT = "relay.agent.backend"
OTHER = "relay.agent.frontend"
PLACES = ["--socket", "/tmp/a place/relay.sock"]


def file_of(agent: str, name: str, subject: str = SUBJECT) -> File:
    found = next(one for one in programs(["relay"], subject) if one.id == agent)
    return next(one for one in found.files if one.name.endswith(name))


MCP = file_of("claude-code", ".mcp.json")
HOOKS = file_of("claude-code", "settings.local.json")
GEMINI = file_of("gemini", "settings.json")
CURSOR = file_of("cursor", "hooks.json")
CODEX = file_of("codex", "config.toml")
OPENCODE = file_of("opencode", "opencode.json")

EVERY_FILE = [
    pytest.param(file, id=f"{agent.id} {file.name}")
    for agent in programs(["/opt/a venv/bin/relay"], SUBJECT, PLACES)
    for file in agent.files
]

JSON_TEXTS = {
    "nothing": "{}",
    "indented by two": '{\n  "model": "opus",\n  "list": [1, 2]\n}\n',
    "indented by a tab": '{\n\t"model": "opus"\n}\n',
    "indented by four, no newline at the end": '{\n    "model": "opus"\n}',
    "in one line": '{"model": "opus", "env": {"KEY": "secret"}}',
    "odd spaces": '{ "model" :"opus"  ,\n\n"x":[ ] }  \n',
    "lines as on Windows": '{\r\n  "model": "opus"\r\n}\r\n',
    "other servers and hooks": json.dumps(
        {
            "mcpServers": {"db": {"command": "db-mcp", "args": ["--as", "x"]}},
            "servers": {"db": {"command": "db-mcp"}},
            "mcp": {"db": {"type": "local", "command": ["db-mcp"]}},
            "hooks": {
                event: [{"matcher": "*", "hooks": [{"type": "command", "command": "theirs"}]}]
                for event in ("Stop", "AfterAgent", "stop", "SessionStart")
            },
        },
        indent=2,
    ),
    "text that looks like JSON": '{\n  "note": "}, \\"hooks\\": {\\n ünïcödé \\u2028",\n  "é": null\n}\n',
}


@pytest.mark.parametrize("file", EVERY_FILE)
@pytest.mark.parametrize("text", JSON_TEXTS.values(), ids=JSON_TEXTS)
def test_what_is_put_in_is_there_and_comes_out_again_without_a_trace(file: File, text: str) -> None:
    if file.name.endswith(".toml"):
        text = '# mine\nmodel = "gpt"\n\n[mcp_servers.db]\ncommand = "db-mcp"\n'
    done = put(file, text)
    said = tomllib.loads(done.text) if file.name.endswith(".toml") else json.loads(done.text)
    for entry in file.entries:
        found: Any = said
        for key in entry.path:
            found = found[key]
        assert found == entry.value if isinstance(entry, Server) else entry.value in found
    assert done.places == [".".join(entry.path) for entry in file.entries]
    assert put(file, done.text) == Edited(done.text, [])
    out = take(file, done.text, SUBJECT)
    if text != "{}" and not file.frame:
        assert out.text == text
    assert out.empty == (text == "{}")
    assert take(file, out.text, SUBJECT).places == []


@pytest.mark.parametrize("file", EVERY_FILE)
def test_an_empty_file_gets_all_of_it_and_is_empty_again(file: File) -> None:
    done = put(file, "")
    assert done.text.endswith("\n")
    assert take(file, done.text, SUBJECT).empty


@pytest.mark.parametrize("file", EVERY_FILE)
def test_another_agents_entries_are_replaced_and_not_taken_out(file: File) -> None:
    theirs = next(
        one
        for agent in programs(["/opt/a venv/bin/relay"], OTHER, PLACES)
        for one in agent.files
        if one.name == file.name
    )
    before = put(theirs, "").text
    assert take(file, before, SUBJECT) == Edited(before, [])
    after = put(file, before)
    assert OTHER not in after.text
    assert after.text == put(file, "").text
    assert after.replaced == [OTHER]


KEPT_AS_THEY_ARE: dict[str, tuple[File, str, str]] = {
    "comments": (MCP, '{\n  // mine\n  "mcpServers": {}\n}', "not plain JSON"),
    "a trailing comma": (HOOKS, '{"hooks": {},}', "not plain JSON"),
    "a key twice": (MCP, '{"mcpServers": {}, "mcpServers": {"a": {}}}', "duplicate key"),
    "half a file": (MCP, '{"mcpServers": {', "not plain JSON"),
    "a byte order mark": (MCP, "\ufeff{}", "not plain JSON"),
    "deep nesting": (MCP, '{"a":' + "[" * 100_000 + "]" * 100_000 + "}", "not plain JSON"),
    "a list": (MCP, "[]", "not a JSON object"),
    "a foreign server of our name": (MCP, '{"mcpServers": {"relay": {"command": "relay-race"}}}', "not Relay's"),
    "a foreign server with our name and no command": (MCP, '{"mcpServers": {"relay": 7}}', "not Relay's"),
    "servers that are nothing": (MCP, '{"mcpServers": null}', "not an object"),
    "an entry of our name that is nothing": (MCP, '{"mcpServers": {"relay": null}}', "not Relay's"),
    "servers that are no object": (MCP, '{"mcpServers": ["relay"]}', "not an object"),
    "hooks that are no object": (HOOKS, '{"hooks": "none"}', "not an object"),
    "hooks that are nothing": (HOOKS, '{"hooks": null}', "not an object"),
    "an event that is nothing": (HOOKS, '{"hooks": {"Stop": null}}', "not a list"),
    "an event that is no list": (HOOKS, '{"hooks": {"Stop": {"a": 1}}}', "not a list"),
    "broken TOML": (CODEX, "[mcp_servers\n", "not valid TOML"),
    "an inline table": (CODEX, 'mcp_servers = { db = { command = "x" } }\n', "risk"),
    "a foreign table of our name": (CODEX, '[mcp_servers.relay]\ncommand = "relay-race"\n', "not Relay's"),
    "our table, dotted": (
        CODEX,
        'mcp_servers.relay.command = "relay"\nmcp_servers.relay.args = ["mcp", "--as", "relay.agent.x"]\n',
        "risk",
    ),
    "our table, with a quoted name": (
        CODEX,
        '[mcp_servers."relay"]\ncommand = "relay"\nargs = ["mcp", "--as", "relay.agent.x"]\n',
        "risk",
    ),
    "our table, with variables in a line of it": (
        CODEX,
        f'[mcp_servers.relay]\ncommand = "relay"\nargs = ["mcp", "--as", "{OTHER}"]\nenv = {{ A = "b" }}\n',
        "risk",
    ),
    "our header in a text": (CODEX, 'note = """\n[mcp_servers.relay]\n"""\n', "risk"),
}


@pytest.mark.parametrize(("file", "text", "reason"), KEPT_AS_THEY_ARE.values(), ids=KEPT_AS_THEY_ARE)
def test_what_cannot_be_changed_safely_is_for_a_person(file: File, text: str, reason: str) -> None:
    with pytest.raises(ByHand, match=reason):
        put(file, text)


def test_a_handler_that_shares_a_group_leaves_the_others_in_it() -> None:
    ours = {"type": "command", "command": f"/opt/relay hook --as {SUBJECT}"}
    theirs = {"type": "command", "command": "lint"}
    text = json.dumps({"hooks": {"Stop": [{"matcher": "", "hooks": [theirs, ours]}]}}, indent=2)
    done = put(HOOKS, text)
    assert json.loads(done.text)["hooks"]["Stop"] == [
        {"matcher": "", "hooks": [theirs]},
        next(one.value for one in HOOKS.entries if one.path[1] == "Stop"),
    ]
    assert json.loads(take(HOOKS, text, SUBJECT).text) == {"hooks": {"Stop": [{"matcher": "", "hooks": [theirs]}]}}


def test_lines_end_as_they_do_in_the_text() -> None:
    for file, text in ((HOOKS, '{\r\n  "a": 1\r\n}\r\n'), (CODEX, "a = 1\r\n\r\n[b]\r\nc = 2")):
        done = put(file, text).text
        assert done.count("\r\n") == done.count("\n")
    assert "\r" not in put(HOOKS, "{\n}").text


def test_what_is_put_in_is_indented_like_the_rest() -> None:
    assert put(MCP, '{\n\t"mcpServers": {\n\t\t"db": {}\n\t}\n}\n').text == (
        '{\n\t"mcpServers": {\n\t\t"db": {},\n\t\t"relay": {"command": "relay", "args": ["mcp", "--as",'
        f' "{SUBJECT}"]}}\n\t}}\n}}\n'
    )


def test_what_is_put_into_a_line_is_indented_alike_throughout() -> None:
    done = put(HOOKS, '{"hooks": {}}').text
    assert {len(line) - len(line.lstrip()) for line in done.splitlines()} == {0, 2, 4, 6}


def test_what_a_person_has_added_to_our_handler_stays() -> None:
    text = put(HOOKS, "").text.replace('"timeout": 10', '"timeout": 3')
    assert put(HOOKS, text) == Edited(text, [])


def test_what_a_person_has_added_to_our_server_stays_also_with_another_subject() -> None:
    for subject, changed in ((SUBJECT, False), (OTHER, True)):
        mine = file_of("gemini", "settings.json", subject).entries[0].value
        done = put(GEMINI, json.dumps({"mcpServers": {"relay": {**mine, "trust": True, "env": {"A": "b"}}}}))
        server = json.loads(done.text)["mcpServers"]["relay"]
        assert server == {**GEMINI.entries[0].value, "trust": True, "env": {"A": "b"}}
        assert ("mcpServers.relay" in done.places) == changed

    more = 'startup_timeout_sec = 20\n\n[mcp_servers.relay.env]\nA = "b"\n'
    text = put(file_of("codex", "config.toml", OTHER), "").text + more
    assert put(CODEX, text).text == put(CODEX, "").text + more
    off = put(OPENCODE, "").text.replace('"type": "local"', '"enabled": false, "type": "local"')
    assert put(OPENCODE, off) == Edited(off, [])


def test_comments_are_not_nothing() -> None:
    text = '# model = "gpt"\n'
    assert take(CODEX, put(CODEX, text).text, SUBJECT) == Edited(text, ["mcp_servers.relay"])


def test_a_table_with_more_below_it_is_for_a_person() -> None:
    text = put(CODEX, "").text + '\n[mcp_servers.relay.env]\nA = "b"\n'
    with pytest.raises(ByHand):
        take(CODEX, text, SUBJECT)


def test_a_comment_above_the_next_table_stays() -> None:
    text = put(CODEX, "a = 1\n").text + "\n# about the next\n[next]\nb = 2 # [x]\n"
    assert take(CODEX, text, SUBJECT).text == "a = 1\n\n# about the next\n[next]\nb = 2 # [x]\n"


NOT_OURS: dict[str, Any] = {
    "no object": "relay mcp --as x",
    "another command": {"command": "mail", "args": ["mcp", "--as", "relay.agent.x"]},
    "another verb": {"command": "relay", "args": ["publish", "--as", "relay.agent.x"]},
    "no subject": {"command": "relay", "args": ["mcp", "--as"]},
    "no words": {"command": 7},
    "odd words": {"command": "relay", "args": ["mcp", "--as", 7]},
    "an open quote": {"command": "relay hook --as 'x"},
    "nothing": {},
}


@pytest.mark.parametrize("entry", NOT_OURS.values(), ids=NOT_OURS)
def test_what_is_not_ours_is_known(entry: Any) -> None:
    assert subject_of(entry) is None


def test_ours_is_known_however_it_is_called() -> None:
    for relay in (["relay"], ["/a b/relay"], ["python3", "-m", "relay_supervisor.cli"]):
        for agent in programs(relay, SUBJECT):
            for file in agent.files:
                for entry in file.entries:
                    handlers = entry.value.get("hooks", [entry.value]) if isinstance(entry, Hook) else [entry.value]
                    assert [subject_of(one) for one in handlers] == [SUBJECT]
    assert {agent.id for agent in programs(["relay"], SUBJECT)} == set(PROGRAMS)
    assert NAME == "relay"


_LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
_DOCUMENTS = st.dictionaries(
    st.sampled_from(["hooks2", "model", "a b", "ü", ""]),
    st.recursive(
        _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_size=4,
)


@given(_DOCUMENTS, st.sampled_from([None, 1, 2, "\t"]), st.sampled_from([HOOKS, GEMINI, MCP]))
def test_any_document_survives_byte_for_byte(said: dict[str, Any], indent: int | str | None, file: File) -> None:
    text = json.dumps(said, indent=indent, ensure_ascii=False)
    done = put(file, text)
    assert {key: value for key, value in json.loads(done.text).items() if key in said} == said
    out = take(file, done.text, SUBJECT)
    assert out.empty if not said else out.text == text
