"""One connection to a NATS server, from its handshake to its end.

1. The library's own reconnecting and buffering are off: while there is no connection nothing is sent, and what
   was waiting for an answer learns at once that none will come. The adapter makes the next link.
2. A publish ends in one of four ways: JetStream has it (or had it already), it is refused, `NotSent`, `Unsure`.
3. No acknowledgement in time ends the link: a server that does not answer gets no more messages, and the next link
   finds out what is the matter. So does a stream that has gone.
4. The server says asynchronously that something is not allowed; the publish of that subject ends with it.
5. It ends with its client (see `client`), whatever ends that.
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
from nats.js.api import PubAck
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError, ServiceUnavailableError

from relay_core.adapters.interface import DeliveryResult
from relay_supervisor.adapters.nats.client import BridgeClient
from relay_supervisor.adapters.nats.config import NatsConfig
from relay_supervisor.adapters.nats.crossing import Outgoing
from relay_supervisor.adapters.nats.faults import Lost, NotSent, Refusal, Unsure, describe
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
    """A connection; it is of no use any more once it is lost."""

    def __init__(self, config: NatsConfig, server: str, name: str) -> None:
        self.client = BridgeClient(self._ended, wants_tls=config.wants_tls)
        self.lost = asyncio.Event()
        self.why = ""
        """What ended it."""
        self.where = urlsplit(server).netloc
        self.window = 0.0
        """Seconds for which the stream knows a message again."""
        self.config = config
        self.js: JetStreamContext
        self._server = server
        self._name = name
        self._waiting: dict[asyncio.Timeout, str] = {}
        """Who waits for an answer, and the subject that it was sent to."""
        self._denied: set[str] = set()
        self.denial: str | None = None
        """What the server has said that we may not do."""
        self._last_error: BaseException | None = None

    async def open(self) -> None:
        """Connect.

        Raises:
            Refusal: if the server will not have us.
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
                    error_cb=self._heard_error,
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
        """Give a message to JetStream and wait until it has it.

        Raises:
            NotSent: if it has not left.
            Unsure: if it has, and nobody knows more.
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
            ack = await self._send(message, limit)
        except TimeoutError:
            return self._unanswered(message, limit)
        except APIError as error:
            return self._judge(message, error)
        except NoStreamResponseError:
            self.lose(f"no stream takes {message.subject}: was {self.config.stream} removed, or JetStream turned off?")
            raise NotSent(self.why) from None
        except (Error, OSError) as error:
            self.lose(f"the connection to {self.where} broke: {describe(error)}")
            raise Unsure(self.why) from None
        except (ValueError, TypeError, KeyError, AttributeError):
            return DeliveryResult(
                ok=False,
                error=f"somebody else than JetStream answers on {message.subject}: "
                "give services other subjects, or this bridge a prefix",
                code="foreign_answer",
            )
        again = ", which had it already" if ack.duplicate else ""
        return DeliveryResult(ok=True, detail=f"stream {ack.stream} #{ack.seq}{again}")

    def lose(self, why: str) -> None:
        """End the link: who waits for an answer gets none."""
        if self.lost.is_set():
            return
        self.why = why
        self.lost.set()
        now = asyncio.get_running_loop().time()
        for timer in self._waiting:
            timer.reschedule(now)

    async def close(self) -> None:
        """Let go of the connection, of a stuck one by force."""
        self.lose("the connection was closed")
        if not self.client.has_begun:
            return
        with suppress(TimeoutError, Error, OSError):
            async with asyncio.timeout(_CLOSE_SECS):
                await self.client.close()
        self.client.release()

    async def _send(self, message: Outgoing, limit: float) -> PubAck:
        async with self._patience(limit, message.subject.lower()):
            return await self.js.publish(
                message.subject,
                message.data,
                timeout=limit + 1,  # ours comes first
                stream=self.config.stream,
                headers=message.headers,
            )

    @asynccontextmanager
    async def _patience(self, limit: float, subject: str = "") -> AsyncIterator[None]:
        """Wait for an answer no longer than that, nor than the link lasts."""
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
        raise Unsure(self.why) from None

    def _judge(self, message: Outgoing, error: APIError) -> DeliveryResult:
        stream, said = self.config.stream, error.description or "no reason given"
        code = str(error.err_code or error.code)
        if error.err_code == _TOO_LARGE:
            text = f"the message is longer than the stream {stream} allows: raise its max_msg_size"
            return DeliveryResult(ok=False, error=text, code=code)
        if error.err_code == _WRONG_STREAM:
            text = f"another stream than {stream} takes {message.subject}: give each stream its own subjects"
            return DeliveryResult(ok=False, error=text, code=code)
        if any(text in said.lower() for text in _FULL_TEXTS):
            text = f"the stream {stream} is full ({said}): raise its limits or remove messages"
            return DeliveryResult(ok=False, error=text, code=code, retry_after=_FULL_SECS)
        if (error.code or 0) >= 500:
            text = f"JetStream cannot take it now: {said}"
            return DeliveryResult(ok=False, error=text, code=code, retry_after=_BUSY_SECS)
        return DeliveryResult(ok=False, error=f"JetStream does not take it: {said}", code=code)

    async def ask(self, question: Awaitable[T]) -> T:
        """Return JetStream's answer.

        Raises:
            NotFoundError: if what was asked about is not there.
            Refusal: if it will not.
            Lost: if it does not answer.
        """
        try:
            async with self._patience(self.config.connect_timeout_secs):
                return await question
        except NotFoundError as error:
            if error.err_code == _NO_STREAM or error.code == 404:
                raise
            raise Refusal(f"JetStream refuses: {error.description}") from None
        except (ServiceUnavailableError, NoRespondersError):
            raise Lost(f"JetStream does not answer at {self.where}: is it turned on (nats-server -js)?") from None
        except APIError as error:
            raise Refusal(f"JetStream refuses: {error.description}") from None
        except (NatsTimeout, TimeoutError):
            if self.denial is not None:
                raise Refusal(f"{self.denial}: give this user the permission") from None
            raise Lost(self.why or f"JetStream does not answer at {self.where}") from None
        except (Error, OSError) as error:
            raise Lost(f"the connection to {self.where} broke: {describe(error)}") from None

    def _explain(self, error: BaseException) -> Refusal | Lost:
        inner = self._last_error or error
        text = f"{error} {inner}".lower()
        if "authorization violation" in text or "authentication expired" in text or "authentication revoked" in text:
            return Refusal(f"{self.where} does not accept the credentials: check token, user and password, or the file")
        if isinstance(error, SecureConnWantedError):
            return Refusal(f"{self.where} does not offer TLS: turn it on there, or use nats:// without tls options")
        if isinstance(inner, ssl.SSLError) or isinstance(error, ssl.SSLError):
            return Refusal(f"TLS with {self.where} failed: check tls.caFile, certFile and hostname")
        if isinstance(error, ValueError):
            return Refusal("the credentials cannot be used: check the file that credentials or nkeySeed names")
        if isinstance(error, TimeoutError):
            return Lost(f"{self.where} does not answer within {self.config.connect_timeout_secs:g} s")
        return Lost(f"{self.where} cannot be reached: {describe(inner)}")

    async def _heard_error(self, error: Exception) -> None:
        self._last_error = error
        text = str(error)
        if "permissions violation" in text.lower():
            self.denial = f"the server says {text.removeprefix('nats: ')}"
            now = asyncio.get_running_loop().time()
            for timer, subject in self._waiting.items():
                if f'"{subject}"' in text.lower():
                    self._denied.add(subject)
                    timer.reschedule(now)

    def _ended(self) -> None:
        error = self.client.last_error or self._last_error
        self.lose(f"the connection to {self.where} ended" + (f": {describe(error)}" if error is not None else ""))


@asynccontextmanager
async def open_link(config: NatsConfig, server: str, name: str) -> AsyncIterator[NatsConnection]:
    """Connect to a server, and let go of it again.

    Raises:
        Refusal: if the server will not have us.
        Lost: if it cannot be reached.
    """
    link = NatsConnection(config, server, name)
    try:
        await link.open()
        yield link
    finally:
        await link.close()
