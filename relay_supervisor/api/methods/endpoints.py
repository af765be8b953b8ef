"""Endpoints, mailboxes and signals."""

from __future__ import annotations

from relay_core.errors import AccessDenied, NotFound
from relay_core.messages.signals import Signal
from relay_core.messages.subjects import validate_subject
from relay_core.protocol.base import ListParams, Nothing, PatternParams, SubjectParams
from relay_core.protocol.consuming import SignalParams, Subscribed, SubscriptionParams
from relay_core.protocol.endpoints import EndpointList, MailboxList, OpenReplyParams, ReplyMailbox
from relay_core.storage.endpoint_file import Endpoint
from relay_supervisor.agents.registry import page_of
from relay_supervisor.api.context import ApiContext
from relay_supervisor.api.methods.handlers import handles
from relay_supervisor.server.connection import Connection


@handles("endpoints.register")
async def register(context: ApiContext, connection: Connection, params: SubjectParams) -> Endpoint:
    """Give a subject a durable mailbox; `replies.open` opens reply mailboxes."""
    subject = params.subject
    validate_subject(subject)
    context.replies.check_reader(connection, subject)
    relay, identity = context.relay, connection.identity
    if identity.pattern is not None and relay.endpoint(subject) is None:
        most = relay.config.limits.max_endpoints_per_token
        if relay.count_endpoints(identity.pattern) >= most:
            raise AccessDenied(
                f"there are already {most} endpoints of {identity.pattern} (limits.maxEndpointsPerToken): "
                "unregister those that are no longer needed",
                code="too_many",
                subject=subject,
            )
    return await relay.register_endpoint(subject)


@handles("endpoints.unregister")
async def unregister(context: ApiContext, connection: Connection, params: SubjectParams) -> None:
    context.replies.check_reader(connection, params.subject, leftovers=True)
    await context.relay.unregister_endpoint(params.subject)
    context.replies.close(connection, params.subject)


@handles("replies.open")
async def open_reply(context: ApiContext, connection: Connection, params: OpenReplyParams) -> ReplyMailbox:
    """Open a reply mailbox for the connection, or reopen the one of a key."""
    subject, key = await context.replies.open(connection, params.key)
    return ReplyMailbox(subject=subject, key=key)


@handles("endpoints.list")
def list_endpoints(context: ApiContext, connection: Connection, params: ListParams) -> EndpointList:
    """List the endpoints without reply mailboxes, which are private."""
    relay = context.relay
    names = page_of(relay.endpoint_subjects(), params.cursor, params.limit + 1)
    page = [endpoint for name in names[: params.limit] if (endpoint := relay.endpoint(name)) is not None]
    return EndpointList(endpoints=page, cursor=page[-1].subject if len(names) > params.limit else None)


@handles("mailboxes.list")
def list_mailboxes(context: ApiContext, connection: Connection, params: Nothing) -> MailboxList:
    return MailboxList(mailboxes=context.relay.mailboxes())


@handles("signal.send")
def send_signal(context: ApiContext, connection: Connection, params: SignalParams) -> None:
    """Send a signal to current listeners, about an endpoint that the connection may publish as."""
    connection.identity.check_sender(params.signal.endpoint_subject, context.relay.owner_of_sender)
    context.relay.signal(params.subject, params.signal)


@handles("signal.subscribe")
def subscribe_signals(context: ApiContext, connection: Connection, params: PatternParams) -> Subscribed:
    """Send the signals of a pattern; those that arrive while the client does not read are dropped."""
    context.replies.check_reader(connection, params.pattern)
    context.check_subscriptions(connection)
    subscription_id = context.relay.new_id()

    def pass_on(subject: str, signal: Signal) -> None:
        if connection.writable:
            note = {"subscriptionId": subscription_id, "subject": subject, "signal": signal.to_wire()}
            connection.notify("signal", note)

    connection.signals[subscription_id] = context.relay.on_signal(params.pattern, pass_on)
    return Subscribed(subscription_id=subscription_id)


@handles("signal.unsubscribe")
def unsubscribe_signals(context: ApiContext, connection: Connection, params: SubscriptionParams) -> None:
    subscription = connection.signals.pop(params.subscription_id, None)
    if subscription is None:
        raise NotFound(f"this connection has no subscription {params.subscription_id}", what=params.subscription_id)
    subscription.close()
