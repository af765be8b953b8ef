"""Configuration: the seeds' defaults, merged per field, and mistakes that are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from relay_core.config import (
    BackpressureConfig,
    BudgetConfig,
    CircuitBreakerConfig,
    ConfigSection,
    NightlyConfig,
    RateLimitConfig,
    RelayConfig,
    ReliabilityConfig,
    load_config,
    merge_config,
)
from relay_core.errors import ConfigError
from relay_core.storage.trusted_file import read_trusted
from tools.docs.docstrings import field_texts


@pytest.mark.parametrize(
    ("section", "defaults"),
    [
        pytest.param(
            RateLimitConfig(),
            {"enabled": True, "windowSecs": 60, "maxPerWindow": 100, "perSenderOverrides": {}},
            id="rate-limit",
        ),
        pytest.param(
            CircuitBreakerConfig(),
            {
                "enabled": True,
                "failureThreshold": 5,
                "cooldownMs": 30_000,
                "halfOpenProbeCount": 1,
                "successToClose": 2,
            },
            id="circuit-breaker",
        ),
        pytest.param(
            BackpressureConfig(),
            {"enabled": True, "maxMailboxSize": 1000, "pressureWarningAt": 0.8},
            id="backpressure",
        ),
        pytest.param(BudgetConfig(), {"maxHops": 5, "ttlMs": 3_600_000, "callBudget": 10}, id="budget"),
    ],
)
def test_defaults_are_the_seeds(section: ConfigSection, defaults: dict[str, Any]) -> None:
    assert section.model_dump(by_alias=True) == defaults


def test_the_default_durability_survives_power_loss() -> None:
    assert RelayConfig().durability == "fsync"


def every_section(section: type[ConfigSection]) -> list[type[ConfigSection]]:
    below = [field.annotation for field in section.model_fields.values()]
    found = [kind for kind in below if isinstance(kind, type) and issubclass(kind, ConfigSection)]
    return list(dict.fromkeys([section, *(deeper for kind in found for deeper in every_section(kind))]))


@pytest.mark.parametrize("section", every_section(RelayConfig), ids=lambda section: section.__name__)
def test_every_key_has_a_default_and_every_setting_a_description(section: type[ConfigSection]) -> None:
    section()
    for name, field in section.model_fields.items():
        is_section = isinstance(field.annotation, type) and issubclass(field.annotation, ConfigSection)
        assert is_section or field_texts(section).get(name), f"{section.__name__}.{name} says nothing about itself"


def test_python_names_and_json_names_mean_the_same() -> None:
    assert RateLimitConfig(max_per_window=7) == RateLimitConfig.model_validate({"maxPerWindow": 7})


def test_a_merge_changes_only_the_fields_it_names() -> None:
    base = RelayConfig(
        durability="os",
        reliability=ReliabilityConfig(
            rate_limit=RateLimitConfig(max_per_window=7, window_secs=9),
            backpressure=BackpressureConfig(max_mailbox_size=3),
        ),
    )
    merged = merge_config(base, {"reliability": {"rateLimit": {"windowSecs": 1}}})
    assert merged.reliability.rate_limit == RateLimitConfig(max_per_window=7, window_secs=1)
    assert merged.reliability.backpressure == BackpressureConfig(max_mailbox_size=3)
    assert merged.durability == "os"
    assert base.reliability.rate_limit.window_secs == 9


@pytest.mark.parametrize(
    ("overlay", "key", "says"),
    [
        pytest.param({"durabilty": "os"}, "", "did you mean 'durability'", id="misspelt-key"),
        pytest.param({"budget": {"maxHop": 1}}, "budget", "did you mean 'maxHops'", id="misspelt-inner-key"),
        pytest.param({"budget": {"zzz": 1}}, "budget", "known keys: maxHops, ttlMs", id="unlike-any-key"),
        pytest.param({"budget": {"maxHops": 0}}, "budget.maxHops", "(got 0)", id="out-of-range"),
        pytest.param({"budget": {"maxHops": "many"}}, "budget.maxHops", "(got 'many')", id="wrong-type"),
        pytest.param({"budget": None}, "budget", "(got None)", id="section-is-null"),
        pytest.param({"durability": "never"}, "durability", "'fsync' or 'os'", id="unknown-choice"),
        pytest.param(
            {"reliability": {"backpressure": {"pressureWarningAt": 1.1}}},
            "reliability.backpressure.pressureWarningAt",
            "(got 1.1)",
            id="ratio-above-one",
        ),
        pytest.param(
            {"reliability": {"rateLimit": {"perSenderOverrides": {"relay.a": 0}}}},
            "reliability.rateLimit.perSenderOverrides.relay.a",
            "(got 0)",
            id="override-of-zero",
        ),
        pytest.param(
            {"jobs": {"metrics": {"master": "local[2]", "remote": "sc://host"}}},
            "jobs.metrics",
            "master and remote exclude each other",
            id="two-sparks",
        ),
        pytest.param({"jobs": {"metrics": {"keepDays": 0}}}, "jobs.metrics.keepDays", "(got 0)", id="kept-for-no-day"),
        pytest.param(
            {"jobs": {"metrics": {"output": "reports"}}}, "jobs.metrics.output", "(got 'reports')", id="relative-path"
        ),
        pytest.param({"jobs": {"metrics": {"conf": {"a": 1}}}}, "jobs.metrics.conf.a", "(got 1)", id="conf-not-text"),
    ],
)
def test_a_mistake_is_named(overlay: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        merge_config(RelayConfig(), overlay, path="/etc/config.json")
    assert caught.value.key == key
    assert caught.value.path == "/etc/config.json"
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("output", "directory"),
    [
        (None, "/data/reports"),
        ("/srv/a b", "/srv/a b"),
        ("/srv/a:b", "/srv/a:b"),
        ("file:///srv/a%20b", "/srv/a%20b"),
        ("file:/srv/a", "/srv/a"),
        ("FILE://localhost/srv/a", "/srv/a"),
        ("s3a://bucket/a", None),
        ("hdfs://host:9000/a", None),
    ],
)
def test_the_reports_are_on_this_machine_or_elsewhere(output: str | None, directory: str | None) -> None:
    found = NightlyConfig(output=output).reports_dir(Path("/data/reports"))
    assert found == (Path(directory) if directory is not None else None)


def test_a_section_refuses_unknown_keys_in_python_too() -> None:
    with pytest.raises(ValidationError, match="did you mean 'maxHops'"):
        BudgetConfig.model_validate({"max_hop": 1})


def test_a_section_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        BudgetConfig().max_hops = 2  # type: ignore[misc]


def test_a_missing_file_changes_nothing(tmp_path: Path) -> None:
    base = RelayConfig(durability="os")
    assert load_config(tmp_path / "config.json", base, read_trusted) is base


def test_a_file_wins_over_the_constructor(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"durability": "os", "budget": {"callBudget": 3}}')
    loaded = load_config(path, RelayConfig(durability="fsync", budget=BudgetConfig(max_hops=2)), read_trusted)
    assert loaded.durability == "os"
    assert loaded.budget == BudgetConfig(max_hops=2, call_budget=3)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(b"{", "is not JSON", id="truncated"),
        pytest.param(b"", "is not JSON", id="empty"),
        pytest.param(b"\xff", "is not JSON", id="not-utf8"),
        pytest.param(b"[]", "must hold one JSON object", id="list"),
        pytest.param(b'{"budget": {"maxHops": 0}}', "budget.maxHops", id="bad-value"),
    ],
)
def test_a_bad_file_is_named(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=says) as caught:
        load_config(path, RelayConfig(), read_trusted)
    assert caught.value.path == str(path)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(tmp_path, RelayConfig(), read_trusted)
