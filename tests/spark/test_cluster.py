"""The nightly job on a cluster whose workers have nothing of ours, and no Java but the wheel's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from benchmarks.rig.spark_events import lines
from tests.spark.cluster import SMALL, local_cluster
from tests.spark.machine import complaints, without_java

DAY = date(2026, 3, 14)
JAVA_HOME = """
from pathlib import Path
from spark.engine.java import find_java
print(find_java().home_for_spark(Path("/none")))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_same_job_runs_on_a_cluster(tmp_path: Path) -> None:
    environment = without_java(tmp_path)
    ask = [sys.executable, "-c", JAVA_HOME]
    home = subprocess.run(ask, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    environment |= {"JAVA_HOME": home, "XDG_CACHE_HOME": os.devnull}
    data_dir = tmp_path / "data"
    segment = data_dir / "events" / f"date={DAY}" / "00-1-1.jsonl"
    segment.parent.mkdir(parents=True)
    segment.write_text("".join(f"{line}\n" for line in lines(300, DAY)))
    (data_dir / "config.json").write_text(json.dumps({"jobs": {"metrics": {"keepDays": 100_000, "conf": SMALL}}}))
    with local_cluster(tmp_path, environment) as master:
        command = ["nightly", "--data-dir", str(data_dir), "--date", str(DAY), "--master", master]
        child = subprocess.run(
            [sys.executable, "-m", "spark", *command], env=environment, capture_output=True, text=True, timeout=500
        )
    assert (complaints(child.stderr), child.returncode) == ([], 0)
    result = json.loads(child.stdout.splitlines()[-1])["result"]
    assert (result["reports"], result["events"]) == ([str(DAY)], 300)
    report = json.loads((data_dir / "reports" / f"date={DAY}" / "report.json").read_bytes())
    assert next(number["value"] for number in report["headline"] if number["name"] == "messages") > 0
    assert list((tmp_path / "work").glob("app-*")), "no executor of the worker has run"
