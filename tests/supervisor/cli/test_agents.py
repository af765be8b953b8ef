"""``relay agent``: from nothing to an agent that reads its mail, and back, in one line each."""

from __future__ import annotations

import json
import shlex
import subprocess
import tomllib
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from relay_supervisor.agents.client_config.catalog import PROGRAMS
from tests.kit.cli import Relay, a_relay
from tests.kit.waiting import PATIENCE_SECS
from tests.supervisor.agents.hooks import fenced

_numbers = count(1)


@pytest.fixture
def name() -> str:
    return f"n{next(_numbers)}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "a project"
    project.mkdir()
    return project


def run_hook(relay: Relay, command: str, project: Path, **said: Any) -> str:
    """Run a hook's command line as an agent does: by a shell, in the project, with nothing of ours around it."""
    ran = subprocess.run(
        ["/bin/sh", "-c", command],
        input=json.dumps(said),
        env={"HOME": str(project), "PATH": "/usr/bin:/bin"},
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECS,
    )
    assert ran.stderr == ""
    return ran.stdout


def test_the_whole_story(relay: Relay, project: Path, name: str) -> None:
    subject = f"relay.agent.{name}"
    settings = project / ".claude" / "settings.local.json"
    settings.parent.mkdir()
    settings.write_text('{\n  "model": "opus"\n}\n')
    ran = relay.real("agent", "add", name, "--cwd", str(project), "--for", "claude-code", "--write")
    assert ".mcp.json: created, with mcpServers.relay" in ran.out
    assert "settings.local.json: changed: hooks.SessionStart, hooks.UserPromptSubmit, hooks.Stop" in ran.out
    assert subject in ran.err

    hooks = {
        event: groups[0]["hooks"][0]["command"] for event, groups in json.loads(settings.read_text())["hooks"].items()
    }
    message = relay.publish(subject, {"content": "please review"}, "relay.agent.other")

    def prompt(session: str) -> str:
        said = {"hook_event_name": "UserPromptSubmit", "session_id": session, "prompt": "x"}
        return run_hook(relay, hooks["UserPromptSubmit"], project, **said)

    shown = json.loads(prompt("one"))["hookSpecificOutput"]["additionalContext"]
    assert list(fenced(shown)) == ["please review"]
    assert prompt("one") == ""
    start = {"hook_event_name": "SessionStart", "session_id": "two", "source": "startup"}
    assert message in run_hook(relay, hooks["SessionStart"], project, **start)
    assert prompt("two") == ""
    stop = {"hook_event_name": "Stop", "session_id": "three", "stop_hook_active": False}
    assert json.loads(run_hook(relay, hooks["Stop"], project, **stop))["decision"] == "block"
    assert run_hook(relay, hooks["Stop"], project, **{**stop, "stop_hook_active": True}) == ""
    relay("ack", subject, message)
    assert run_hook(relay, hooks["SessionStart"], project, **{**start, "session_id": "four"}) == ""
    assert relay.waiting(subject) == []

    ran = relay("agent", "rm", name, "--write")  # it knows where it was
    assert settings.read_text() == '{\n  "model": "opus"\n}\n'
    assert not (project / ".mcp.json").exists()
    assert "token revoked" in ran.out


def test_every_agent_is_set_up_without_a_secret(relay: Relay, project: Path, name: str) -> None:
    chosen = [word for one in PROGRAMS for word in ("--for", one)]
    made = relay("agent", "add", name, "--cwd", str(project), *chosen, "--write", "--print-token", "--json").json
    assert {one["state"] for one in made["files"]} == {"made"}
    files = [one for one in project.rglob("*") if one.is_file()]
    assert len(files) == len(made["files"]) == 9
    for file in files:
        text = file.read_text()
        assert f"relay.agent.{name}" in text
        assert made["token"] not in text
        assert tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    before = {file: file.read_bytes() for file in files}
    again = relay("agent", "add", name, "--cwd", str(project), "--write", "--json").json
    assert {one["state"] for one in again["files"]} == {"same"}
    assert {file: file.read_bytes() for file in files} == before
    shown = relay("agent", "rm", name, "--cwd", str(project))
    assert shown.out.count(": has ") == 9
    assert "--write" in shown.err
    assert {file: file.read_bytes() for file in files} == before
    relay("agent", "rm", name, "--cwd", str(project), "--write")  # gone from the bus already
    assert [one for one in project.rglob("*") if one.is_file()] == []
    assert "no agent" in relay("agent", "rm", name, "--cwd", str(project), code=1).err


