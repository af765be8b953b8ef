"""Where drafts come from: templates that are built in, the operator's own, and what was published before.

1. The operator's templates are ``*.json`` files in ``~/.config/relay/templates``: an object with any of ``subject``,
   ``from``, ``replyTo``, ``budget`` (``maxHops``, ``calls``, ``ttl``) and ``payload``. What cannot be read is said.
2. The history is ``~/.local/state/relay/publish-history.jsonl``: the last `KEPT` publishes, newest last, readable by
   the operator alone and replaced as a whole. Lines that are broken are passed over; nothing about it ever keeps a
   message from being sent.
3. Whatever a file says is shown safe: a body comes back as `pretty_json` of its payload, names cleaned.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from relay_core.payload import Performative
from relay_tui.own_places import config_dir, state_dir
from relay_tui.safe import clean, pretty_json
from relay_tui.views.publish.draft import Draft

KEPT = 50
_LARGEST = 64 * 1024
"""Bytes of a template, or of a body that the history keeps."""
_MOST = KEPT * (_LARGEST + 4096)


class Shelved(NamedTuple):
    """A draft that can be taken up, and what it is called in the list."""

    title: str
    note: str
    draft: Draft


BUILT_IN = (
    Shelved("a text message", "what agents and people understand alike", Draft(body=pretty_json({"content": "hello"}))),
    Shelved(
        "a request that wants an answer",
        "the answer goes to reply-to",
        Draft(
            reply_to="relay.human.operator",
            body=pretty_json({"content": "what is your state?", "performative": Performative.REQUEST.value}),
        ),
    ),
    Shelved(
        "a ping with little budget", "one hop, gone in 30 s", Draft(max_hops="1", ttl="30s", body=pretty_json("ping"))
    ),
    Shelved(
        "a message of a group chat",
        "with names, and how the answer will be shown",
        Draft(
            body=pretty_json(
                {
                    "content": "hello all",
                    "senderName": "operator",
                    "channelName": "general",
                    "channelType": "group",
                    "responseContext": {"platform": "relay", "maxLength": 2000},
                }
            )
        ),
    ),
)


def templates_path() -> Path:
    """Return where the operator's templates are."""
    return config_dir() / "templates"


def history_path() -> Path:
    """Return where the history is."""
    return state_dir() / "publish-history.jsonl"


def read_templates(directory: Path) -> tuple[list[Shelved], list[str]]:
    """Return the operator's templates by name, then those that are built in, and what cannot be read."""
    found: list[Shelved] = []
    problems: list[str] = []
    try:
        paths = sorted(directory.glob("*.json"))[:200]
    except OSError as error:
        paths, problems = [], [f"{directory}: {error}"]
    for path in paths:
        try:
            if path.stat().st_size > _LARGEST:
                raise ValueError(f"longer than {_LARGEST} bytes")
            found.append(Shelved(clean(path.stem), "yours", _draft(json.loads(path.read_bytes()))))
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"{clean(path.name)}: {clean(str(error))}")
    return [*found, *BUILT_IN], problems


def read_history(path: Path) -> list[Shelved]:
    """Return what was published before, newest first."""
    return [one for one in map(_shelved, reversed(list(_records(path)))) if one is not None]


def remember(path: Path, draft: Draft, payload: Any, *, at: str, outcome: str) -> None:
    """Add a publish to the history, which never holds more than `KEPT`.

    Raises:
        OSError: if it cannot be written.
    """
    made = {
        "at": at,
        "outcome": outcome,
        "subject": draft.subject,
        "from": draft.sender,
        "replyTo": draft.reply_to,
        "budget": {"maxHops": draft.max_hops, "calls": draft.calls, "ttl": draft.ttl},
    }
    if len(draft.body) <= _LARGEST:
        made["payload"] = payload
    records = [*_records(path), made][-KEPT:]
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent)  # private from the start, and whole when it is in place
    try:
        with os.fdopen(handle, "w") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            lines = file.read(_MOST).splitlines()
    except OSError:
        return
    for written in lines[-KEPT:]:
        try:
            record = json.loads(written)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def _shelved(record: dict[str, Any]) -> Shelved | None:
    try:
        return Shelved(
            _text(record.get("subject")), _text(f"{record.get('at')}  {record.get('outcome')}"), _draft(record)
        )
    except (ValueError, RecursionError):
        return None


def _draft(record: Any) -> Draft:
    if not isinstance(record, dict):
        raise ValueError("must be a JSON object")
    budget = record.get("budget")
    limits = budget if isinstance(budget, dict) else {}
    return Draft(
        subject=_text(record.get("subject")),
        sender=_text(record.get("from")),
        reply_to=_text(record.get("replyTo")),
        max_hops=_text(limits.get("maxHops")),
        calls=_text(limits.get("calls")),
        ttl=_text(limits.get("ttl")),
        body=pretty_json(record["payload"]) if "payload" in record else "",
    )


def _text(value: Any) -> str:
    return "" if value is None else clean(str(value), 300)
