"""Endpoints, mailboxes and signals."""

from __future__ import annotations

from relay_core.endpoints import Endpoint
from relay_core.errors import AccessDenied, NotFound
from relay_core.protocol import (
    Done,
    Endpoints,
    ListParams,
    Mailboxes,
    Nothing,
    OpenReplyParams,
    PatternParams,
    ReplyMailbox,
    SignalParams,
    SubjectParams,
    Subscribed,
    SubscriptionParams,
)
from relay_core.signals import Signal
from relay_core.subjects import validate_subject
from relay_supervisor.agents import page_of
from relay_supervisor.connection import Connection
from relay_supervisor.services import Services


async def register(services: Services, connection: Connection, params: SubjectParams) -> Endpoint:
    """Give a subject a mailbox that lasts; reply mailboxes are made by `replies.open`."""
    subject = params.subject
    validate_subject(subject)
    services.replies.check_reader(connection, subject)
    mailboxes = services.relay.bus.mailboxes
    who = connection.identity
    if who.pattern is not None and mailboxes.endpoint(subject) is None:
        most = services.relay.bus.config.limits.max_endpoints_per_token
        if len(mailboxes.select(who.pattern)) >= most:
            raise AccessDenied(
                f"there are {most} endpoints of {who.pattern} already (limits.maxEndpointsPerToken): "
                "unregister those that are not needed any more",
                code="too_many",
                subject=subject,
            )
    return await services.relay.register_endpoint(subject)


async def unregister(services: Services, connection: Connection, params: SubjectParams) -> Done:
    """Stop routing to a subject; its mail stays."""
    services.replies.check_reader(connection, params.subject, leftovers=True)
    await services.relay.unregister_endpoint(params.subject)
    services.replies.close(connection, params.subject)
    return Done()


async def open_reply(services: Services, connection: Connection, params: OpenReplyParams) -> ReplyMailbox:
    """Make a reply mailbox for the connection, or give it the one of a key."""
    subject, key = await services.replies.open(connection, params.key)
    return ReplyMailbox(subject=subject, key=key)


def list_endpoints(services: Services, connection: Connection, params: ListParams) -> Endpoints:
    """List the endpoints but reply mailboxes, which are private."""
    mailboxes = services.relay.bus.mailboxes
    names = page_of(mailboxes.names(), params.cursor, params.limit + 1)
    found = [mailbox.endpoint() for name in names[: params.limit] if (mailbox := mailboxes.endpoint(name)) is not None]
    return Endpoints(endpoints=found, cursor=found[-1].subject if len(names) > params.limit else None)


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
    services.replies.check_reader(connection, params.pattern)
    services.check_subscriptions(connection)
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
