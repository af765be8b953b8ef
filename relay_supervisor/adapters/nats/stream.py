"""Finds or creates the stream and this relay's consumer, and checks that the bridge can use them.

1. The stream must accept the exported subjects and contain the imported ones. It is created only if the config says so.
2. A new consumer starts at the saved position (`files`), or where `importFrom` says. An existing one is updated to the
   config. Settings that cannot be changed and would lose messages are refused: no acknowledgement of each message,
   push delivery, headers without bodies.
"""

from __future__ import annotations

from contextlib import suppress

import orjson
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    ConsumerInfo,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamInfo,
)
from nats.js.errors import NotFoundError

from relay_core.messages.subjects import pattern_covers
from relay_supervisor.adapters.nats.config import NatsConfig
from relay_supervisor.adapters.nats.connection import NatsConnection
from relay_supervisor.adapters.nats.faults import Refusal
from relay_supervisor.adapters.nats.files import Position
from relay_supervisor.adapters.nats.put_off import MAX_PENDING


async def prepare_stream(connection: NatsConnection) -> None:
    """Find or create the stream, and check its subjects.

    Raises:
        Refusal: if there is none, or it does not fit.
        Lost: if JetStream does not respond.
    """
    config = connection.config
    try:
        info = await connection.call(connection.js.stream_info(config.stream))
    except NotFoundError:
        info = await _create_stream(connection)
    connection.window = float(info.config.duplicate_window or 0)
    accepted = info.config.subjects or []
    fed_by_others = info.config.sources or info.config.mirror
    wanted = [*config.export, *(() if fed_by_others else config.import_)]
    for pattern in map(config.outside, wanted):
        if not any(pattern_covers(subjects, pattern) for subjects in accepted):
            raise Refusal(
                f"the stream {config.stream} accepts {', '.join(accepted) or 'nothing'}, but not {pattern}: "
                f"run 'nats stream edit {config.stream} --subjects ...' to add it, or change the patterns"
            )


async def prepare_consumer(connection: NatsConnection, durable: str, known: Position | None) -> Position:
    """Find or create this relay's consumer, update it to the config, and return its position.

    Raises:
        Refusal: if it cannot be used.
        Lost: if JetStream does not respond.
    """
    config = connection.config
    here = Position(stream=config.stream, made_at=await _made_at(connection), durable=durable, settled=0)
    try:
        found = (await connection.call(connection.js.consumer_info(config.stream, durable))).config
    except NotFoundError:
        found = _new_consumer(config, here, known)
    _check_consumer(found, config, durable)
    wanted = found.evolve(
        name=durable,
        filter_subject=None,
        filter_subjects=[config.outside(pattern) for pattern in _widest(config.import_)],
        ack_wait=config.ack_wait_secs,
        max_ack_pending=MAX_PENDING,
        max_deliver=-1,
    )
    return here.model_copy(
        update={"settled": _floor(await connection.call(connection.js.add_consumer(config.stream, wanted)))}
    )


async def find_settled(connection: NatsConnection, durable: str) -> int:
    """Return the sequence number up to which everything is settled; raises Fault."""
    try:
        return _floor(await connection.call(connection.js.consumer_info(connection.config.stream, durable)))
    except NotFoundError:
        return 0


def _floor(info: ConsumerInfo) -> int:
    return info.ack_floor.stream_seq if info.ack_floor is not None else 0


def _new_consumer(config: NatsConfig, here: Position, known: Position | None) -> ConsumerConfig:
    fresh = ConsumerConfig(
        name=here.durable, durable_name=here.durable, description="a Relay bridge", ack_policy=AckPolicy.EXPLICIT
    )
    if known is not None and known.model_copy(update={"settled": 0}) == here:
        return fresh.evolve(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=known.settled + 1)
    return fresh.evolve(deliver_policy=DeliverPolicy.ALL if config.import_from == "all" else DeliverPolicy.NEW)


def _check_consumer(found: ConsumerConfig, config: NatsConfig, durable: str) -> None:
    if found.deliver_subject is not None:
        fault = "is a push consumer"
    elif found.ack_policy != AckPolicy.EXPLICIT:
        fault = "does not require an acknowledgement of each message (ack policy 'explicit')"
    elif found.headers_only:
        fault = "sends headers without bodies"
    else:
        return
    raise Refusal(
        f"the consumer {durable} {fault}: give this bridge another durable, "
        f"or remove that one ('nats consumer rm {config.stream} {durable}')"
    )


async def _made_at(connection: NatsConnection) -> str:
    """Return the creation time of the stream, which not every supported version of nats-py parses."""
    config = connection.config
    answer = await connection.call(
        connection.client.request(f"{config.api}.STREAM.INFO.{config.stream}", timeout=config.connect_timeout_secs)
    )
    return str(orjson.loads(answer.data).get("created"))


async def _create_stream(connection: NatsConnection) -> StreamInfo:
    config = connection.config
    if not config.create_stream:
        subjects = ",".join(config.stream_subjects())
        raise Refusal(
            f"there is no stream {config.stream}: create it ('nats stream add {config.stream} "
            f'--subjects "{subjects}"\'), or set createStream'
        )
    wanted = StreamConfig(
        name=config.stream,
        description="messages between Relays",
        subjects=config.stream_subjects(),
        retention=RetentionPolicy.LIMITS,
        discard=DiscardPolicy.OLD,
        storage=StorageType.FILE,
        max_age=config.stream_max_age_secs,
        num_replicas=config.stream_replicas,
        duplicate_window=config.dedupe_window_secs,
    )
    try:
        return await connection.call(connection.js.add_stream(wanted))
    except Refusal:
        with suppress(NotFoundError):  # another relay may have created it
            return await connection.call(connection.js.stream_info(config.stream))
        raise


def _widest(patterns: tuple[str, ...]) -> list[str]:
    """Return the patterns that no other one covers: a consumer's filters must not overlap."""
    unique = list(dict.fromkeys(patterns))
    return [inner for inner in unique if not any(outer != inner and pattern_covers(outer, inner) for outer in unique)]
