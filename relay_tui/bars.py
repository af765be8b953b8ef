"""The lines above and below every screen: how it stands with the connection, and what can be done here."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.message import Message

from relay_tui.actions import Action
from relay_tui.alerts import Alert
from relay_tui.lines import Line, Lines, Piece, line, width_of
from relay_tui.safe import clean
from relay_tui.store import Store
from relay_tui.words import clock_time, lasting, plural

_LINKS = {
    "connecting": ("◌ connecting", "bar-dim"),
    "live": ("● live", "bar-ok"),
    "silent": ("◌ silent", "bar-bad"),
    "lost": ("○ lost", "bar-bad"),
    "absent": ("○ nobody there", "bar-bad"),
    "refused": ("○ refused", "bar-bad"),
}
_PROMISES = {"fsync": "fsync: survives power loss", "os": "os: survives kill -9"}
_KEY_NAMES = {"escape": "esc", "space": "␣", "question_mark": "?"}

_WIDE = 100

STARTING: Line = line((" relay ", "key"), ("◌ starting", "bar-dim"))


def header_line(
    store: Store, alerts: Sequence[Alert], width: int, *, title: str, paused: bool, read_only: bool, demo: bool
) -> Line:
    """Return the header: what does not fit is left out from the right, and the clock is always there."""
    text, style = _LINKS["refused" if store.is_refused else store.link]
    if demo and store.link == "absent":
        text, style = _LINKS["connecting"]
    parts: list[list[Piece]] = [[(" relay ", "key"), (f"{title} ", "bar")], [(text, style)]]
    if store.is_live and store.lag_ms is not None:
        parts[-1].append((f" {lasting(store.lag_ms / 1000)}", "bar-dim"))
    if paused:
        parts.append([("❚❚ paused", "bar-warn")])
    if not (store.is_live and store.state.at):
        parts.append([("alerts unknown", "bar-dim")])
    elif alerts:
        bad = any(alert.style == "bad" for alert in alerts)
        parts.append([(f"▲ {plural(len(alerts), 'alert')}", "bar-bad" if bad else "bar-warn")])
    else:
        parts.append([("✓ calm", "bar-ok")])
    if read_only:
        parts.append([("read-only", "bar-warn")])
    if demo:
        parts.append([("demo", "bar-warn")])
    if store.info is not None:
        parts.append([(_PROMISES.get(store.info.durability, clean(store.info.durability)), "bar-dim")])
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
    """Return what must not be overlooked, or None."""
    if store.link not in ("lost", "silent"):
        return None
    since = lasting(round(store.silent_secs()))
    what = "the supervisor does not answer" if store.link == "silent" else "the connection is lost"
    if not store.state.at:
        return line((f" ⚠ {what} for {since}. Trying again. ", "banner"))
    if width < _WIDE:
        return line((f" ⚠ STALE: {what} ({since}); as of {clock_time(store.state.at)}Z ", "banner"))
    at = clock_time(store.state.at)
    return line((f" ⚠ STALE: {what} for {since}; this is how it was at {at}Z. Trying again. ", "banner"))


class Header(Lines):
    """The line above every screen; a click on it lists the alerts."""

    class Clicked(Message):
        """It was clicked."""

    def __init__(self) -> None:
        super().__init__([STARTING], ground="bar", id="header")

    def on_click(self) -> None:
        """Say so."""
        self.post_message(self.Clicked())


class Hints(Lines):
    """What can be done on this screen, in one line; a click does it."""

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
        """Show actions, as many as there is room for, but help and the other screens always.

        While a text is typed, characters stand for themselves: then only other keys are offered.
        """
        self._spans.clear()
        pieces: list[Piece] = []
        last: list[Piece] = [] if typing else [("  1-7 R J", "key"), (" screens ", "bar")]
        shown = [one for one in actions if one.label and one.key and not (typing and len(one.key) == 1)]
        if not typing:  # help, where nothing must push it out
            shown.sort(key=lambda one: one.name != "help")
        for one in shown:
            more = [(f" {_KEY_NAMES.get(one.key or '', one.key)}", "key"), (f" {one.label} ", "bar")]
            begin = width_of(pieces)
            if begin + width_of(more) + width_of(last) > self.size.width:
                break
            pieces += more
            self._spans.append((begin, width_of(pieces), one))
        pieces += last
        self.show([tuple(pieces)])

    def on_click(self, event: events.Click) -> None:
        """Do what was clicked."""
        for begin, end, one in self._spans:
            if begin <= event.x < end:
                self.post_message(self.Clicked(one))