def test_the_configuration_is_printed_ready_to_paste(relay: Relay, project: Path, name: str) -> None:
    ran = relay("agent", "add", name, "--cwd", str(project), "--for", "codex", "--for", "gemini")
    assert list(project.iterdir()) == []
    parts = [part.partition("\n") for part in ran.out.split("# ")]
    texts = {head.partition(": ")[2]: text for head, _, text in parts}
    settings = json.loads(texts[f"{project}/.gemini/settings.json"])
    assert set(settings) == {"mcpServers", "hooks"}
    server = tomllib.loads(texts[f"{project}/.codex/config.toml"])["mcp_servers"]["relay"]
    assert server["args"][:3] == ["mcp", "--as", f"relay.agent.{name}"]
    assert "Claude" not in ran.out
    every = relay("agent", "add", name, "--cwd", str(project), "--json").json
    assert {one["for"] for one in every["configuration"]} == set(PROGRAMS)
    assert "token" not in every


def test_places_are_named_only_if_they_were_given(tmp_path: Path, project: Path, name: str) -> None:
    with a_relay(tmp_path) as relay:
        daemon = relay.daemon
        made = relay("agent", "add", name, "--cwd", str(project), "--for", "cursor", "--json").json
        hook = made["configuration"][1]["content"]
        assert f"--data-dir {daemon.data_dir} --socket {daemon.socket}" in hook
        data_dir = Path(str(daemon.data_dir))
        home = tmp_path / "home"
        home.mkdir()
        (home / ".dork").mkdir()
        (home / ".dork" / "relay").symlink_to(data_dir)
        (tmp_path / "run" / "relay").mkdir(parents=True)
        (tmp_path / "run" / "relay" / "relay.sock").symlink_to(daemon.socket)
        usual = Relay(HOME=str(home), XDG_RUNTIME_DIR=str(tmp_path / "run"))
        made = usual("agent", "add", name, "--cwd", str(project), "--for", "cursor", "--json").json
        assert "--data-dir" not in made["configuration"][1]["content"]
        assert "--socket" not in made["configuration"][1]["content"]


def test_what_is_left_in_the_files_is_taken_out_by_the_command_that_is_shown(
    relay: Relay, project: Path, name: str
) -> None:
    relay("agent", "add", name, "--cwd", str(project), "--for", "codex", "--write")
    relay("agent", "add", name, "--print-token")  # from elsewhere: its project stays what it is
    shown = relay("agent", "rm", name).err
    assert "config.toml" in {one.name for one in project.rglob("*")}
    words = shlex.split(shown.partition("files with: ")[2])
    assert words[0] == "relay"
    assert "is already removed" in relay(*words[1:]).out
    assert [one for one in project.rglob("*") if one.is_file()] == []


def test_the_token_alone_for_a_shell(relay: Relay, project: Path, name: str) -> None:
    ran = relay.real("agent", "add", name, "--cwd", str(project), "--print-token")
    token = ran.out.strip()
    assert relay("agent", "add", name, "--cwd", str(project), "--print-token").out.strip() == token
    environment = {"RELAY_TOKEN": token}
    subject = f"relay.agent.{name}"
    relay("publish", subject, '"to myself"', "--from", subject, environment=environment)
    assert relay("inbox", subject, "--json", environment=environment).json["messages"][0]["from"] == subject
    relay("publish", subject, '"x"', "--from", "relay.agent.somebody-else", environment=environment, code=4)
    relay("inbox", "relay.agent.somebody-else", environment=environment, code=4)
    relay("agent", "rm", name)
    relay("inbox", subject, environment=environment, code=4)


def test_a_file_that_cannot_be_changed_is_shown_and_the_others_are_changed(
    relay: Relay, project: Path, name: str
) -> None:
    (project / ".mcp.json").write_text("// mine\n{}")
    ran = relay("agent", "add", name, "--cwd", str(project), "--for", "claude-code", "--write", code=1)
    assert ".mcp.json: not changed: it is not plain JSON" in ran.out
    assert '"mcpServers"' in ran.out
    assert "settings.local.json: created" in ran.out
    assert "paste" in ran.err
    assert (project / ".mcp.json").read_text() == "// mine\n{}"


