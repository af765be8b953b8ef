"""docs/configuration.md says what can be configured, all of it, and what it says is so."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from relay_core import InvalidPayload, RelayConfig, RelayCore
from relay_core.config import ConfigSection, ScheduleConfig, load_config
from relay_core.rules.access import AccessRule
from relay_core.storage.access_file import AccessControl
from relay_core.storage.trusted_file import read_trusted
from tests.kit import ROOT
from tests.kit.bus import A, B
from tools.docs.configuration import AT_ONCE, COMMAND, EXAMPLE, IN_FORCE, RESTART, config_markdown, keys

PAGE = (ROOT / "docs" / "configuration.md").read_text()
KEYS = list(keys(RelayConfig()))


def test_the_page_is_what_the_models_say() -> None:
    assert config_markdown() == PAGE, f"docs/configuration.md is old: run {COMMAND}"


async def test_the_command_prints_the_page() -> None:
    command, _, _ = COMMAND.partition(" > ")
    program = await asyncio.create_subprocess_exec(
        sys.executable, *shlex.split(command)[1:], stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    out, _ = await program.communicate()
    assert program.returncode == 0
    assert out.decode() == PAGE


def leaves(value: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the keys of a dumped configuration, found in another way than the page finds them."""
    for key, part in value.items():
        if isinstance(part, dict) and part:
            yield from leaves(part, f"{prefix}{key}.")
        else:
            yield prefix + key


def test_every_key_is_there_once_and_has_a_sentence() -> None:
    items = [" ".join(item.split()) for item in re.findall(r"^- `.*(?:\n  .*)*", PAGE, re.MULTILINE)]
    lines = [item for item in items if ", default " in item or "(default " in item]
    names = [name for line in lines for name in re.findall(r"`([\w.]+)`", re.split(r"`\)?: ", line)[0] + "`")]
    known = list(leaves(RelayConfig().model_dump(by_alias=True)))
    assert sorted(name for name in names if name in known) == sorted(known)
    for line in lines:
        assert re.search(r"\. [A-Z].*\.$", line), f"{line} is not explained below its line in config.py"


def sections(section: ConfigSection) -> Iterator[ConfigSection]:
    yield section
    for name in type(section).model_fields:
        if isinstance(part := getattr(section, name), ConfigSection):
            yield from sections(part)


def test_every_section_says_what_it_is() -> None:
    for section in sections(RelayConfig()):
        assert "__doc__" in vars(type(section))
        assert (inspect.getdoc(section) or "").endswith(".")


