"""Help is quick and complete, shells complete, and mistakes get a line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from relay_supervisor.cli import COMMANDS
from tests.kit.cli import Relay

HEAVY = ("asyncio", "orjson", "pydantic", "relay_core", "rich")

NAMES = [name for section in COMMANDS.values() for name in section]


pytestmark = pytest.mark.bus(endpoints=["relay.agent.writer"])


def test_help_imports_nothing_heavy() -> None:
    program = f"""
import sys
sys.argv = ["relay", "--help"]
from relay_supervisor.cli import main
try:
    main()
except SystemExit as ended:
    assert ended.code == 0, ended.code
found = sorted(name for name in sys.modules if name.split(".")[0] in {HEAVY!r})
print(found, file=sys.stderr)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stderr == "[]\n"
    assert all(name in ran.stdout for name in NAMES)


def test_without_arguments_there_is_help() -> None:
    assert "Usage: relay" in Relay().real().out


def test_every_command_has_help_and_examples() -> None:
    relay = Relay()
    for name in NAMES:
        ran = relay(name, "--help")
        assert f"Usage: relay {name}" in ran.out
        assert ran.err == ""
        if "COMMAND" not in ran.out.splitlines()[0] and name != "demo":
            assert "Examples:" in ran.out


MISTAKES = {
    "a typo": (["stauts"], 2, "Did you mean 'status'"),
    "an unknown option": (["dlq", "--bogus"], 2, "relay dlq list --help"),
    "a missing argument": (["trace"], 2, "ID"),
    "a missing value": (["--socket"], 2, "'--socket' requires an argument"),
    "a missing value in a group": (["dlq", "--data-dir"], 2, "'--data-dir' requires an argument"),
    "a bad number": (["inbox", "relay.a", "--limit", "0"], 2, "--limit"),
}


@pytest.mark.parametrize(("args", "code", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_gets_a_line(args: list[str], code: int, said: str) -> None:
    ran = Relay()(*args, code=code)
    assert ran.out == ""
    assert said in ran.err
    assert ran.err.startswith("relay: ")
    assert ran.err.count("\n") == 1


def test_a_traceback_is_for_those_who_ask() -> None:
    process = Relay().start("trace", "no-id", environment={"RELAY_DEBUG": "1", "RELAY_SOCKET": "/nowhere"})
    _, err = process.communicate(timeout=60)
    assert "Traceback" in err


def test_the_version_is_told() -> None:
    from relay_core import __version__

    assert Relay()("--version").out == f"relay {__version__}\n"


def complete(relay: Relay, words: str) -> list[str]:
    """Return what bash would offer."""
    environment = {
        "_RELAY_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    return relay.real(environment=environment).out.split()


def test_the_shell_completes_commands_and_subjects(relay: Relay) -> None:
    assert complete(relay, "relay sta") == ["status"]
    assert complete(relay, "relay dlq re") == ["replay", "resume"]
    assert complete(relay, "relay inbox relay.") == ["relay.agent.writer"]
    assert complete(Relay(RELAY_SOCKET="/nowhere/s"), "relay inbox relay.") == []


def test_the_completion_script_works_in_bash(relay: Relay) -> None:
    environment = {"_RELAY_COMPLETE": "source_bash"}
    script = relay.real(environment=environment).out
    program = f"""
{script}
COMP_WORDS=(relay stat) COMP_CWORD=1
_relay_completion relay
echo "${{COMPREPLY[@]}}"
"""
    installed = Path(sys.executable).parent  # where pip has put the command
    path = {**relay.environment, "PATH": f"{installed}:{os.environ['PATH']}"}
    ran = subprocess.run(["bash", "-c", program], env=path, capture_output=True, text=True, check=False, timeout=60)
    assert ran.stdout.strip() == "status", script


@pytest.mark.parametrize(
    ("command", "output", "code", "said"),
    [
        ("--help", ">&-", 0, ""),
        ("hook --as relay.agent.writer", ">&- 2>&-", 0, ""),
        ("--help", ">/dev/full", 1, "relay: No space left on device\n"),
    ],
    ids=["closed", "closed, for an agent", "full"],
)
def test_an_output_that_takes_nothing_is_no_crash(command: str, output: str, code: int, said: str) -> None:
    relay = f"{sys.executable} -m relay_supervisor.cli {command} {output}"
    environment = {"HOME": "/nonexistent", "PATH": os.environ["PATH"]}
    ran = subprocess.run(["sh", "-c", relay], capture_output=True, text=True, env=environment, timeout=60)
    assert (ran.returncode, ran.stderr) == (code, said)
