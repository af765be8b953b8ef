"""The stage that finds every target: endpoints, adapters, live subscriptions, and the agent that a chat is bound to.

1. Access to a chat's own subject and to its agent's is checked separately: the message is denied only if both are.
2. An adapter that takes both gets it once.
3. While a mailbox is being created, the others are reserved, so that none is removed as empty. A mailbox that cannot be
   created is a failure of its target alone.
4. A broadcast reaches no reply mailbox, and a message to one goes to no adapter (rules/replies.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from relay_core.errors import InvalidPayload, StorageError
from relay_core.messages.delivery import TargetKind
from relay_core.messages.subjects import ADAPTER_PREFIX, is_reply
from relay_core.pipeline.publication import Publication
from relay_core.pipeline.publish_records import deny_by_rule, note_refused
from relay_core.pipeline.routing import AdapterRoute, AdapterRouting, OpenMailbox, OpenTarget, Target
from relay_core.records.recorder import Recorder
from relay_core.rules.bindings import Bindings
from relay_core.storage.access_file import AccessControl
from relay_core.storage.config_file import LiveConfig
from relay_core.storage.conversations_file import ConversationsFile
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.mailboxes import Mailboxes

_COPY_BYTES = 1024
"""The size of a stored copy beyond its payload."""


class Match:
    """Find every target."""

    def __init__(
        self,
        settings: LiveConfig,
        mailboxes: Mailboxes,
        access: AccessControl,
        bindings: Bindings,
        conversations: ConversationsFile,
        adapters: AdapterRouting,
        listeners: Callable[[str], int],
        open_mailbox: OpenMailbox,
        recorder: Recorder,
    ) -> None:
        self._settings = settings
        self._mailboxes = mailboxes
        self._access = access
        self._bindings = bindings
        self._conversations = conversations
        self._adapters = adapters
        self._listeners = listeners
        self._open_mailbox = open_mailbox
        self._recorder = recorder

    def __call__(self, publication: Publication) -> Awaitable[None] | None:
        """Set the targets, at once unless a mailbox has to be created."""
        if publication.is_broadcast:
            publication.targets = self._allowed(publication, self._mailboxes.select(publication.subject))
            self._check_size(publication)
            return None
        if publication.is_chat_inbound:
            found = self._find_chat(publication)
        else:
            found = self._find(publication, publication.subject)
        publication.targets = [target for target in found if isinstance(target, Target)]
        if len(publication.targets) < len(found) or self._begins_conversation(publication):
            return self._open(publication, found)
        return None

    def _find(
        self, publication: Publication, subject: str, address: str | None = None, exclude: Sequence[AdapterRoute] = ()
    ) -> list[Target | OpenTarget]:
        """Return the targets of a subject."""
        endpoint = self._mailboxes.endpoint(subject)
        if endpoint is not None and is_reply(subject):
            return [Target(endpoint, address=address)]
        hosts = self._adapters.matching(subject, publication.origin)
        found: list[Target | OpenTarget] = [host.target(subject, address) for host in hosts if host not in exclude]
        if endpoint is not None:
            found.insert(0, Target(endpoint, address=address))
        elif not subject.startswith(ADAPTER_PREFIX) and (listeners := self._listeners(subject)):
            found.insert(0, partial(self._open_listener, subject, listeners, address))
        return found

    def _find_chat(self, publication: Publication) -> list[Target | OpenTarget]:
        """Return the targets of a person's message: those of the chat's subject, and the agent it is bound to."""
        chat = publication.subject
        found: list[Target | OpenTarget] = []
        hosts: Sequence[AdapterRoute] = ()
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
            deny_by_rule(publication, self._access, self._recorder, denial)
        return found

    def _begins_conversation(self, publication: Publication) -> bool:
        """Return True if this begins a conversation that must be kept."""
        binding = publication.binding
        return binding is not None and self._bindings.must_begin(publication.subject, binding)

    async def _open(self, publication: Publication, found: list[Target | OpenTarget]) -> None:
        """Create the mailboxes that are missing.

        Raises:
            StorageError: if none can be created and there is no other target.
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
            if self._begins_conversation(publication) and publication.binding is not None:
                self._bindings.begin(publication.subject, publication.binding)
                await self._conversations.save(self._bindings.begun)
            for target_or_open in found:
                if isinstance(target_or_open, Target):
                    targets.append(target_or_open)
                    continue
                try:
                    target = await target_or_open()
                except StorageError as error:
                    problem = error
                    publication.note_failure(error.message)
                else:
                    self._hold(target, held)
                    targets.append(target)
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

    async def _open_listener(self, subject: str, listeners: int, address: str | None) -> Target:
        """Return the mailbox of a subject that has subscriptions but no endpoint."""
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
            deny_by_rule(publication, self._access, self._recorder, denial)
        return targets
