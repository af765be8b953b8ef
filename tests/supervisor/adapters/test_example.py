"""The example of a plugin: a complete adapter that keeps the rules, and that a supervisor runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relay_core.testing import check_adapter
from relay_supervisor.adapters.loading import load_file
from tests.kit.supervisor import a_client, a_supervisor
from tests.kit.waiting import until

EXAMPLE = Path(__file__).parents[3] / "examples" / "adapters" / "folder.py"
AGENT = "relay.agent.helper"


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """Return a copy that only its owner can write to: in a checkout, the umask decides that."""
    copy = tmp_path / "folder.py"
    copy.write_bytes(EXAMPLE.read_bytes())
    copy.chmod(0o600)
    return copy


def test_it_is_short() -> None:
    code = EXAMPLE.read_text().split('"""', 2)[2]
    assert len([line for line in code.splitlines() if line.strip() and "import" not in line]) <= 40


async def test_it_keeps_the_rules(example: Path, tmp_path: Path) -> None:
    make = load_file(example)
    model = make.config_model  # type: ignore[attr-defined]
    good, bad = model(folder=tmp_path, to=AGENT), model(folder=tmp_path / "gone", to=AGENT)
    await check_adapter(lambda: make("desk", good), subject="relay.folder.desk", make_failing=lambda: make("desk", bad))


async def test_a_supervisor_runs_it_both_ways(data_dir: Path, example: Path, tmp_path: Path) -> None:
    desk = tmp_path / "desk"
    desk.mkdir()
    config = {"folder": str(desk), "to": AGENT, "look_every_secs": 0.01}
    entry = {"id": "desk", "path": str(example), "config": config}
    data_dir.joinpath("adapters.json").write_text(json.dumps({"adapters": [entry]}))
    async with a_supervisor(data_dir) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint(AGENT)
        draft = desk / "question.draft"
        draft.write_text("what time is it?")
        draft.rename(desk / "question.txt")
        await until(lambda: not (desk / "question.txt").exists())
        (asked,) = await client.claim(AGENT)
        assert (asked.sender, asked.payload) == ("relay.folder.desk", {"content": "what time is it?"})
        answer = await client.publish(asked.sender, {"content": "half past four"}, sender=AGENT)
        written = (desk / f"{answer.message_id}.out").read_text()
        assert written == "relay.agent.helper writes:\n\nhalf past four\n"
