"""Endpoints, mailboxes and signals."""

from __future__ import annotations

from contextlib import suppress

from relay_core.endpoints import Endpoint
from relay_core.errors import AccessDenied, NotFound
from relay_core.protocol import (
    Done,
    Endpoints,
    Mailboxes,
    Nothing,
    PatternParams,
    SignalParams,
    SubjectParams,
    Subscribed,
    SubscriptionParams,
)
from relay_core.signals import Signal
from relay_core.subjects import validate_subject
from relay_supervisor.connection import Connection
from relay_supervisor.identity import REPLY_PREFIX
from relay_supervisor.services import Services


async def register(services: Services, connection: Connection, params: SubjectParams) -> Endpoint:
    """Give a subject a mailbox that lasts; one under ``relay.reply.`` lasts as long as the connection."""
    subject = params.subject
    if not subject.startswith(REPLY_PREFIX):
        connection.identity.check_reader(subject)
        return await services.relay.register_endpoint(subject)
    validate_subject(subject)
    if _holders(services, subject) - {connection}:
        raise AccessDenied(f"{subject} is another's: choose a random name", code="subject_not_yours", subject=subject)
    connection.on_closed(lambda: _leave(services, connection), key=_leave)
    connection.identity.replies.add(subject)  # before anything waits, so that nobody else can take it meanwhile
    return await services.relay.register_endpoint(subject)


async def unregister(services: Services, connection: Connection, params: SubjectParams) -> Done:
    """Stop routing to a subject; its mail stays."""
    connection.identity.check_reader(params.subject)
    await services.relay.unregister_endpoint(params.subject)
    connection.identity.replies.discard(params.subject)
    return Done()


def list_endpoints(services: Services, connection: Connection, params: Nothing) -> Endpoints:
    """List the endpoints; the private ones of others are nobody's business."""
    found = services.relay.endpoints()
    return Endpoints(endpoints=[one for one in found if not one.subject.startswith(REPLY_PREFIX)])


def list_mailboxes(services: Services, connection: Connection, params: Nothing) -> Mailboxes:
    """Tell how every mailbox is doing."""
    return Mailboxes(mailboxes=services.relay.mailboxes())


def send_signal(services: Services, connection: Connection, params: SignalParams) -> Done:
    """Send a signal to whoever listens right now, about somebody that the connection may speak as."""
    owner_of = services.relay.bus.adapters.owner_of_sender
    connection.identity.check_sender(params.signal.endpoint_subject, owner_of)
    services.relay.signal(params.subject, params.signal)
    return Done()


def subscribe_signals(services: Services, connection: Connection, params: PatternParams) -> Subscribed:
    """Pass on the signals of a pattern; those that come while the client does not read are dropped."""
    connection.identity.check_reader(params.pattern)
    subscription_id = services.relay.bus.new_id()

    def pass_on(subject: str, signal: Signal) -> None:
        if connection.writable:
            note = {"subscriptionId": subscription_id, "subject": subject, "signal": signal.to_wire()}
            connection.notify("signal", note)

    connection.signals[subscription_id] = services.relay.on_signal(params.pattern, pass_on)
    return Subscribed(subscription_id=subscription_id)


def unsubscribe_signals(services: Services, connection: Connection, params: SubscriptionParams) -> Done:
    """Pass on no more of them."""
    subscription = connection.signals.pop(params.subscription_id, None)
    if subscription is None:
        raise NotFound(f"this connection has no subscription {params.subscription_id}", what=params.subscription_id)
    subscription.close()
    return Done()


def _leave(services: Services, connection: Connection) -> None:
    services.tasks.start(_forget(services, connection), name="forget reply mailboxes")


async def _forget(services: Services, connection: Connection) -> None:
    for subject in connection.identity.replies:
        if not _holders(services, subject):  # its client may be back already, on another connection
            with suppress(NotFound):
                await services.relay.unregister_endpoint(subject)


def _holders(services: Services, subject: str) -> set[Connection]:
    return {connection for connection in services.connections if subject in connection.identity.replies}