def test_whoever_had_the_place_is_named(relay: Relay, project: Path, name: str) -> None:
    add = ["--cwd", str(project), "--for", "codex", "--write"]
    relay("agent", "add", "first", *add)
    assert "replaces relay.agent.first" in relay("agent", "add", name, *add).out
    again = relay("agent", "add", "first", *add, "--json").json
    assert [one["replaced"] for one in again["files"]] == [[f"relay.agent.{name}"]] * 2


def test_an_agent_that_never_was_is_not_removed_whatever_the_project_has(relay: Relay, project: Path) -> None:
    (project / ".vscode").mkdir()
    (project / ".vscode" / "mcp.json").write_text("// mine\n{}")
    for more in ([], ["--write"]):
        ran = relay("agent", "rm", "never-was", "--cwd", str(project), *more, code=1)
        assert "no agent relay.agent.never-was" in ran.err


def test_what_cannot_be_taken_out_is_said(relay: Relay, project: Path, name: str) -> None:
    relay("agent", "add", name, "--cwd", str(project), "--for", "claude-code", "--write")
    path = project / ".mcp.json"
    text = "// mine\n" + path.read_text()
    path.write_text(text)
    ran = relay("agent", "rm", name, "--write", code=1)
    assert ".mcp.json: not changed: it is not plain JSON" in ran.out
    assert f"remove relay.agent.{name} from" in ran.err
    assert path.read_text() == text
    assert not (project / ".claude" / "settings.local.json").exists()
    assert f"relay.agent.{name}" not in relay("agent", "list").out


def test_nothing_is_taken_out_if_the_bus_refuses(relay: Relay, project: Path, name: str) -> None:
    made = relay(
        "agent", "add", name, "--cwd", str(project), "--for", "codex", "--write", "--print-token", "--json"
    ).json
    relay("agent", "rm", name, "--cwd", str(project), "--write", environment={"RELAY_TOKEN": made["token"]}, code=4)
    assert (project / ".codex" / "config.toml").exists()


def test_only_the_agents_that_a_project_has_are_set_up_unless_one_is_named(
    relay: Relay, project: Path, name: str
) -> None:
    ran = relay("agent", "add", name, "--cwd", str(project), "--write", code=2)
    assert "--for claude-code" in ran.err
    assert f"relay.agent.{name}" not in relay("agent", "list", "--json").out
    (project / ".gemini").mkdir()
    relay("agent", "add", name, "--cwd", str(project), "--write")
    assert [one.name for one in project.rglob("*") if one.is_file()] == ["settings.json"]


MISTAKES = {
    "no name": (["add", ""], "empty token"),
    "a wildcard": (["add", "relay.agent.*"], "wildcard"),
    "a path": (["add", "a/x"], "only letters"),
    "a description of two lines": (["add", "x", "--description", "a\nb"], "one line"),
    "no such agent": (["add", "x", "--for", "emacs"], "claude-code, codex"),
    "no directory": (["add", "x", "--cwd", "/nowhere"], "not a directory"),
    "nobody's": (["add", "relay.system.bus"], "relay.system"),
    "a private mailbox's": (["add", "relay.reply.x"], "another name"),
}


@pytest.mark.parametrize(("args", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_get_a_line(relay: Relay, args: list[str], words: str) -> None:
    assert words in relay("agent", *args, code=2).err


def test_the_list_says_who_is_there(tmp_path: Path) -> None:
    with a_relay(tmp_path) as relay:
        text, document = relay.both("agent")
        assert "relay agent add NAME" in text.out
        assert document == {"agents": []}
        relay.add("relay.queue.work")
        relay("agent", "add", "one", "--cwd", str(tmp_path), "--description", "knows things")
        relay.publish("relay.agent.one")
        text = relay.real("agent", "list")
        [head, row] = text.out.splitlines()
        assert head.split() == ["AGENT", "CONNECTED", "LAST", "SEEN", "UNREAD", "DESCRIPTION"]
        assert row.split()[:4] == ["relay.agent.one", "no", "never", "1"]
        assert row.endswith("knows things")
        assert "1 other endpoint" in text.err
        assert "relay.queue.work" in relay("agent", "list", "--all").out
        event = json.dumps({"hook_event_name": "Stop", "session_id": "s"})
        relay.real(
            "hook", "--as", "relay.agent.one", stdin=event, environment={"XDG_STATE_HOME": str(tmp_path / "state")}
        )
        assert "ago" in relay("agent").out
