"""The supervisor itself: handshake, status, configuration and the state stream."""

from __future__ import annotations

import hmac
import os

from relay_core import __version__
from relay_core.errors import AccessDenied, NotFound, ProtocolError
from relay_core.messages.subjects import is_pattern, validate_subject
from relay_core.protocol import serving as wire
from relay_core.protocol.base import PROTOCOL_VERSION, Nothing
from relay_core.rules.breaker import CircuitState
from relay_supervisor.api.context import ApiContext
from relay_supervisor.api.methods.handlers import handles
from relay_supervisor.server.connection import Connection
from relay_supervisor.server.identity import Identity


@handles("server.hello")
def hello(context: ApiContext, connection: Connection, params: wire.HelloParams) -> wire.Hello:
    """Agree on a version and identify the client; a connection never changes its token."""
    if params.protocol < PROTOCOL_VERSION:
        raise ProtocolError(
            f"protocol {params.protocol} is no longer supported: this is {PROTOCOL_VERSION}",
            code="unsupported_protocol",
        )
    connection.name = params.client or connection.name
    if params.token is not None:
        connection.identity = _identify(context, connection, params.token)
    identity = connection.identity
    if params.agent is not None:
        validate_subject(params.agent)
        identity.check_sender(params.agent, context.relay.owner_of_sender)
        context.agents.connected(connection, params.agent)
    elif identity.pattern is not None and not is_pattern(identity.pattern):  # it can act for this agent only
        context.agents.connected(connection, identity.pattern)
    return wire.Hello(
        protocol=PROTOCOL_VERSION,
        version=__version__,
        pid=os.getpid(),
        data_dir=str(context.relay.data_dir.path),
        operator=identity.operator,
        pattern=identity.pattern,
    )


def _identify(context: ApiContext, connection: Connection, token: str) -> Identity:
    before = connection.identity
    if hmac.compare_digest(token.encode(errors="replace"), context.operator_token.encode()):
        return Identity(operator=True, replies=before.replies)
    info = context.tokens.check(token)
    if info is None:
        if before.token is None:  # requests pipelined with this hello must not run as the operator
            connection.identity = Identity(replies=before.replies)
        raise AccessDenied("unknown token: create one with 'relay token add'", code="bad_token")
    if before.token not in (None, info):
        raise AccessDenied("this connection already has another token: open a new one", code="bad_token")
    return Identity(token=info, replies=before.replies)


@handles("server.info")
def info(context: ApiContext, connection: Connection, params: Nothing) -> wire.ServerInfo:
    return context.info()


@handles("server.ping")
def ping(context: ApiContext, connection: Connection, params: Nothing) -> None:
    pass


@handles("server.status")
async def status(context: ApiContext, connection: Connection, params: Nothing) -> wire.ServerStatus:
    relay = context.relay
    mailboxes = relay.mailboxes()
    warning = relay.config.reliability.backpressure.pressure_warning_at
    full = [mailbox for mailbox in mailboxes if mailbox.pressure >= warning]
    return wire.ServerStatus(
        server=context.info(),
        endpoints=len(relay.endpoints()),
        subscriptions=len(relay.subscriptions()),
        connections=len(context.connections),
        waiting=sum(mailbox.depth for mailbox in mailboxes),
        journal=relay.journal(),
        pressure=sorted(full, key=lambda mailbox: -mailbox.pressure),
        breakers=[breaker for breaker in relay.breakers() if breaker.state is not CircuitState.CLOSED],
        rates=relay.metrics(),
        dead_letters=await relay.dead_letter_groups(),
        adapters=context.adapters.states(),
        jobs=context.jobs.states(),
        problems=context.problems(),
    )


@handles("server.stop")
def stop(context: ApiContext, connection: Connection, params: Nothing) -> None:
    """Stop the supervisor, as SIGTERM does; this request is still answered."""
    context.stop()


@handles("state.watch")
def watch(context: ApiContext, connection: Connection, params: Nothing) -> wire.Watching:
    return wire.Watching(watch_id=context.stream.watch(connection))


@handles("state.unwatch")
def unwatch(context: ApiContext, connection: Connection, params: wire.WatchParams) -> None:
    if not context.stream.unwatch(connection, params.watch_id):
        raise NotFound(f"this connection has no stream {params.watch_id}", what=params.watch_id)


@handles("config.get")
def get_config(context: ApiContext, connection: Connection, params: Nothing) -> wire.ConfigState:
    relay = context.relay
    config = relay.config.model_dump(mode="json", by_alias=True)
    return wire.ConfigState(path=str(relay.data_dir.config), config=config, problem=relay.config_problem)


@handles("config.reload")
async def reload_config(context: ApiContext, connection: Connection, params: Nothing) -> wire.Reloaded:
    return wire.Reloaded(problems=await context.reload())
