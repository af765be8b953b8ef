"""One connection to a NATS server, from its handshake to its end.

1. nats-py's own reconnecting and buffering are off: without a connection nothing is sent, and a pending request fails
   at once. The adapter opens the next connection.
2. A publish ends in one of four ways: JetStream has it (or had it before), it is refused, `NotSent`, `OutcomeUnknown`.
3. A missing acknowledgement ends the connection: a server that does not respond gets no more messages, and the next
   connection finds out why. So does a missing stream.
4. The server reports a denied permission asynchronously; it ends the publish to that subject.
5. The connection ends with its client (see `client`), whatever the cause.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar
from urllib.parse import urlsplit

from nats.errors import Error, NoRespondersError, SecureConnWantedError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError, ServiceUnavailableError

from relay_core.adapters.interface import DeliveryResult
from relay_supervisor.adapters.nats.client import BridgeClient
from relay_supervisor.adapters.nats.config import NatsConfig
from relay_supervisor.adapters.nats.crossing import Outgoing
from relay_supervisor.adapters.nats.faults import Lost, NotSent, OutcomeUnknown, Refusal, describe
from relay_supervisor.adapters.nats.login import credentials, tls_context

_CLOSE_SECS = 0.5
_BUSY_SECS = 2.0
_FULL_SECS = 5.0
# https://github.com/nats-io/nats-server: server/errors.json
_TOO_LARGE = 10054
_WRONG_STREAM = 10060
_NO_STREAM = 10059
_FULL_TEXTS = ("maximum bytes", "maximum messages", "insufficient", "no space")

T = TypeVar("T")


class NatsConnection:
    """A connection; once lost, it cannot be used again."""

    def __init__(self, config: NatsConfig, server: str, name: str) -> None:
        self.client = BridgeClient(self._on_end, wants_tls=config.wants_tls)
        self.lost = asyncio.Event()
        self.why = ""
        """The reason why it ended."""
        self.where = urlsplit(server).netloc
        self.window = 0.0
        """Duplicate window of the stream in seconds."""
        self.config = config
        self.js: JetStreamContext
        self._server = server
        self._name = name
        self._waiting: dict[asyncio.Timeout, str] = {}
        """Pending requests, with the subjects that they were sent to."""
        self._denied: set[str] = set()
        self.denial: str | None = None
        """The last denied permission, as the server reported it."""
        self._last_error: BaseException | None = None

    async def open(self) -> None:
        """Connect.

        Raises:
            Refusal: if the server refuses the connection.
            Lost: if it cannot be reached.
        """
        config = self.config
        options = credentials(config)
        if config.tls is not None:
            options |= {"tls": await tls_context(config.tls), "tls_handshake_first": config.tls.handshake_first}
            if config.tls.hostname is not None:
                options["tls_hostname"] = config.tls.hostname
        try:
            async with asyncio.timeout(config.connect_timeout_secs):
                await self.client.connect(
                    [self._server],
                    name=self._name,
                    error_cb=self._on_error,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=config.connect_timeout_secs,  # type: ignore[arg-type]  # it takes fractions
                    ping_interval=config.ping_interval_secs,  # type: ignore[arg-type]
                    pending_size=0,
                    inbox_prefix=config.inbox_prefix,
                    **options,
                )
        except (Error, OSError, TimeoutError, ssl.SSLError, ValueError) as error:
            raise self._explain(error) from None
        self.js = self.client.jetstream(timeout=config.connect_timeout_secs, domain=config.domain)

    async def publish(self, message: Outgoing) -> DeliveryResult:
        """Publish a message to JetStream and wait for the acknowledgement.

        Raises:
            NotSent: if it was not sent.
            OutcomeUnknown: if it was sent, but not acknowledged.
        """
        if self.lost.is_set():
            raise NotSent(self.why)
        if message.size > self.client.max_payload:
            return DeliveryResult(
                ok=False,
                error=f"the message has {message.size} bytes with its headers, the server takes "
                f"{self.client.max_payload}: raise max_payload there, or send a reference to a file instead",
                code="max_payload",
            )
        limit = self.config.publish_timeout_secs
        try:
            async with self._deadline(limit, message.subject.lower()):
                ack = await self.js.publish(
                    message.subject,
                    message.data,
                    timeout=limit + 1,  # the deadline comes first
                    stream=self.config.stream,
                    headers=message.headers,
                )
        except TimeoutError:
            return self._unanswered(message, limit)
        except APIError as error:
            return self._explain_refusal(message, error)
        except NoStreamResponseError:
            self.lose(f"no stream accepts {message.subject}: was {self.config.stream} removed, or JetStream disabled?")
            raise NotSent(self.why) from None
        except (Error, OSError) as error:
            self.lose(f"the connection to {self.where} broke: {describe(error)}")
            raise OutcomeUnknown(self.why) from None
        except (ValueError, TypeError, KeyError, AttributeError):
            return DeliveryResult(
                ok=False,
                error=f"another service than JetStream responds on {message.subject}: "
                "give services other subjects, or this bridge a prefix",
                code="foreign_answer",
            )
        again = ", which had it already" if ack.duplicate else ""
        return DeliveryResult(ok=True, detail=f"stream {ack.stream} #{ack.seq}{again}")

    def lose(self, why: str) -> None:
        """End the connection; pending requests fail."""
        if self.lost.is_set():
            return
        self.why = why
        self.lost.set()
        now = asyncio.get_running_loop().time()
        for timer in self._waiting:
            timer.reschedule(now)

    async def close(self) -> None:
        """Close the connection, a stuck one by force."""
        self.lose("the connection was closed")
        if not self.client.has_transport:
            return
        with suppress(TimeoutError, Error, OSError):
            async with asyncio.timeout(_CLOSE_SECS):
                await self.client.close()
        self.client.release()

    @asynccontextmanager
    async def _deadline(self, limit: float, subject: str = "") -> AsyncIterator[None]:
        """Limit a request to so many seconds and to the life of the connection."""
        async with asyncio.timeout(0 if self.lost.is_set() else limit) as timer:
            self._waiting[timer] = subject
            try:
                yield
            finally:
                del self._waiting[timer]

    def _unanswered(self, message: Outgoing, limit: float) -> DeliveryResult:
        if message.subject.lower() in self._denied:
            self._denied.discard(message.subject.lower())
            return DeliveryResult(
                ok=False,
                error=f"the server does not allow this user to publish to {message.subject}: give it the permission",
                code="permission",
            )
        self.lose(f"no acknowledgement from the stream {self.config.stream} within {limit:g} s")
        raise OutcomeUnknown(self.why) from None

    def _explain_refusal(self, message: Outgoing, error: APIError) -> DeliveryResult:
        stream, reason = self.config.stream, error.description or "no reason given"
        code = str(error.err_code or error.code)
        if error.err_code == _TOO_LARGE:
            text = f"the message is longer than the stream {stream} allows: raise its max_msg_size"
            return DeliveryResult(ok=False, error=text, code=code)
        if error.err_code == _WRONG_STREAM:
            text = f"another stream than {stream} accepts {message.subject}: give each stream different subjects"
            return DeliveryResult(ok=False, error=text, code=code)
        if any(text in reason.lower() for text in _FULL_TEXTS):
            text = f"the stream {stream} is full ({reason}): raise its limits or remove messages"
            return DeliveryResult(ok=False, error=text, code=code, retry_after=_FULL_SECS)
        if (error.code or 0) >= 500:
            text = f"JetStream cannot accept it now: {reason}"
            return DeliveryResult(ok=False, error=text, code=code, retry_after=_BUSY_SECS)
        return DeliveryResult(ok=False, error=f"JetStream does not accept it: {reason}", code=code)

    async def call(self, request: Awaitable[T]) -> T:
        """Return JetStream's response.

        Raises:
            NotFoundError: if the stream or consumer does not exist.
            Refusal: if JetStream refuses the request.
            Lost: if it does not respond.
        """
        try:
            async with self._deadline(self.config.connect_timeout_secs):
                return await request
        except NotFoundError as error:
            if error.err_code == _NO_STREAM or error.code == 404:
                raise
            raise Refusal(f"JetStream refuses: {error.description}") from None
        except (ServiceUnavailableError, NoRespondersError):
            raise Lost(f"JetStream does not respond at {self.where}: is it enabled (nats-server -js)?") from None
        except APIError as error:
            raise Refusal(f"JetStream refuses: {error.description}") from None
        except (NatsTimeout, TimeoutError):
            if self.denial is not None:
                raise Refusal(f"{self.denial}: give this user the permission") from None
            raise Lost(self.why or f"JetStream does not respond at {self.where}") from None
        except (Error, OSError) as error:
            raise Lost(f"the connection to {self.where} broke: {describe(error)}") from None

    def _explain(self, error: BaseException) -> Refusal | Lost:
        inner = self._last_error or error
        text = f"{error} {inner}".lower()
        if "authorization violation" in text or "authentication expired" in text or "authentication revoked" in text:
            return Refusal(f"{self.where} does not accept the credentials: check token, user and password, or the file")
        if isinstance(error, SecureConnWantedError):
            return Refusal(f"{self.where} does not offer TLS: enable it there, or use nats:// without tls options")
        if isinstance(inner, ssl.SSLError) or isinstance(error, ssl.SSLError):
            return Refusal(f"TLS with {self.where} failed: check tls.caFile, certFile and hostname")
        if isinstance(error, ValueError):
            return Refusal("the credentials cannot be used: check the file that credentials or nkeySeed names")
        if isinstance(error, TimeoutError):
            return Lost(f"{self.where} does not respond within {self.config.connect_timeout_secs:g} s")
        return Lost(f"{self.where} cannot be reached: {describe(inner)}")

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        text = str(error)
        if "permissions violation" in text.lower():
            self.denial = f"the server says {text.removeprefix('nats: ')}"
            now = asyncio.get_running_loop().time()
            for timer, subject in self._waiting.items():
                if f'"{subject}"' in text.lower():
                    self._denied.add(subject)
                    timer.reschedule(now)

    def _on_end(self) -> None:
        error = self.client.last_error or self._last_error
        self.lose(f"the connection to {self.where} ended" + (f": {describe(error)}" if error is not None else ""))


@asynccontextmanager
async def connect(config: NatsConfig, server: str, name: str) -> AsyncIterator[NatsConnection]:
    """Connect to a server for the duration of a block; raises like `NatsConnection.open`."""
    connection = NatsConnection(config, server, name)
    try:
        await connection.open()
        yield connection
    finally:
        await connection.close()
