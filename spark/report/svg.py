"""Plots as inline SVG: columns over hours and days, ranges on a logarithmic scale, small trends.

1. A drawing fills the width it is given and keeps its height: positions across are percentages, and only what has no
   text is stretched, so that letters keep their size on a phone.
2. Every drawing has a title and a description for those who cannot see it, and takes its colours from the page's
   style sheet by class. Nothing is told by colour alone: what stands out also has a mark, a dash or a number.
3. A value that is unknown is a gap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from spark.report.markup import Markup, element, joined
from spark.report.wording import shown

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
    """Return a plot of columns; `ticks` are the labels below, `usual` is a dashed line, `chosen` stands out."""
    top = nice_top(max([*(value or 0 for value in values), usual or 0]))
    room, step = _HEIGHT - _TOP - _BOTTOM, 100 / len(values)
    peak = max(range(len(values)), key=lambda at: values[at] or 0)

    def y(value: float) -> float:
        return _TOP + room * (1 - value / top)

    parts: list[Markup] = []
    for share in (0.0, 0.5, 1.0):
        parts.append(_line("grid" if share else "axis", 0, 100, y(top * share)))
        if share:
            scale = shown(top * share, unit)
            parts.append(
                element("text", scale, class_="tick", x="-8", y=f"{y(top * share) + 4:.1f}", text_anchor="end")
            )
    for at, value in enumerate(values):
        if value is not None and value > 0:
            height = max(room * value / top, 1.5)
            parts.append(
                element(
                    "rect",
                    element("title", f"{labels[at]}: {shown(value, unit)}"),
                    class_="column chosen" if at == chosen else "column",
                    x=f"{at * step + step * 0.14:.2f}%",
                    y=f"{_TOP + room - height:.1f}",
                    width=f"{step * 0.72:.2f}%",
                    height=f"{height:.1f}",
                    rx="1.5",
                )
            )
    marked = chosen if chosen is not None else peak
    if values[marked]:
        middle = (marked + 0.5) * step
        anchor = "start" if middle < 12 else "end" if middle > 88 else "middle"
        across = marked * step if anchor == "start" else (marked + 1) * step if anchor == "end" else middle
        value = values[marked] or 0
        parts.append(_text(across, max(y(value) - 5, 10), shown(value, unit), anchor, "peak"))
    if usual is not None:
        parts.append(_line("usual", 0, 100, y(usual)))
    parts += [
        _text(
            (at + 0.5) * step, _HEIGHT - 5, word, "start" if at == 0 else "end" if at == len(values) - 1 else "middle"
        )
        for at, word in ticks
    ]
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
    if x[1] is not None:  # a square that stands on its point, without a path: those cannot be given in percent
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
        _text(share, 12, _power_words(value, unit), "start" if share < 2 else "end" if share > 98 else "middle")
        for share, value in zip(shares, values, strict=True)
    ]
    return element("svg", *parts, class_="plot", width="100%", height="16", aria_hidden="true")


def trend(name: str, title: str, values: Values, unit: str) -> Markup:
    """Return a small line of the days, the last one with a dot."""
    known = [value for value in values if value is not None]
    top, low = max(known, default=0), min(known, default=0)
    spread = (top - low) or 1

    def y(value: float) -> float:
        return 23 - 19 * (value - low) / spread if top != low else 14

    step = 96 / max(len(values) - 1, 1)
    parts = [
        element(
            "line",
            class_="trend",
            x1=f"{at * step:.2f}%",
            x2=f"{(at + 1) * step:.2f}%",
            y1=f"{y(a):.1f}",
            y2=f"{y(b):.1f}",
        )
        for at, (a, b) in enumerate(pairwise(values))
        if a is not None and b is not None
    ]
    if values and values[-1] is not None:
        parts.append(element("circle", class_="now", cx="96%", cy=f"{y(values[-1]):.1f}", r="3"))
    about = f"From {shown(low, unit)} to {shown(top, unit)} over {len(values)} days."
    return _drawing(name, title, about, 28, parts)


def nice_top(value: float) -> float:
    """Return a round number that is not below a value and has a whole half."""
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
    """Return where the powers of ten lie on a scale, in percent."""
    return [_log_share(10.0**power, scale) or 0.0 for power in _powers(scale)]


def _power_words(value: float, unit: str) -> str:
    """Return a power of ten; in seconds also where other durations are in minutes."""
    return f"{value / 1e6:,.0f} s" if unit == "us" and value >= 1e6 else shown(value, unit)


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
