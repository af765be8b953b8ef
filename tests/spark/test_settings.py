"""A run's places: flags before config.json before the data directory, and the same names as the bus has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relay_core.config import NightlyConfig, RateLimitConfig
from spark.settings import Settings, SettingsError, read_settings
from spark.tables.senders import Limits


def configured(data_dir: Path, **sections: Any) -> None:
    (data_dir / "config.json").write_text(json.dumps(sections))


def test_without_a_config_everything_is_in_the_data_directory(data_dir: Path) -> None:
    assert read_settings(data_dir) == Settings(events=f"{data_dir}/events", output=f"{data_dir}/reports")


def test_the_environment_names_the_data_directory(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_DATA_DIR", str(data_dir))
    assert read_settings(None).events == f"{data_dir}/events"


def test_config_json_names_places_and_spark(data_dir: Path) -> None:
    metrics = {
        "at": "03:00",
        "master": "spark://h:7077",
        "events": "s3a://a/events",
        "output": "s3a://a/reports",
        "conf": {"spark.executor.memory": "2g"},
        "keepDays": 7,
    }
    configured(data_dir, jobs={"metrics": metrics}, reliability={"rateLimit": {"maxPerWindow": 5, "windowSecs": 10}})
    assert read_settings(data_dir) == Settings(
        events="s3a://a/events",
        output="s3a://a/reports",
        master="spark://h:7077",
        conf={"spark.executor.memory": "2g"},
        keep_days=7,
        limits=Limits(max_per_window=5, window_secs=10),
    )


def test_flags_come_first_and_one_kind_of_spark_replaces_the_other(data_dir: Path) -> None:
    configured(data_dir, jobs={"metrics": {"master": "spark://h:7077", "output": "/a", "conf": {"a": "1", "b": "1"}}})
    settings = read_settings(data_dir, remote="sc://h", output="/b", conf={"b": "2"})
    assert (settings.master, settings.remote, settings.output) == (None, "sc://h", "/b")
    assert settings.conf == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "cannot be read"),
        ('{"jobs": {"metrics": {"keepDays": 0}}}', "keepDays"),
        ('{"jobs": ["metrics"]}', "must be an object"),
        ('{"jobs": {"metrics": {"master": "local", "remote": "sc://h"}}}', "not both"),
    ],
    ids=["no JSON", "a wrong value", "no object", "two Sparks"],
)
def test_a_config_that_is_no_good_stops_the_run_and_says_why(data_dir: Path, text: str, problem: str) -> None:
    (data_dir / "config.json").write_text(text)
    with pytest.raises(SettingsError, match=problem):
        read_settings(data_dir)


def test_names_and_defaults_are_those_of_the_bus() -> None:
    settings = Settings(events="", output="").model_dump(mode="json", by_alias=True)
    places = {settings.pop(name) for name in ("events", "output")}
    assert places == {""}
    assert {"events", "output"} <= NightlyConfig.model_fields.keys()
    for ours, theirs in ((settings.pop("limits"), RateLimitConfig()), (settings, NightlyConfig())):
        known = theirs.model_dump(mode="json", by_alias=True)
        assert ours == {name: known[name] for name in ours}
