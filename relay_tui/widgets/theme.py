"""Four themes, and the named styles that screens use instead of colours.

1. The name of a style is its meaning (`ok`, `warn`, `bad`, …). No screen names a colour.
2. A state is never shown by its style alone: a word or a sign says the same, so that nothing is lost with NO_COLOR, on
   a monochrome terminal, or to a colour-blind operator.
3. The row under the cursor has another background, and a sign in its first column.
"""

from __future__ import annotations

from typing import NamedTuple

from rich.style import Style
from textual.theme import Theme


class Colours(NamedTuple):
    """The colours of a theme, by meaning."""

    ground: str
    text: str
    dim: str
    ok: str
    warn: str
    bad: str
    accent: str
    bar: str
    """The background of header and footer."""
    cursor: str
    """The background of the row under the cursor."""
    dark: bool = True


COLOURS = {
    "dark": Colours("#101418", "#d6dde4", "#7d8a96", "#6cc24a", "#e5b83c", "#f2637e", "#58b8f0", "#1b232b", "#27435c"),
    "light": Colours(
        "#fbfbf8", "#20262c", "#66707a", "#237a1c", "#8a5a00", "#b8143c", "#0a60a8", "#e6e8e4", "#cfe2f5", dark=False
    ),
    # Blue, orange and vermilion differ for the common kinds of colour blindness (after Okabe and Ito).
    "colour-blind": Colours(
        "#101418", "#e4e8ec", "#8a949e", "#56b4e9", "#e69f00", "#ff7a45", "#f0e442", "#1b232b", "#2c3f57"
    ),
}
ANSI = "ansi"
"""The sixteen colours of the terminal."""
THEMES = (*COLOURS, ANSI)
UNDER_CURSOR = " under cursor"
"""Ends the name of a style with the background of the cursor."""


def textual_themes() -> list[Theme]:
    """Return the themes as Textual themes, for dialogs and inputs."""
    return [
        Theme(
            name=f"relay-{name}",
            primary=colours.accent,
            secondary=colours.ok,
            warning=colours.warn,
            error=colours.bad,
            success=colours.ok,
            accent=colours.accent,
            foreground=colours.text,
            background=colours.ground,
            surface=colours.ground,
            panel=colours.bar,
            dark=colours.dark,
        )
        for name, colours in COLOURS.items()
    ]


def textual_name(theme: str) -> str:
    """Return Textual's name of a theme."""
    return "ansi-dark" if theme == ANSI else f"relay-{theme}"


class Palette:
    """The styles of one theme, by name."""

    def __init__(self, theme: str) -> None:
        styles = _ansi_styles() if theme == ANSI else _styles(COLOURS[theme])
        cursor = styles["cursor"]
        self._styles = styles | {f"{name}{UNDER_CURSOR}": style + cursor for name, style in styles.items()}

    def __getitem__(self, name: str) -> Style:
        return self._styles[name]


def _styles(colours: Colours) -> dict[str, Style]:
    ground = colours.ground

    def of(colour: str, on: str = ground, *, bold: bool | None = None, underline: bool | None = None) -> Style:
        return Style(color=colour, bgcolor=on, bold=bold, underline=underline)

    return {
        "": of(colours.text),
        "dim": of(colours.dim),
        "strong": of(colours.text, bold=True),
        "title": of(colours.accent, bold=True),
        "head": of(colours.dim, underline=True),
        "ok": of(colours.ok),
        "warn": of(colours.warn),
        "bad": of(colours.bad, bold=True),
        "accent": of(colours.accent),
        "bar": of(colours.text, colours.bar),
        "bar-dim": of(colours.dim, colours.bar),
        "bar-ok": of(colours.ok, colours.bar),
        "bar-warn": of(colours.warn, colours.bar, bold=True),
        "bar-bad": of(colours.bad, colours.bar, bold=True),
        "key": of(colours.accent, colours.bar, bold=True),
        "banner": of(colours.ground, colours.warn, bold=True),
        "cursor": Style(bgcolor=colours.cursor),
        "mark": of(colours.accent, bold=True),
    }


def _ansi_styles() -> dict[str, Style]:
    return {
        "": Style(),
        "dim": Style(color="bright_black"),
        "strong": Style(bold=True),
        "title": Style(color="blue", bold=True),
        "head": Style(underline=True),
        "ok": Style(color="green"),
        "warn": Style(color="yellow"),
        "bad": Style(color="red", bold=True),
        "accent": Style(color="cyan"),
        "bar": Style(reverse=True),
        "bar-dim": Style(reverse=True),
        "bar-ok": Style(reverse=True),
        "bar-warn": Style(reverse=True, bold=True),
        "bar-bad": Style(reverse=True, bold=True),
        "key": Style(reverse=True, bold=True),
        "banner": Style(color="yellow", reverse=True, bold=True),
        "cursor": Style(reverse=True),
        "mark": Style(color="cyan", bold=True),
    }
