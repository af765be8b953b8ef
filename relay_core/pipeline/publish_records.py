"""The records of a publish: its index row, and its refusal if it was refused."""

from __future__ import annotations

from typing import NoReturn

from relay_core.errors import AccessDenied
from relay_core.messages.delivery import Status, TargetKind
from relay_core.messages.results import PublishResult
from relay_core.pipeline.publication import Publication
from relay_core.records.recorder import REPLAYED, Recorder
from relay_core.records.rows import PublishRow
from relay_core.rules.access import AccessRule, AccessVerdict
from relay_core.storage.access_file import AccessControl


def deny_by_rule(
    publication: Publication, access: AccessControl, recorder: Recorder, verdict: AccessVerdict
) -> NoReturn:
    """Refuse a publish by the access rules.

    Raises:
        AccessDenied: always.
    """
    code = AccessDenied.default_code if access.broken is None else "rules_broken"
    deny(publication, recorder, verdict.reason or "denied by an access rule", verdict.rule, code=code)


def deny(
    publication: Publication,
    recorder: Recorder,
    reason: str,
    rule: AccessRule | None,
    *,
    code: str = AccessDenied.default_code,
) -> NoReturn:
    """Refuse a publish because of an access rule or a missing binding.

    Raises:
        AccessDenied: always.
    """
    note_refused(publication, recorder, code, reason)
    raise AccessDenied(
        f"{publication.sender} may not publish to {publication.subject}: {reason}",
        sender=publication.sender,
        subject=publication.subject,
        rule=rule,
        message_id=publication.id,
        code=code,
    )


def note_publish(publication: Publication, recorder: Recorder, status: str, result: PublishResult) -> None:
    """Record a publish for rate accounting, deduplication and the event log; a replay is not one."""
    row = _row(publication, status if publication.replaces is None else REPLAYED, result)
    if publication.replays:
        recorder.index.note(row)
    else:
        recorder.published(row, publication.started, is_counted=publication.is_counted)


def note_refused(publication: Publication, recorder: Recorder, code: str, reason: str) -> None:
    """Record a publish that was refused as a whole; a retry is a new attempt."""
    recorder.index.note(_row(publication, Status.REFUSED, None))
    delivery = publication.delivery("*", TargetKind.NONE, publication.subject, Status.REFUSED, publication.budget)
    delivery.code, delivery.reason = code, reason
    recorder.refused(delivery)


def _row(publication: Publication, status: str, result: PublishResult | None) -> PublishRow:
    return PublishRow(
        publication.id,
        publication.subject,
        publication.sender,
        publication.reply_to,
        publication.created_ms,
        publication.trace_id,
        publication.parent_id,
        status,
        len(publication.data),
        publication.budget.hop_count,
        publication.budget.call_budget_remaining,
        publication.dedupe,
        result.to_wire() if result is not None and publication.dedupe is not None else None,
    )
