"""A project's file is changed in one step, or left alone with a reason."""

from __future__ import annotations

import json
import os
import shlex
import stat
from pathlib import Path

import pytest

from relay_supervisor.agents.client_config import merging
from relay_supervisor.agents.client_config.catalog import File, programs
from relay_supervisor.agents.client_config.editing import Edited, put
from relay_supervisor.agents.client_config.merging import change, put_into, take_out_of
from relay_supervisor.agents.client_config.own_command import own_command

SUBJECT = "relay.agent.backend"


@pytest.fixture
def file() -> File:
    return programs(["relay"], SUBJECT)[0].files[0]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    return project


def names(directory: Path) -> list[str]:
    return sorted(one.name for one in directory.iterdir())


def test_a_file_is_made_changed_kept_and_removed(project: Path) -> None:
    for agent in programs(["relay"], SUBJECT):
        for file in agent.files:
            assert put_into(project, file).state == "made"
            assert put_into(project, file).state == "same"
    changed = programs(["/elsewhere/relay"], SUBJECT)[0].files[0]
    outcome = put_into(project, changed)
    assert (outcome.state, outcome.places) == ("changed", ["mcpServers.relay"])
    for agent in programs(["relay"], SUBJECT):
        for file in agent.files:
            assert take_out_of(project, file, SUBJECT, write=False).state == "changed"
            assert take_out_of(project, file, SUBJECT).state == "removed"
            assert take_out_of(project, file, SUBJECT).state == "same"
    assert [one for one in project.rglob("*") if one.is_file()] == []


def test_the_mode_is_kept_and_nothing_is_left_behind(project: Path, file: File) -> None:
    path = project / file.name
    path.write_text('{"a": 1}')
    path.chmod(0o664)
    assert put_into(project, file).state == "changed"
    assert stat.S_IMODE(path.stat().st_mode) == 0o664
    assert names(project) == [file.name]
    assert take_out_of(project, file, SUBJECT).state == "changed"
    assert path.read_text() == '{"a": 1}'


def test_a_link_within_the_project_is_followed_and_stays(project: Path, file: File) -> None:
    (project / "config").mkdir()
    (project / "config" / "mcp.json").write_text("{}")
    (project / file.name).symlink_to("config/mcp.json")
    assert put_into(project, file).state == "changed"
    assert (project / file.name).is_symlink()
    assert "relay" in json.loads((project / "config" / "mcp.json").read_text())["mcpServers"]


def test_a_link_out_of_the_project_is_not_followed(tmp_path: Path, project: Path, file: File) -> None:
    outside = tmp_path / "mine.json"
    outside.write_text("{}")
    (project / file.name).symlink_to(outside)
    outcome = put_into(project, file)
    assert outcome.state == "by hand"
    assert str(outside) in outcome.text
    assert outside.read_text() == "{}"
    (tmp_path / "dot-claude").mkdir()
    (project / ".claude").symlink_to(tmp_path / "dot-claude")
    assert put_into(project, programs(["relay"], SUBJECT)[0].files[1]).state == "by hand"
    assert names(tmp_path / "dot-claude") == []


def test_a_link_to_nothing_outside_makes_no_file_there(tmp_path: Path, project: Path, file: File) -> None:
    (project / file.name).symlink_to(tmp_path / "not-there.json")
    assert put_into(project, file).state == "by hand"
    assert not (tmp_path / "not-there.json").exists()


def test_a_link_to_itself_is_said(project: Path, file: File) -> None:
    (project / file.name).symlink_to(file.name)
    outcome = put_into(project, file)
    assert outcome.state == "by hand"
    assert outcome.reason
    assert take_out_of(project, file, SUBJECT).state == "same"


def test_only_a_file_that_names_the_agent_is_a_matter_of_its_removal(project: Path, file: File) -> None:
    path = project / file.name
    for text in ("// mine\n{}", f'// "{SUBJECT}2" and "{SUBJECT}.x"\n{{}}'):
        path.write_text(text)
        assert take_out_of(project, file, SUBJECT).state == "same"
    path.write_text(f"// {SUBJECT}\n{{}}")
    assert take_out_of(project, file, SUBJECT).state == "by hand"


def test_whoever_loses_its_place_is_named(project: Path, file: File) -> None:
    put_into(project, file)
    outcome = put_into(project, programs(["relay"], "relay.agent.frontend")[0].files[0])
    assert outcome.replaced == [SUBJECT]
    assert f"replaces {SUBJECT}" in outcome.text


def test_what_is_read_only_stays(project: Path, file: File) -> None:
    path = project / file.name
    path.write_text("{}")
    path.chmod(0o444)
    outcome = put_into(project, file)
    assert (outcome.state, outcome.reason) == ("by hand", "it is read-only")
    assert path.read_text() == "{}"


@pytest.mark.parametrize("content", [b"\xff{}", b"{" + b" " * merging.MAX_BYTES + b"}", b"// hi\n{}", b"[1]"])
def test_what_is_no_configuration_stays(project: Path, file: File, content: bytes) -> None:
    path = project / file.name
    path.write_bytes(content)
    outcome = put_into(project, file)
    assert outcome.state == "by hand"
    assert outcome.reason
    assert path.read_bytes() == content
    assert names(project) == [file.name]


def test_what_is_no_file_stays(project: Path, file: File) -> None:
    (project / file.name).mkdir()
    assert put_into(project, file).reason == "it is not a regular file"
    (project / ".claude").write_text("a file")
    assert put_into(project, programs(["relay"], SUBJECT)[0].files[1]).state == "by hand"


def test_a_pipe_does_not_hold_the_command(project: Path, file: File) -> None:
    os.mkfifo(project / file.name)
    assert put_into(project, file).reason == "it is not a regular file"


def test_somebody_who_writes_meanwhile_wins(project: Path, file: File) -> None:
    path = project / file.name
    path.write_text("{}")

    def slow(text: str) -> Edited:
        path.write_text('{"theirs": true}')
        return put(file, text)

    assert change(project, file, slow).reason == "another program is changing it: try again"
    assert path.read_text() == '{"theirs": true}'

    def slow_to_empty(text: str) -> Edited:
        path.write_text('{"more": true}')
        return Edited("{}", ["all"], empty=True)

    assert change(project, file, slow_to_empty).reason == "another program is changing it: try again"
    assert path.read_text() == '{"more": true}'


def test_the_command_is_a_name_only_where_a_login_shell_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [relay] = own_command()
    assert os.path.isabs(relay)  # the tests' virtual environment is on no login shell's path
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "relay").symlink_to(relay)
    shell = tmp_path / "shell"
    shell.write_text(f'#!/bin/sh\nPATH={shlex.quote(str(bin))}:/bin:/usr/bin\necho welcome\neval "$2"\n')
    shell.chmod(0o755)
    monkeypatch.setenv("SHELL", str(shell))
    assert own_command() == ["relay"]
    (bin / "relay").unlink()
    (bin / "relay").write_text("#!/bin/sh\n")
    (bin / "relay").chmod(0o755)
    assert own_command() == [relay]
    monkeypatch.setenv("SHELL", str(tmp_path / "none"))
    assert own_command() == [relay]
