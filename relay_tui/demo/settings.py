"""The configuration of the demo: low limits, one access rule, five adapters.

Only the standard library is imported here: the runner writes these files before anything else can start.
"""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path
from typing import Any

FULL = 40
"""Waiting messages at which a mailbox is full."""
HANDLER_TIMEOUT_SECS = 2.5

CONFIG: dict[str, Any] = {
    "durability": "os",  # fsync is of no use in a temporary directory
    "reliability": {
        "rateLimit": {
            "windowSecs": 15,
            "maxPerWindow": 60,
            "perSenderOverrides": {"relay.agent.crawler": 20, "relay.agent.ci": 200},
        },
        "circuitBreaker": {"failureThreshold": 5, "cooldownMs": 6000},
        "backpressure": {"maxMailboxSize": FULL, "pressureWarningAt": 0.6},
    },
    "dispatch": {"handlerTimeoutMs": int(HANDLER_TIMEOUT_SECS * 1000)},
    # The demo may run for days: short retention keeps the disk from filling up.
    "retention": {"traceMs": 15 * 60_000, "deadLetterMs": 60 * 60_000, "eventDays": 1},
    "events": {"maxSegmentBytes": 4 * 1024 * 1024},
    "limits": {"dedupeEntries": 2000},
    "logs": {"level": "warning"},
    "jobs": {
        "expire": {"everySecs": 20},
        "purge": {"everySecs": 60},
        "retention": {"everySecs": 120},
        "index": {"everySecs": 300},
        "metrics": {"enabled": False},
    },
}

RULES = [{"from": "relay.guest.>", "to": "relay.agent.deploys", "action": "deny", "priority": 10}]


def write_settings(directory: Path, data_dir: Path, hook_port: int) -> None:
    """Write the files that the supervisor reads at startup."""
    data_dir.mkdir(mode=0o700)
    journal = directory / "journal.txt"
    secret = data_dir / "webhook.secret"
    secret.touch(mode=0o600)
    secret.write_text(f"demo-{secrets.token_hex(16)}")
    # A copy: the supervisor rejects a plugin that other users can write to, and an installed one may be.
    plugin = data_dir / "journal.py"
    shutil.copyfile(Path(__file__).with_name("journal.py"), plugin)
    plugin.chmod(0o600)
    _write(data_dir / "config.json", CONFIG)
    _write(data_dir / "access-rules.json", RULES)
    _write(data_dir / "adapters.json", {"adapters": _adapters(hook_port, journal)})


def _adapters(port: int, journal: Path) -> list[dict[str, Any]]:
    return [
        {"id": "status-page", "type": "webhook", "config": {"outbound": _hook(port, "status")}},
        {"id": "pager", "type": "webhook", "config": {"outbound": _hook(port, "pager")}},
        {"id": "journal", "path": "journal.py", "config": {"file": str(journal)}},
        {"id": "old-chat", "type": "webhook", "enabled": False, "config": {"outbound": _hook(port, "chat")}},
        {  # a common mistake: http must be allowed
            "id": "crm",
            "type": "webhook",
            "config": {"outbound": {**_hook(port, "crm"), "allowHttp": False}},
        },
    ]


def _hook(port: int, name: str) -> dict[str, Any]:
    return {
        "url": f"http://127.0.0.1:{port}/{name}",
        "patterns": [f"relay.hook.{name}"],
        "secret": "file:webhook.secret",
        "allowHttp": True,
        "allowHosts": ["127.0.0.1"],
        "timeoutSecs": 2,
    }


def _write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n")
