"""The stream and this relay's consumer, found or made, and seen to be fit for what the bridge does with them.

1. The stream must take what we export and have what we import. It is only made if the configuration says so.
2. The consumer is made where the relay left off (`position`), or else where `importFrom` says. One that is there is
   brought in line with the configuration. What cannot be changed, and would lose messages, is refused: acknowledging
   not at all or in heaps, pushing, sending headers alone.
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
from relay_supervisor.adapters.nats.position import Position
from relay_supervisor.adapters.nats.put_off import MAX_PENDING


async def prepare_stream(link: NatsConnection) -> None:
    """Find the stream, or make it, and see that it takes what we export and has what we import.

    Raises:
        Refusal: if there is none, or it does not fit.
        Lost: if JetStream does not answer.
    """
    config = link.config
    try:
        info = await link.ask(link.js.stream_info(config.stream))
    except NotFoundError:
        info = await _make_stream(link)
    link.window = float(info.config.duplicate_window or 0)
    taken = info.config.subjects or []
    fed_by_others = info.config.sources or info.config.mirror
    wanted = [*config.export, *(() if fed_by_others else config.import_)]
    for pattern in map(config.outside, wanted):
        if not any(pattern_covers(one, pattern) for one in taken):
            raise Refusal(
                f"the stream {config.stream} takes {', '.join(taken) or 'nothing'}, but not {pattern}: "
                f"run 'nats stream edit {config.stream} --subjects ...' to add it, or change the patterns"
            )


async def prepare_consumer(link: NatsConnection, durable: str, known: Position | None) -> Position:
    """Find this relay's consumer, or make it, bring it in line with the configuration, and return where it is.

    Raises:
        Refusal: if it cannot be had.
        Lost: if JetStream does not answer.
    """
    config = link.config
    here = Position(stream=config.stream, made_at=await _made_at(link), durable=durable, settled=0)
    try:
        found = (await link.ask(link.js.consumer_info(config.stream, durable))).config
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
    return here.model_copy(update={"settled": _floor(await link.ask(link.js.add_consumer(config.stream, wanted)))})


async def find_settled(link: NatsConnection, durable: str) -> int:
    """Return the number up to which the server knows everything to be settled.

    Raises:
        Fault: if it cannot be learnt now.
    """
    try:
        return _floor(await link.ask(link.js.consumer_info(link.config.stream, durable)))
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
        fault = "does not have each message acknowledged (ack policy 'explicit')"
    elif found.headers_only:
        fault = "sends headers without their messages"
    else:
        return
    raise Refusal(
        f"the consumer {durable} {fault}: give this bridge a durable of its own, "
        f"or remove that one ('nats consumer rm {config.stream} {durable}')"
    )


async def _made_at(link: NatsConnection) -> str:
    """Return when the stream was made; not every version of the library says so."""
    config = link.config
    answer = await link.ask(
        link.client.request(f"{config.api}.STREAM.INFO.{config.stream}", timeout=config.connect_timeout_secs)
    )
    return str(orjson.loads(answer.data).get("created"))


async def _make_stream(link: NatsConnection) -> StreamInfo:
    config = link.config
    if not config.create_stream:
        subjects = ",".join(config.stream_subjects())
        raise Refusal(
            f"there is no stream {config.stream}: make it ('nats stream add {config.stream} "
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
        return await link.ask(link.js.add_stream(wanted))
    except Refusal:
        with suppress(NotFoundError):  # another relay may have been faster
            return await link.ask(link.js.stream_info(config.stream))
        raise


def _widest(patterns: tuple[str, ...]) -> list[str]:
    """Return the patterns without those that another one covers: a consumer's filters must not overlap."""
    unique = list(dict.fromkeys(patterns))
    return [one for one in unique if not any(other != one and pattern_covers(other, one) for other in unique)]
