"""The lines above and below every screen: the state of the connection, and the keys of the screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textual import events
from textual.message import Message

from relay_core.text.sanitize import clean
from relay_core.text.units import clock_time, format_duration, plural
from relay_tui.live.alerts import Alert
from relay_tui.live.store import Store
from relay_tui.shell.actions import Action
from relay_tui.widgets.styled_lines import Line, Lines, Piece, line, width_of

_CONNECTIONS = {
    "connecting": ("◌ connecting", "bar-dim"),
    "live": ("● live", "bar-ok"),
    "silent": ("◌ silent", "bar-bad"),
    "lost": ("○ lost", "bar-bad"),
    "absent": ("○ no supervisor", "bar-bad"),
    "refused": ("○ refused", "bar-bad"),
}
_DURABILITY = {"fsync": "fsync: survives power loss", "os": "os: survives kill -9"}
_KEY_NAMES = {"escape": "esc", "space": "␣", "question_mark": "?"}

_WIDE = 100

STARTING: Line = line((" relay ", "key"), ("◌ starting", "bar-dim"))


class HeaderState(NamedTuple):
    """The part of the header's content that is not in the store."""

    title: str
    alerts: Sequence[Alert]
    paused: bool
    read_only: bool
    demo: bool


def header_line(store: Store, state: HeaderState, width: int) -> Line:
    """Return the header; parts that do not fit are dropped from the right, but never the clock."""
    title, alerts, paused, read_only, demo = state
    text, style = _CONNECTIONS["refused" if store.is_refused else store.connection]
    if demo and store.connection == "absent":
        text, style = _CONNECTIONS["connecting"]
    parts: list[list[Piece]] = [[(" relay ", "key"), (f"{title} ", "bar")], [(text, style)]]
    if store.is_live and store.lag_ms is not None:
        parts[-1].append((f" {format_duration(store.lag_ms / 1000)}", "bar-dim"))
    if paused:
        parts.append([("❚❚ paused", "bar-warn")])
    if not (store.is_live and store.state.at):
        parts.append([("alerts unknown", "bar-dim")])
    elif alerts:
        bad = any(alert.style == "bad" for alert in alerts)
        parts.append([(f"▲ {plural(len(alerts), 'alert')}", "bar-bad" if bad else "bar-warn")])
    else:
        parts.append([("✓ no alerts", "bar-ok")])
    if read_only:
        parts.append([("read-only", "bar-warn")])
    if demo:
        parts.append([("demo", "bar-warn")])
    if store.info is not None:
        parts.append([(_DURABILITY.get(store.info.durability, clean(store.info.durability)), "bar-dim")])
        if not demo:
            parts.append([(clean(store.info.data_dir), "bar-dim")])
    time: Piece = (f" {clock_time(store.now_ms())}Z ", "bar")
    shown: list[Piece] = []
    for part in parts:
        more = [*([(" │ ", "bar-dim")] if len(shown) > 1 else []), *part]
        if width_of([*shown, *more, time]) > width:
            break
        shown += more
    gap = width - width_of([*shown, time])
    return (*shown, (" " * max(gap, 0), "bar"), time)


def banner_line(store: Store, width: int) -> Line | None:
    """Return the warning about a lost or unresponsive supervisor, or None."""
    if store.connection not in ("lost", "silent"):
        return None
    since = format_duration(round(store.silent_secs()))
    problem = "the supervisor does not respond" if store.connection == "silent" else "the connection is lost"
    if not store.state.at:
        return line((f" ⚠ {problem} for {since}. Retrying. ", "banner"))
    at = clock_time(store.state.at)
    if width < _WIDE:
        return line((f" ⚠ STALE: {problem} ({since}); as of {at}Z ", "banner"))
    return line((f" ⚠ STALE: {problem} for {since}; showing the state of {at}Z. Retrying. ", "banner"))


class Header(Lines):
    """The line above every screen; a click lists the alerts."""

    class Clicked(Message):
        """The header was clicked."""

    def __init__(self) -> None:
        super().__init__([STARTING], ground="bar", id="header")

    def on_click(self) -> None:
        self.post_message(self.Clicked())


class Hints(Lines):
    """The keys of this screen; a click runs an action."""

    class Clicked(Message):
        """A hint was clicked."""

        def __init__(self, action: Action) -> None:
            super().__init__()
            self.action = action

    def __init__(self) -> None:
        super().__init__(ground="bar", id="hints")
        self._actions: Sequence[Action] = ()
        self._spans: list[tuple[int, int, Action]] = []

    def offer(self, actions: Sequence[Action], *, typing: bool) -> None:
        """Show as many actions as fit, but always help and the keys of the screens.

        In a text field, characters are typed: then only other keys are offered.
        """
        self._spans.clear()
        pieces: list[Piece] = []
        last: list[Piece] = [] if typing else [("  1-7 R J", "key"), (" screens ", "bar")]
        shown = [action for action in actions if action.label and action.key and not (typing and len(action.key) == 1)]
        if not typing:  # help comes first, so that nothing displaces it
            shown.sort(key=lambda action: action.name != "help")
        for action in shown:
            more = [(f" {_KEY_NAMES.get(action.key or '', action.key)}", "key"), (f" {action.label} ", "bar")]
            begin = width_of(pieces)
            if begin + width_of(more) + width_of(last) > self.size.width:
                break
            pieces += more
            self._spans.append((begin, width_of(pieces), action))
        pieces += last
        self.show([tuple(pieces)])

    def on_click(self, event: events.Click) -> None:
        for begin, end, action in self._spans:
            if begin <= event.x < end:
                self.post_message(self.Clicked(action))
