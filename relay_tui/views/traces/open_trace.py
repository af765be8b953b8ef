"""A conversation that is open: its spans, and the part that is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relay_core.messages.delivery import Span
from relay_tui.views.traces.waterfall import Waterfall

if TYPE_CHECKING:
    from relay_core.client.client import RelayClient

MOST_SPANS = 1000
"""The supervisor's limit for one conversation."""


class OpenTrace:
    """The spans of a conversation, or of the part that followed from one message."""

    def __init__(self, message_id: str, spans: Sequence[Span], root: str | None = None) -> None:
        self.message_id = message_id
        """The message that was opened."""
        self.spans = spans
        self.root = root
        """The first message of the part; None for the whole conversation."""
        self.waterfall = Waterfall(spans, root)

    def part(self, root: str | None) -> OpenTrace:
        """Return the part that followed from a message, with its own time axis."""
        return OpenTrace(self.message_id, self.spans, root)

    def span(self, key: str | None) -> Span | None:
        """Return the span with a key."""
        at = self.waterfall.find(key or "")
        return self.waterfall.nodes[at].span if at is not None else None


async def fetch_spans(client: RelayClient, message_id: str) -> list[Span]:
    """Return the spans of the conversation of a message, its own included; empty if there is no trace."""
    own = await client.trace(message_id)
    if not own:
        return []
    spans = await client.conversation(own[0].trace_id)
    known = {(span.message_id, span.target) for span in spans}
    return [*spans, *(span for span in own if (span.message_id, span.target) not in known)]
