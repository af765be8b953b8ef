"""The handlers of the protocol's methods, one flat table; a test holds its keys to `protocol.METHODS`.

A handler gets the services, the connection and its parameters, and returns the result, or something to await for
it. What it raises becomes the error of its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relay_core import __version__
from relay_core.errors import ProtocolError
from relay_core.frames import Request
from relay_core.protocol import METHODS, PROTOCOL_VERSION, parse_params
from relay_supervisor.connection import Connection
from relay_supervisor.identity import Identity
from relay_supervisor.methods import agents, consuming, deadletters, endpoints, operating, publishing, serving
from relay_supervisor.services import Services

Handler = Callable[[Services, Connection, Any], Any]

HANDLERS: dict[str, Handler] = {
    "server.hello": serving.hello,
    "server.info": serving.info,
    "server.ping": serving.ping,
    "server.status": serving.status,
    "server.stop": serving.stop,
    "publish": publishing.publish,
    "publish.batch": publishing.publish_batch,
    "subscribe": consuming.subscribe,
    "unsubscribe": consuming.unsubscribe,
    "start": consuming.start,
    "ack": consuming.ack,
    "fail": consuming.fail,
    "inbox.peek": consuming.peek,
    "inbox.claim": consuming.claim,
    "inbox.wait": consuming.wait,
    "inbox.complete": consuming.complete,
    "inbox.fail": consuming.fail_claim,
    "signal.send": endpoints.send_signal,
    "signal.subscribe": endpoints.subscribe_signals,
    "signal.unsubscribe": endpoints.unsubscribe_signals,
    "endpoints.register": endpoints.register,
    "endpoints.unregister": endpoints.unregister,
    "endpoints.list": endpoints.list_endpoints,
    "replies.open": endpoints.open_reply,
    "agents.add": agents.add,
    "agents.remove": agents.remove,
    "agents.list": agents.list_agents,
    "agents.people": agents.people,
    "mailboxes.list": endpoints.list_mailboxes,
    "deadletters.list": deadletters.list_letters,
    "deadletters.summaries": deadletters.summaries,
    "deadletters.groups": deadletters.groups,
    "deadletters.get": deadletters.get,
    "deadletters.plan": deadletters.plan,
    "deadletters.items": deadletters.items,
    "deadletters.run": deadletters.run,
    "deadletters.wait": deadletters.wait,
    "deadletters.runs": deadletters.runs,
    "deadletters.pause": deadletters.pause,
    "deadletters.resume": deadletters.resume,
    "deadletters.cancel": deadletters.cancel,
    "deadletters.edit": deadletters.edit,
    "deadletters.purge": deadletters.purge,
    "deadletters.export": deadletters.export,
    "breakers.list": operating.list_breakers,
    "breakers.reset": operating.reset_breaker,
    "breakers.force": operating.force_breaker,
    "senders.list": operating.list_senders,
    "adapters.list": operating.list_adapters,
    "adapters.enable": operating.enable_adapter,
    "adapters.disable": operating.disable_adapter,
    "adapters.test": operating.test_adapter,
    "adapters.reload": operating.reload_adapters,
    "access.list": operating.list_rules,
    "access.add": operating.add_rule,
    "access.remove": operating.remove_rule,
    "tokens.list": operating.list_tokens,
    "tokens.add": operating.add_token,
    "tokens.remove": operating.remove_token,
    "traces.search": operating.search_traces,
    "traces.get": operating.trace,
    "traces.conversation": operating.conversation,
    "metrics": operating.metrics,
    "state.watch": serving.watch,
    "state.unwatch": serving.unwatch,
    "jobs.list": operating.list_jobs,
    "jobs.run": operating.run_job,
    "jobs.cancel": operating.cancel_job,
    "reports.list": operating.list_reports,
    "reports.get": operating.get_report,
    "config.get": serving.get_config,
    "config.reload": serving.reload_config,
}


class Methods:
    """Answer requests from the table."""

    def __init__(self, services: Services) -> None:
        self.greeting = {"version": __version__, "protocol": PROTOCOL_VERSION}
        self._services = services

    def answer(self, connection: Connection, request: Request) -> Any:
        """Return the result of a request, or something to await for it.

        Raises:
            ProtocolError: if there is no such method, or its parameters are wrong.
            AccessDenied: if the connection may not call it.
        """
        method = METHODS.get(request.method)
        if method is None:
            shown = request.method[:80]
            raise ProtocolError(f"no method {shown!r}: docs/protocol.md lists them", code="unknown_method")
        connection.identity.check_method(method)
        return HANDLERS[method.name](self._services, connection, parse_params(method, request.params))

    def identity(self) -> Identity:
        """Return what a connection of the socket's user may do that has not said hello."""
        return Identity(operator=not self._services.relay.bus.config.auth.require_tokens)

    def in_hand(self) -> list[Any]:
        """Return what ends as consumers finish the messages they have in hand."""
        return self._services.deliveries.in_hand()
