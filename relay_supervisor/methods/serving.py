"""The supervisor itself: who it is, how it is doing, its configuration and its stream of state."""

from __future__ import annotations

import hmac
import os

from relay_core import __version__
from relay_core.breaker import CircuitState
from relay_core.errors import AccessDenied, NotFound, ProtocolError
from relay_core.protocol import (
    PROTOCOL_VERSION,
    ConfigState,
    Done,
    Hello,
    HelloParams,
    Nothing,
    Reloaded,
    ServerInfo,
    ServerStatus,
    Watching,
    WatchParams,
)
from relay_core.subjects import is_pattern, validate_subject
from relay_supervisor.connection import Connection
from relay_supervisor.identity import Identity
from relay_supervisor.services import Services


def hello(services: Services, connection: Connection, params: HelloParams) -> Hello:
    """Agree on a version, and find out who it is; a connection has one identity for good."""
    if params.protocol < PROTOCOL_VERSION:
        raise ProtocolError(
            f"protocol {params.protocol} is not spoken any more: this is {PROTOCOL_VERSION}",
            code="unsupported_protocol",
        )
    connection.name = params.client or connection.name
    if params.token is not None:
        connection.identity = _known(services, connection, params.token)
    who = connection.identity
    if params.agent is not None:
        validate_subject(params.agent)
        who.check_sender(params.agent, services.relay.bus.adapters.owner_of_sender)
        services.agents.connected(connection, params.agent)
    elif who.pattern is not None and not is_pattern(who.pattern):  # there is only one whom it can act for
        services.agents.connected(connection, who.pattern)
    return Hello(
        protocol=PROTOCOL_VERSION,
        version=__version__,
        pid=os.getpid(),
        data_dir=str(services.relay.bus.data_dir.path),
        operator=who.operator,
        pattern=who.pattern,
    )


def _known(services: Services, connection: Connection, token: str) -> Identity:
    before = connection.identity
    if hmac.compare_digest(token.encode(errors="replace"), services.operator_token.encode()):
        return Identity(operator=True, replies=before.replies)
    known = services.tokens.check(token)
    if known is None:
        if before.token is None:  # what was asked together with this hello must not be done as the operator
            connection.identity = Identity(replies=before.replies)
        raise AccessDenied("this token is not known: make one with 'relay token add'", code="bad_token")
    if before.token not in (None, known):
        raise AccessDenied("this connection has another token already: open another", code="bad_token")
    return Identity(token=known, replies=before.replies)


def info(services: Services, connection: Connection, params: Nothing) -> ServerInfo:
    """Tell which supervisor this is."""
    return services.info()


def ping(services: Services, connection: Connection, params: Nothing) -> Done:
    """Answer."""
    return Done()


async def status(services: Services, connection: Connection, params: Nothing) -> ServerStatus:
    """Tell how everything is doing."""
    relay = services.relay
    mailboxes = relay.mailboxes()
    warning = relay.bus.config.reliability.backpressure.pressure_warning_at
    pressed = [one for one in mailboxes if one.pressure >= warning]
    return ServerStatus(
        server=services.info(),
        endpoints=len(relay.endpoints()),
        subscriptions=len(relay.subscriptions()),
        connections=len(services.connections),
        waiting=sum(one.depth for one in mailboxes),
        pressure=sorted(pressed, key=lambda one: -one.pressure),
        breakers=[one for one in relay.breakers() if one.state is not CircuitState.CLOSED],
        rates=relay.metrics(),
        dead_letters=await relay.dead_letter_groups(),
        adapters=services.adapters.states(),
        jobs=services.jobs.states(),
        problems=services.problems(),
    )


def stop(services: Services, connection: Connection, params: Nothing) -> Done:
    """Stop the supervisor, as SIGTERM does; the answer still comes."""
    services.stop()
    return Done()


def watch(services: Services, connection: Connection, params: Nothing) -> Watching:
    """Send the whole state, then what changes."""
    return Watching(watch_id=services.stream.watch(connection))


def unwatch(services: Services, connection: Connection, params: WatchParams) -> Done:
    """Send no more of it."""
    if not services.stream.unwatch(connection, params.watch_id):
        raise NotFound(f"this connection has no stream {params.watch_id}", what=params.watch_id)
    return Done()


def get_config(services: Services, connection: Connection, params: Nothing) -> ConfigState:
    """Return the configuration in force."""
    bus = services.relay.bus
    config = bus.config.model_dump(mode="json", by_alias=True)
    return ConfigState(path=str(bus.data_dir.config), config=config, problem=bus.config_problem)


async def reload_config(services: Services, connection: Connection, params: Nothing) -> Reloaded:
    """Read the operator's files again, as SIGHUP does."""
    return Reloaded(problems=await services.reload())
