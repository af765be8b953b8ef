"""The stage that finds every target: endpoints, adapters and live subscriptions, and the agent that a chat is bound to.

1. A chat's own subject and its agent's are asked for apart: it is denied only if neither may hear it.
2. An adapter that takes both gets it once.
3. While a mailbox is being made, the others are held, so that nobody removes one as empty. One that cannot be made
   is a failure of its target alone.
4. A reply mailbox is in no broadcast, and what is sent to one goes to no adapter beside it (replies.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from relay_core.access import AccessControl
from relay_core.bindings import Bindings
from relay_core.delivery import TargetKind
from relay_core.errors import InvalidPayload, StorageError
from relay_core.mailbox import Mailbox
from relay_core.mailboxes import Mailboxes
from relay_core.pipeline import OpenMailbox, note_refused, refuse_access
from relay_core.publication import Publication, Settings, Target
from relay_core.recorder import Recorder
from relay_core.subjects import ADAPTER_PREFIX, is_reply

if TYPE_CHECKING:
    from relay_core.adapter_host import AdapterHost
    from relay_core.adapters import Adapters

_COPY_BYTES = 1024
"""What a copy takes up beside its payload."""
Opening = Callable[[], Awaitable[Target]]
"""Makes the mailbox of a target that has none yet."""


class Match:
    """Find every target."""

    def __init__(
        self,
        settings: Settings,
        mailboxes: Mailboxes,
        access: AccessControl,
        bindings: Bindings,
        adapters: Adapters,
        listeners: Callable[[str], int],
        open_mailbox: OpenMailbox,
        recorder: Recorder,
    ) -> None:
        self._settings = settings
        self._mailboxes = mailboxes
        self._access = access
        self._bindings = bindings
        self._adapters = adapters
        self._listeners = listeners
        self._open_mailbox = open_mailbox
        self._recorder = recorder

    def __call__(self, publication: Publication) -> Awaitable[None] | None:
        """Set the targets, at once where no mailbox has to be made."""
        if publication.is_broadcast:
            publication.targets = self._allowed(publication, self._mailboxes.select(publication.subject))
            self._check_size(publication)
            return None
        found = self._find(publication, publication.subject) if not publication.is_voice else self._hear(publication)
        publication.targets = [target for target in found if isinstance(target, Target)]
        if len(publication.targets) < len(found) or self._begins(publication):
            return self._wait(publication, found)
        return None

    def _find(
        self, publication: Publication, subject: str, address: str | None = None, besides: Sequence[AdapterHost] = ()
    ) -> list[Target | Opening]:
        """Return the targets of a subject, or what makes those that have no mailbox yet."""
        endpoint = self._mailboxes.endpoint(subject)
        if endpoint is not None and is_reply(subject):
            return [Target(endpoint, address=address)]
        hosts = self._adapters.matching(subject, publication.origin)
        found: list[Target | Opening] = [host.target(subject, address) for host in hosts if host not in besides]
        if endpoint is not None:
            found.insert(0, Target(endpoint, address=address))
        elif not subject.startswith(ADAPTER_PREFIX) and (listeners := self._listeners(subject)):
            found.insert(0, partial(self._listen, subject, listeners, address))
        return found

    def _hear(self, publication: Publication) -> list[Target | Opening]:
        """Return who hears what a chat says: those who listen to it, and the agent it is bound to."""
        chat = publication.subject
        found: list[Target | Opening] = []
        hosts: Sequence[AdapterHost] = ()
        denial = self._access.check(chat, chat)
        if denial.allowed:
            found = self._find(publication, chat)
            hosts = self._adapters.matching(chat, publication.origin)
        binding = self._bindings.route(chat)
        if binding is not None:
            verdict = self._access.check(chat, binding.agent)
            if verdict.allowed:
                publication.binding = binding
                found += self._find(publication, binding.agent, binding.agent, hosts)
            elif denial.allowed:
                denial = verdict
        if not found and not denial.allowed and publication.binding is None:
            refuse_access(publication, self._access, self._recorder, denial)
        return found

    def _begins(self, publication: Publication) -> bool:
        """Tell whether this begins a conversation that has to be remembered."""
        binding = publication.binding
        return binding is not None and self._bindings.must_begin(publication.subject, binding)

    async def _wait(self, publication: Publication, found: list[Target | Opening]) -> None:
        """Make what is missing.

        Raises:
            StorageError: if nothing can be made, and nothing else is there.
        """
        held: list[Mailbox] = []
        problem: StorageError | None = None
        targets: list[Target] = []
        try:
            for target in publication.targets:
                mailbox = target.mailbox
                if self._mailboxes.get(mailbox.hash) is not mailbox:  # removed as empty just now
                    await self._reopen(target)
                self._hold(target, held)
            if self._begins(publication) and publication.binding is not None:
                await self._bindings.begin(publication.subject, publication.binding)
            for one in found:
                if not isinstance(one, Target):
                    try:
                        one = await one()
                    except StorageError as error:
                        problem = error
                        publication.note_failure(error.message)
                        continue
                    self._hold(one, held)
                targets.append(one)
        finally:
            for mailbox in held:
                mailbox.reserved -= 1  # the next stage, in the same step, reserves for the message itself
        if problem is not None and not targets:
            raise problem
        publication.targets = targets

    def _hold(self, target: Target, held: list[Mailbox]) -> None:
        target.mailbox.reserved += 1
        held.append(target.mailbox)

    async def _reopen(self, target: Target) -> None:
        about = target.mailbox.about
        target.mailbox = await self._open_mailbox(about.subject, about.kind)

    async def _listen(self, subject: str, listeners: int, address: str | None) -> Target:
        """Keep the mail of a subscription that has no endpoint in a mailbox of its subject."""
        return Target(await self._open_mailbox(subject, TargetKind.SUBSCRIPTION), weight=listeners, address=address)

    def _check_size(self, publication: Publication) -> None:
        """Refuse a broadcast that would store too much.

        Raises:
            InvalidPayload: with code `broadcast_too_large`.
        """
        limit = self._settings.config.limits.max_broadcast_bytes
        count = len(publication.targets)
        size = count * (len(publication.data) + _COPY_BYTES)
        if count > 1 and size > limit:
            reason = (
                f"a broadcast to {count} endpoints would store {size} bytes, the limit is {limit} "
                "(limits.maxBroadcastBytes): send less, or to fewer"
            )
            note_refused(publication, self._recorder, "broadcast_too_large", reason)
            raise InvalidPayload(reason, code="broadcast_too_large", size=size, limit=limit)

    def _allowed(self, publication: Publication, mailboxes: list[Mailbox]) -> list[Target]:
        """Leave out the endpoints a broadcast may not reach; if none is left, it is denied."""
        targets = []
        denial = None
        for mailbox in mailboxes:
            verdict = self._access.check(publication.sender, mailbox.subject)
            if verdict.allowed:
                targets.append(Target(mailbox, address=mailbox.subject))
            else:
                denial = verdict
        if denial is not None and not targets:
            refuse_access(publication, self._access, self._recorder, denial)
        return targets
