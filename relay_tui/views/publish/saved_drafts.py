"""Saved drafts: built-in templates, the operator's templates, and the history of published messages.

1. The operator's templates are ``*.json`` files in ``~/.config/relay/templates``: an object with any of ``subject``,
   ``from``, ``replyTo``, ``budget`` (``maxHops``, ``calls``, ``ttl``) and ``payload``. Unreadable files are reported.
2. The history is ``~/.local/state/relay/publish-history.jsonl``: the last `KEPT` messages, newest last, readable by
   the operator only and replaced atomically. Broken lines are skipped; no problem with the file prevents a publish.
3. Texts from files are made safe: a body is loaded as `pretty_json` of its payload, names are cleaned.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from relay_core.messages.payload import Performative
from relay_core.text.sanitize import clean, pretty_json
from relay_tui.user_files import config_dir, state_dir, write_private
from relay_tui.views.publish.draft import Draft

KEPT = 50
_LARGEST = 64 * 1024
"""The largest template, and the largest body in the history, in bytes."""
_MOST = KEPT * (_LARGEST + 4096)


class SavedDraft(NamedTuple):
    """A draft with the title and the note of its row."""

    title: str
    note: str
    draft: Draft


BUILT_IN = (
    SavedDraft("a text message", "for agents and people alike", Draft(body=pretty_json({"content": "hello"}))),
    SavedDraft(
        "a request",
        "the answer goes to reply-to",
        Draft(
            reply_to="relay.human.operator",
            body=pretty_json({"content": "what is your state?", "performative": Performative.REQUEST.value}),
        ),
    ),
    SavedDraft(
        "a ping with a small budget",
        "one hop, expires in 30 s",
        Draft(max_hops="1", ttl="30s", body=pretty_json("ping")),
    ),
    SavedDraft(
        "a group chat message",
        "with names, and how the answer is displayed",
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


def read_templates(directory: Path) -> tuple[list[SavedDraft], list[str]]:
    """Return the operator's templates by name, then the built-in ones, and the problems of unreadable files."""
    templates: list[SavedDraft] = []
    problems: list[str] = []
    try:
        paths = sorted(directory.glob("*.json"))[:200]
    except OSError as error:
        paths, problems = [], [f"{directory}: {error}"]
    for path in paths:
        try:
            if path.stat().st_size > _LARGEST:
                raise ValueError(f"longer than {_LARGEST} bytes")
            templates.append(SavedDraft(clean(path.stem), "yours", _draft(json.loads(path.read_bytes()))))
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"{clean(path.name)}: {clean(str(error))}")
    return [*templates, *BUILT_IN], problems


def read_history(path: Path) -> list[SavedDraft]:
    """Return the published messages, newest first."""
    return [saved for saved in map(_saved, reversed(list(_records(path)))) if saved is not None]


def remember(path: Path, draft: Draft, payload: Any, *, at: str, outcome: str) -> None:
    """Add a message to the history, which never holds more than `KEPT`.

    Raises:
        OSError: if it cannot be written.
    """
    record = {
        "at": at,
        "outcome": outcome,
        "subject": draft.subject,
        "from": draft.sender,
        "replyTo": draft.reply_to,
        "budget": {"maxHops": draft.max_hops, "calls": draft.calls, "ttl": draft.ttl},
    }
    if len(draft.body) <= _LARGEST:
        record["payload"] = payload
    records = [*_records(path), record][-KEPT:]
    write_private(path, "".join(json.dumps(record) + "\n" for record in records))


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


def _saved(record: dict[str, Any]) -> SavedDraft | None:
    try:
        return SavedDraft(
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
