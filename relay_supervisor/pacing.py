"""How the methods of one connection go together, where they do not just run side by side."""

from __future__ import annotations

LARGE = frozenset(
    {
        "inbox.peek",
        "inbox.claim",
        "deadletters.list",
        "deadletters.summaries",
        "deadletters.get",
        "deadletters.items",
        "deadletters.export",
        "traces.search",
        "traces.get",
        "traces.conversation",
        "reports.get",
    }
)
"""Methods whose answer may be megabytes, and does not keep others waiting for long."""
PATIENT = frozenset({"inbox.wait"})
"""Methods that wait for something that may never come: whoever hangs up meanwhile does not want the answer."""
ORDERED = frozenset(
    {
        "subscribe",
        "unsubscribe",
        "inbox.peek",
        "inbox.claim",
        "inbox.complete",
        "inbox.fail",
        "endpoints.register",
        "endpoints.unregister",
        "access.add",
        "access.remove",
        "tokens.add",
        "tokens.remove",
        "agents.add",
        "agents.remove",
    }
)
"""Methods that are quick, and that what is asked next may count on."""
