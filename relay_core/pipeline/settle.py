"""The last stage: the result of a publish, and dead letters of messages that no target took."""

from __future__ import annotations

from collections.abc import Awaitable

from relay_core.dispatch.dead_lettering import DeadLetterWriter
from relay_core.messages.dead_letter import Code
from relay_core.messages.delivery import Status, TargetKind
from relay_core.pipeline.publication import Publication, encode_own_part
from relay_core.pipeline.publish_records import note_publish
from relay_core.pipeline.routing import OpenMailbox
from relay_core.records.recorder import Recorder
from relay_core.storage.atomic_file import storage_error
from relay_core.storage.stored_message import FileContent

ACCEPTED = "accepted"
"""The status of a publish that some target took."""


class Settle:
    """Decide the result of a publish."""

    def __init__(self, subject_dead_letters: SubjectDeadLetters, recorder: Recorder) -> None:
        self._subject_dead_letters = subject_dead_letters
        self._recorder = recorder

    def __call__(self, publication: Publication) -> Awaitable[None] | None:
        if not publication.targets:
            return self._unmatched(publication)
        self._finish(publication)
        return None

    def _finish(self, publication: Publication) -> None:
        if publication.failures:
            status = Status.PARTIAL if publication.delivered else Status.FAILED
        elif publication.delivered:
            status = ACCEPTED
        else:
            status = Status.REFUSED
        result = publication.settle()
        note_publish(publication, self._recorder, status, result)

    async def _unmatched(self, publication: Publication) -> None:
        await self._subject_dead_letters.write(
            publication, Code.NO_MATCH, "no matching endpoints or adapters", Status.NO_SUBSCRIBER
        )
        note_publish(publication, self._recorder, Status.NO_SUBSCRIBER, publication.settle())


class SubjectDeadLetters:
    """Write dead letters of messages that never had a target, into the mailbox of their subject."""

    def __init__(self, open_mailbox: OpenMailbox, dead_letter_writer: DeadLetterWriter) -> None:
        self._open_mailbox = open_mailbox
        self._dead_letter_writer = dead_letter_writer

    async def write(self, publication: Publication, code: str, reason: str, status: str) -> None:
        """Keep a message as a dead letter.

        Raises:
            StorageError: if it could not be kept.
        """
        subject = publication.subject
        mailbox = await self._open_mailbox(subject, TargetKind.NONE)
        data = publication.encode(encode_own_part(subject, publication.budget))
        delivery = publication.delivery(mailbox.hash, TargetKind.NONE, subject, status, publication.budget)
        message = publication.message(subject, publication.budget, FileContent(data), delivery)
        mailbox.reserved += 1  # so that the mailbox is not removed as empty meanwhile
        try:
            error = await self._dead_letter_writer.dead_letter(
                mailbox,
                message,
                code=code,
                reason=reason,
                stage="gate",
                status=status,
                dedupe=publication.dedupe,
                result=publication.outcome().to_wire() if publication.dedupe is not None else None,
            )
        finally:
            mailbox.reserved -= 1
        if error is not None:
            raise storage_error("keep the dead letter in", mailbox.maildir.path, error) from error