@pytest.mark.parametrize("model", [AccessRule, ScheduleConfig])
def test_every_key_of_a_rule_or_schedule_is_explained(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        assert re.search(rf"^- `{field.alias or name}`: .*[.] [A-Z](?:.|\n  )*\.$", PAGE, re.MULTILINE)


def test_it_is_said_of_every_key_when_a_change_takes_effect() -> None:
    names = {key.name for key in KEYS}
    for said in IN_FORCE:
        assert any(name == said or name.startswith(f"{said}.") for name in names), said
    assert all(key.in_force in IN_FORCE.values() for key in KEYS)
    # Each word for it is explained above, or explains itself.
    for word in {*IN_FORCE.values()} - {"lower: at once; higher: restart"}:
        assert f"- **{word}**: " in PAGE


@pytest.mark.parametrize(
    "line",
    [
        '- `durability`: `"fsync"` or `"os"`, default `"fsync"`, **restart**. ',
        "- `reliability.rateLimit.perSenderOverrides`: object of integer, 1 or more, default `{}`. ",
        "- `reliability.backpressure.pressureWarningAt`: number, 0 to 1, default `0.8`. ",
        "- `limits.maxPayloadBytes`: integer, 1 to 67108864, default `1048576` (1 MiB), **lower: at once",
        "- `retention.unreadMs`: integer, 1 or more, default `604800000` (7 days). ",
        "- `jobs.expire.everySecs` (default `60` (1 minute)), ",
        '- `jobs.metrics.at`: string, `HH:MM`, from `00:00` to `23:59`, default `"02:15"`. ',
        "- `jobs.metrics.command`: array of string, default none. ",
        "- `jobs.metrics.output`: string, an absolute path or a URI, default none. ",
        "- `auth.requireTokens`: boolean, default `false`, **new connections**. ",
    ],
)
def test_types_defaults_and_limits_are_said_in_words(line: str) -> None:
    assert line in PAGE


def test_the_example_can_be_used(tmp_path: Path) -> None:
    config, rules = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert config == EXAMPLE
    (tmp_path / "config.json").write_text(config)
    loaded = load_config(tmp_path / "config.json", RelayConfig(), read_trusted)
    changed = loaded.model_dump(mode="json", by_alias=True)
    assert set(leaves(json.loads(config))) <= {*leaves(changed)}
    assert loaded.reliability.rate_limit.per_sender_overrides == {"relay.agent.ci": 1000}
    (tmp_path / "access-rules.json").write_text(rules)
    access = AccessControl(tmp_path / "access-rules.json")
    access.load()
    assert access.broken is None
    assert access.check("relay.agent.intern", "relay.agent.backend").allowed
    assert not access.check("relay.agent.intern", "relay.agent.other").allowed


def test_every_variable_that_the_code_reads_is_in_the_table() -> None:
    packages = ("relay_core", "relay_supervisor", "relay_tui", "spark")
    sources = [path.read_text() for package in packages for path in (ROOT / package).rglob("*.py")]
    read = {name for text in sources for name in re.findall(r"\b(?:RELAY|XDG)_[A-Z_]+[A-Z]\b", text)}
    assert {"RELAY_DATA_DIR", "XDG_RUNTIME_DIR"} <= read
    assert {name for name in read if f"`{name}`" not in PAGE} == set()


@pytest.mark.parametrize("page", ["configuration.md", "operations.md", "security.md"])
def test_every_key_that_a_page_names_is_one(page: str) -> None:
    names = {key.name for key in KEYS}
    above = {".".join(name.split(".")[:depth]) for name in names for depth in range(1, len(name.split(".")))}
    first = "|".join(RelayConfig.model_fields)
    text = (ROOT / "docs" / page).read_text()
    for name in re.findall(rf"`((?:{first})\.(?!py`)[A-Za-z.]+(?:\*)?)`", text):
        assert name in names | above or name.removesuffix(".*") in above, name


async def test_what_is_said_to_hold_at_once_does_and_what_needs_a_restart_waits_for_it(tmp_path: Path) -> None:
    said = {key.name: key.in_force for key in KEYS}
    async with RelayCore(tmp_path / "data") as relay:
        await relay.register_endpoint(A)
        bus = relay.bus
        assert (await relay.publish(A, "x" * 50, sender=B)).delivered_to == 1
        changes: dict[str, Any] = {
            "durability": "os",
            "limits": {"maxPayloadBytes": 40, "dedupeEntries": 0, "maxBroadcastBytes": 2000},
            "budget": {"maxHops": 2},
            "reliability": {"rateLimit": {"maxPerWindow": 3}, "backpressure": {"maxMailboxSize": 2}},
        }
        (tmp_path / "data" / "config.json").write_text(json.dumps(changes))
        bus.reload()
        with pytest.raises(InvalidPayload):
            await relay.publish(A, "x" * 50, sender=B)
        assert said["limits.maxPayloadBytes"].startswith("lower: at once")
        await relay.register_endpoint(B)
        with pytest.raises(InvalidPayload, match="maxBroadcastBytes"):
            await relay.publish("relay.agent.*", 1, sender="relay.agent.d")
        assert said["limits.maxBroadcastBytes"] == AT_ONCE
        last = await relay.publish(A, "2", sender=B)
        assert (await relay.inbox(A))[-1].budget.max_hops == 2
        assert said["budget.maxHops"] == AT_ONCE
        assert last.delivered_to == 1
        full = await relay.publish(A, "3", sender=B)
        assert [rejection.reason for rejection in full.rejected or ()] == ["backpressure"]
        assert said["reliability.backpressure.maxMailboxSize"] == AT_ONCE
        over = await relay.publish(A, "4", sender=B)
        assert [rejection.reason for rejection in over.rejected or ()] == ["rate_limited"]
        assert said["reliability.rateLimit.maxPerWindow"] == AT_ONCE
        assert (bus.config.durability, bus.durability) == ("os", "fsync")
        assert said["durability"] == RESTART
        first = await relay.publish("relay.agent.nobody", "5", sender="relay.agent.c", dedupe_id="same")
        again = await relay.publish("relay.agent.nobody", "5", sender="relay.agent.c", dedupe_id="same")
        assert first.message_id == again.message_id  # 0 remembered outcomes come with the restart
        assert said["limits.dedupeEntries"] == RESTART
    async with RelayCore(tmp_path / "data") as relay:
        assert relay.bus.durability == "os"
