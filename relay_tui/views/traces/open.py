"""A conversation that is looked at: what is known of it, which part is shown, and how to ask again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relay_core.delivery import Span
from relay_tui.views.traces.waterfall import Waterfall

if TYPE_CHECKING:
    from relay_core.client import RelayClient

MOST_SPANS = 1000
"""What the bus returns of one conversation."""


class OpenTrace:
    """A conversation as the bus last told it, or the part of it that followed from one message."""

    def __init__(self, message_id: str, spans: Sequence[Span], root: str | None = None) -> None:
        self.message_id = message_id
        """The message that was asked for."""
        self.spans = spans
        self.root = root
        """The message that the part begins with; None for all of it."""
        self.waterfall = Waterfall(spans, root)

    def part(self, root: str | None) -> OpenTrace:
        """Return what followed from one message, on an axis of its own."""
        return OpenTrace(self.message_id, self.spans, root)

    def span(self, key: str | None) -> Span | None:
        """Return the span with a key."""
        at = self.waterfall.find(key or "")
        return self.waterfall.nodes[at].span if at is not None else None


async def ask_trace(client: RelayClient, message_id: str) -> list[Span]:
    """Return the spans of the conversation that a message belongs to, its own among them; none if nobody knows it."""
    own = await client.trace(message_id)
    if not own:
        return []
    spans = await client.conversation(own[0].trace_id)
    known = {(span.message_id, span.target) for span in spans}
    return [*spans, *(span for span in own if (span.message_id, span.target) not in known)]
