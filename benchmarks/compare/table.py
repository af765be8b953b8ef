"""The results as Markdown: for each class the figures, the ratios, and what must be known to read them."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.compare.contestant import Durability
from benchmarks.compare.programme import CLASSES, METRICS, entry
from benchmarks.compare.results import Result

DASH = "–"
_RATIOS = (
    "How many times as good (above 1 is faster, sooner, smaller): against the floor / against Relay, libraries "
    "against the library and servers against the socket."
)


def table(durability: Durability, names: list[str], results: list[Result]) -> str:
    """Return one class: contestants down, metrics across."""
    by = {(one.contestant, one.metric): one for one in results}
    notes = _Notes()
    heads = [metric.title for metric in METRICS.values()]
    figures, ratios = [], []
    for name in names:
        remark = entry(name).remarks.get(durability)
        title = entry(name).title + (notes.mark(remark) if remark else "")
        mine = {key: by.get((name, key)) for key in METRICS}
        cells = (_figure(one) if one else DASH + notes.mark(_why(name, durability, key)) for key, one in mine.items())
        figures.append([title, *cells])
        ratios.append([entry(name).title, *(_ratios(one) if one else DASH for one in mine.values())])
    lines = [f"### {CLASSES[durability]}", "", *_rows(["", *heads], figures), "", *notes.lines(), ""]
    lines += [_RATIOS, ""]
    return "\n".join([*lines, *_rows(["", *heads], ratios), ""])


def _why(name: str, durability: Durability, metric: str) -> str:
    one = entry(name)
    return one.out_of_class.get(durability) or one.cannot[METRICS[metric].task]


class _Notes:
    """Footnotes, each once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, text: str) -> str:
        return f" <sup>{self._numbers.setdefault(text, len(self._numbers) + 1)}</sup>"

    def lines(self) -> Iterator[str]:
        return (f"{number}. {text}" for text, number in self._numbers.items())


def _rows(heads: list[str], rows: list[list[str]]) -> Iterator[str]:
    for row in (heads, ["---"] * len(heads), *rows):
        yield f"| {' | '.join(row)} |"


def _figure(one: Result) -> str:
    low, high = one.spread
    spread = "" if len(one.rounds) == 1 else f" ({_number(low)} – {_number(high)})"
    return f"**{_number(one.value)}**{spread}"


def _ratios(one: Result) -> str:
    return " / ".join(DASH if ratio is None else f"{_number(ratio)} ×" for ratio in (one.to_floor, one.to_relay))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
