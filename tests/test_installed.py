"""The wheel works where there is no checkout, no extra and nothing in the home directory."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay_core import __version__
from tests.kit.installed import PACKAGES, Installed, build, installed
from tests.kit.terminal import Terminal
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.slow

SUBJECT = "relay.agent.backend"

IMPORT_ALL = f"""
import pkgutil, sys
from importlib import import_module
for package in {PACKAGES!r}:
    for module in pkgutil.walk_packages(import_module(package).__path__, package + "."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
            print(sys.modules[module.name].__file__)
"""

REPORT = """{
    "version": 1,
    "date": "2026-01-31", "until": "2026-02-01T00:00:00Z", "complete": true, "madeAt": "2026-02-01T02:15:00Z",
    "tookSecs": 1, "ingestedAt": 0, "events": 0, "attentionCount": 0, "attention": [], "headline": [], "plots": [],
    "tables": {}, "data": {"events": 0, "segments": 0, "badLines": {}, "unknownKinds": {}}
}"""
MAKE_PAGE = f"""
from relay_core.protocol.report import NightlyReport
from spark.report.page import page
print(page(NightlyReport.model_validate_json({REPORT!r})))
"""


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    with installed(build(tmp_path_factory.mktemp("dist")).wheel) as relay:
        yield relay


@pytest.fixture(scope="module")
def supervisor(relay: Installed) -> Iterator[None]:
    log = relay.directory / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(relay.command("relay-supervisor", "run"), stdout=file, stderr=file)
    try:
        wait_until(lambda: (relay.home / ".dork/relay/relay.sock").exists() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.kill()
        process.wait()


def test_every_module_comes_from_the_wheel_and_can_be_imported(relay: Installed) -> None:
    extras = sysconfig.get_path("purelib")  # where those of the tests are; the checkout is not there
    files = relay("python", "-c", IMPORT_ALL, PYTHONPATH=extras).splitlines()
    assert len(files) > 200
    assert [file for file in files if not Path(file).is_relative_to(relay.site)] == []


@pytest.mark.parametrize("type_", ["telegram", "webhook"])
def test_an_adapter_that_needs_no_extra_is_there(relay: Installed, type_: str) -> None:
    relay("python", "-c", f"from relay_supervisor.adapters.loading import find_type; find_type({type_!r})")


@pytest.mark.parametrize("command", ["relay", "relay-supervisor", "relay-tui", "python -m spark"])
def test_a_command_explains_itself(relay: Installed, command: str) -> None:
    assert f"usage: {command}" in relay(*command.split(), "--help").lower()


def test_the_version_is_told(relay: Installed) -> None:
    assert relay("relay", "--version") == f"relay {__version__}\n"


@pytest.mark.usefixtures("supervisor")
def test_a_message_is_published_and_seen_by_everyone(relay: Installed) -> None:
    relay("relay", "endpoints", "add", SUBJECT)
    relay("relay", "publish", SUBJECT, '{"content": "the tests are green"}', "--from", "relay.agent.ci")
    assert "the tests are green" in relay("relay", "inbox", SUBJECT)
    assert "survives power loss" in relay("relay", "status")
    state = json.loads(relay("relay-tui", "--once", "--json"))
    assert [mailbox["depth"] for mailbox in state["mailboxes"].values() if mailbox["subject"] == SUBJECT] == [1]


@pytest.mark.usefixtures("supervisor")
@pytest.mark.parametrize("options", [[], ["--demo"]], ids=["here", "demo"])
async def test_the_dashboard_opens(relay: Installed, options: list[str]) -> None:
    async with Terminal(relay.command("relay-tui", *options)) as terminal:
        await terminal.until("● live")
        terminal.send("q")
        assert await terminal.exit_code() == 0


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="there are no user services here")
def test_the_service_starts_the_installed_supervisor(relay: Installed) -> None:
    said = relay("relay-supervisor", "install-service")
    places = [Path(relay.environment["XDG_CONFIG_HOME"]), relay.home / "Library"]
    (file,) = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert str(file) in said
    assert str(relay.python) in file.read_text()


def test_the_reports_page_has_its_style(relay: Installed) -> None:
    assert "font-family" in relay("python", "-c", MAKE_PAGE)


def test_without_spark_the_report_says_how_to_get_it(relay: Installed) -> None:
    assert "relay-bus[spark]" in relay("python", "-m", "spark", "nightly", code=1)
