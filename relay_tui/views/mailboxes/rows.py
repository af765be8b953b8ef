"""The rows of mailboxes and senders: columns, sort orders and cells."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from relay_core.protocol.live_state import LiveMailbox, LiveSender
from relay_core.text.bars import bar
from relay_core.text.sanitize import clean
from relay_core.text.units import about, number, time_until
from relay_tui.live.store import Store
from relay_tui.views.states import mailbox_state, sender_state, share_of, trend_of
from relay_tui.widgets.table import Column, Row

_BAR = 10
_TREND_SECS = 10.0
_NEVER = 1 << 62

BOX_COLUMNS = (
    Column("SUBJECT"),
    Column("STATE", 10),
    Column("PRESSURE", _BAR + 5, from_width=90),
    Column("DEPTH", 6, right=True),
    Column("", 1),
    Column("OLDEST", 6, right=True),
    Column("EMPTY IN", 8, right=True),
    Column("CLAIMED", 7, right=True, from_width=100),
    Column("FAILED", 6, right=True, from_width=80),
    Column("CONS", 4, right=True, from_width=100),
    Column("KIND", 12, from_width=110),
)
SENDER_COLUMNS = (
    Column("SENDER"),
    Column("STATE", 10),
    Column("USED", _BAR + 5),
    Column("COUNT", 7, right=True),
    Column("LIMIT", 7, right=True),
    Column("WINDOW", 6, right=True, from_width=90),
    Column("RESETS", 8, right=True),
)

SORTS: dict[str, Callable[[LiveMailbox], float] | None] = {
    # In steps, so that rows of similar pressure do not swap all the time.
    "pressure": lambda box: -100 if box.degraded else -ceil(share_of(box.pressure) * 100) / 100 or not box.depth,
    "depth": lambda box: -box.depth,
    "oldest": lambda box: box.oldest_at if box.oldest_at is not None else _NEVER,
    "name": None,
}


def by_count(sender: LiveSender) -> float:
    """Return the rank of a sender: most messages first."""
    return -sender.count


def box_row(store: Store, key: str) -> Row:
    """Return the row of a mailbox."""
    box = store.state.mailboxes.get(key)
    if box is None:  # removed since the last sort
        return Row(key, ("–",) * len(BOX_COLUMNS))
    state, style = mailbox_state(box, store.warning_at)
    change, _ = store.history.depth.change(key, box.depth, _TREND_SECS) if box.depth else (0, 0)
    return Row(
        key,
        (
            clean(box.subject),
            (state, style),
            (f"{bar(box.pressure, _BAR)} {share_of(box.pressure):4.0%}", style),
            number(box.depth),
            trend_of(change),
            about((store.now_ms() - box.oldest_at) / 1000) if box.oldest_at is not None else "–",
            about(store.history.drained_in(key, box.depth)) if box.depth else "–",
            str(box.claimed),
            (number(box.failed), "bad" if box.failed else ""),
            str(box.consumers),
            (box.kind if box.registered else "unregistered", "dim"),
        ),
    )


def sender_row(store: Store, name: str) -> Row:
    """Return the row of a sender."""
    sender = store.state.senders.get(name)
    if sender is None:
        return Row(name, (clean(name), *("–",) * (len(SENDER_COLUMNS) - 1)))
    state, style = sender_state(sender)
    share = sender.count / max(sender.limit, 1)
    return Row(
        name,
        (
            clean(name),
            (state, style),
            (f"{bar(share, _BAR)} {share_of(share):4.0%}", style),
            number(sender.count),
            number(sender.limit),
            f"{sender.window_secs}s",
            time_until(sender.resets_at, store.now_ms()),
        ),
    )
