"""Plots as inline SVG: columns over hours and days, ranges on a logarithmic scale, small trends.

1. A drawing fills the available width and has a fixed height: horizontal positions are percentages and text is not
   stretched, so letters keep their size on a phone.
2. Every drawing has a title and a description for screen readers, and takes its colours from the page's style sheet by
   class. Nothing relies on colour alone: highlights also have a mark, a dash or a number.
3. An unknown value is a gap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from spark.report.markup import Markup, element, joined
from spark.report.wording import format_value

_HEIGHT = 150
_TOP = 18
_BOTTOM = 20

Values = Sequence[float | None]


def columns(
    name: str,
    title: str,
    about: str,
    values: Values,
    *,
    labels: Sequence[str],
    ticks: Sequence[tuple[int, str]],
    unit: str,
    usual: float | None = None,
    chosen: int | None = None,
) -> Markup:
    """Return a plot of columns; `ticks` are the labels below, `usual` is a dashed line, `chosen` is highlighted."""
    top = nice_top(max([*(value or 0 for value in values), usual or 0]))
    room, step = _HEIGHT - _TOP - _BOTTOM, 100 / len(values)
    peak = max(range(len(values)), key=lambda at: values[at] or 0)

    def y(value: float) -> float:
        return _TOP + room * (1 - value / top)

    parts = [_line("axis", 0, 100, y(0))]
    for value in (top / 2, top):
        label = format_value(value, unit)
        parts.append(_line("grid", 0, 100, y(value)))
        parts.append(element("text", label, class_="tick", x="-8", y=f"{y(value) + 4:.1f}", text_anchor="end"))
    for at, value in enumerate(value or 0 for value in values):
        if value > 0:
            height = max(room * value / top, 1.5)
            parts.append(
                element(
                    "rect",
                    element("title", f"{labels[at]}: {format_value(value, unit)}"),
                    class_="column chosen" if at == chosen else "column",
                    x=f"{at * step + step * 0.14:.2f}%",
                    y=f"{_TOP + room - height:.1f}",
                    width=f"{step * 0.72:.2f}%",
                    height=f"{height:.1f}",
                    rx="1.5",
                )
            )
    marked = chosen if chosen is not None else peak
    if value := values[marked] or 0:
        anchor = _anchor((marked + 0.5) * step, 12)
        across = (marked + {"start": 0, "middle": 0.5, "end": 1}[anchor]) * step
        parts.append(_text(across, max(y(value) - 5, 10), format_value(value, unit), anchor, "peak"))
    if usual is not None:
        parts.append(_line("usual", 0, 100, y(usual)))
    last = len(values) - 1
    anchors = {0: "start", last: "end"}
    parts += [_text((at + 0.5) * step, _HEIGHT - 5, word, anchors.get(at, "middle")) for at, word in ticks]
    return _drawing(name, title, about, _HEIGHT, parts)


def ranges(
    name: str,
    title: str,
    about: str,
    low: float | None,
    middle: float | None,
    high: float | None,
    scale: tuple[float, float],
) -> Markup:
    """Return one row of a plot of ranges: a dot (p50), a bar to a diamond (p95), a thin line to an end (p99)."""
    x = [_log_share(value, scale) for value in (low, middle, high)]
    parts = [_line("grid", share, share, 0, 18) for share in decades(scale)]
    known = [at for at in x if at is not None]
    if len(known) > 1:
        parts.append(_line("whisker", min(known), max(known), 9))
    if x[0] is not None and x[1] is not None:
        parts.append(_line("range", x[0], x[1], 9))
    if x[2] is not None:
        parts.append(_line("stop", x[2], x[2], 4, 14))
    if x[1] is not None:  # a rotated square, because the coordinates of a path cannot be percentages
        mark = element("rect", class_="middle", x="-4", y="-4", width="8", height="8", transform="rotate(45)")
        parts.append(element("svg", mark, x=f"{x[1]:.2f}%", y="9", overflow="visible", width="1", height="1"))
    if x[0] is not None:
        parts.append(element("circle", class_="low", cx=f"{x[0]:.2f}%", cy="9", r="4"))
    return _drawing(name, title, about, 18, parts)


def scale_row(scale: tuple[float, float], unit: str) -> Markup:
    """Return the labels under a plot of ranges."""
    shares = decades(scale)
    values = [10.0**power for power in _powers(scale)]
    parts = [
        _text(share, 12, _power_words(value, unit), _anchor(share, 2))
        for share, value in zip(shares, values, strict=True)
    ]
    return element("svg", *parts, class_="plot", width="100%", height="16", aria_hidden="true")


def trend(name: str, title: str, values: Values, unit: str) -> Markup:
    """Return a small line over the days, with a dot on the last one."""
    known = [value for value in values if value is not None]
    top, low = max(known, default=0), min(known, default=0)
    spread = (top - low) or 1

    def y(value: float) -> float:
        return 23 - 19 * (value - low) / spread if top != low else 14

    step = 96 / max(len(values) - 1, 1)
    parts = [
        _line("trend", at * step, (at + 1) * step, y(a), y(b))
        for at, (a, b) in enumerate(pairwise(values))
        if a is not None and b is not None
    ]
    if values and values[-1] is not None:
        parts.append(element("circle", class_="now", cx="96%", cy=f"{y(values[-1]):.1f}", r="3"))
    about = f"From {format_value(low, unit)} to {format_value(top, unit)} over {len(values)} days."
    return _drawing(name, title, about, 28, parts)


def nice_top(value: float) -> float:
    """Return a round number at or above a value whose half is round as well."""
    if value <= 10:
        return max(math.ceil(value / 2) * 2, 2)
    size: float = 10.0 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10) if step * size >= value)


def log_scale(values: Values) -> tuple[float, float]:
    """Return the powers of ten around values."""
    known = [value for value in values if value is not None and value > 0] or [1.0]
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def decades(scale: tuple[float, float]) -> list[float]:
    """Return the positions of the powers of ten on a scale, in percent."""
    return [_log_share(10.0**power, scale) or 0.0 for power in _powers(scale)]


def _power_words(value: float, unit: str) -> str:
    """Return a power of ten with its unit; long durations stay in seconds."""
    return f"{value / 1e6:,.0f} s" if unit == "us" and value >= 1e6 else format_value(value, unit)


def _powers(scale: tuple[float, float]) -> list[int]:
    low, high = round(math.log10(scale[0])), round(math.log10(scale[1]))
    return list(range(low, high + 1, max(math.ceil((high - low) / 4), 1)))


def _log_share(value: float | None, scale: tuple[float, float]) -> float | None:
    if value is None:
        return None
    low, high = math.log10(scale[0]), math.log10(scale[1])
    at = math.log10(min(max(value, scale[0]), scale[1]))
    return 1.5 + 97 * (at - low) / (high - low)


def _line(kind: str, x1: float, x2: float, y1: float, y2: float | None = None) -> Markup:
    below = y1 if y2 is None else y2
    return element("line", class_=kind, x1=f"{x1:.2f}%", x2=f"{x2:.2f}%", y1=f"{y1:.1f}", y2=f"{below:.1f}")


def _text(x: float, y: float, words: str, anchor: str = "middle", kind: str = "tick") -> Markup:
    return element("text", words, class_=kind, x=f"{x:.2f}%", y=f"{y:.1f}", text_anchor=anchor)


def _anchor(x: float, margin: float) -> str:
    """Return the anchor that keeps a text at `x` percent within the drawing."""
    return "start" if x < margin else "end" if x > 100 - margin else "middle"


def _drawing(name: str, title: str, about: str, height: int, parts: Sequence[Any]) -> Markup:
    names = f"{name}-title {name}-about"
    return element(
        "svg",
        element("title", title, id=f"{name}-title"),
        element("desc", about, id=f"{name}-about"),
        joined(parts),
        class_="plot",
        role="img",
        aria_labelledby=names,
        width="100%",
        height=height,
    )
