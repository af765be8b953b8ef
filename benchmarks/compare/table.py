"""The results as Markdown: for each class the figures, the ratios, and notes."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.compare.contestant import Durability
from benchmarks.compare.programme import CLASSES, METRICS, entry
from benchmarks.compare.results import Result

DASH = "–"
_RATIOS = (
    "Ratios, above 1 is better (faster, sooner, smaller): to the floor / to Relay, libraries "
    "to the library and servers to the socket."
)


def table(durability: Durability, names: list[str], results: list[Result]) -> str:
    """Return one class: contestants down, metrics across."""
    by = {(result.contestant, result.metric): result for result in results}
    notes = _Notes()
    heads = [metric.title for metric in METRICS.values()]
    figures, ratios = [], []
    for name in names:
        remark = entry(name).remarks.get(durability)
        title = entry(name).title + (notes.mark(remark) if remark else "")
        mine = {key: by.get((name, key)) for key in METRICS}
        cells = (
            _figure(result) if result else DASH + notes.mark(_why(name, durability, key))
            for key, result in mine.items()
        )
        figures.append([title, *cells])
        ratios.append([entry(name).title, *(_ratios(result) if result else DASH for result in mine.values())])
    lines = [f"### {CLASSES[durability]}", "", *_rows(["", *heads], figures), "", *notes.lines(), ""]
    lines += [_RATIOS, ""]
    return "\n".join([*lines, *_rows(["", *heads], ratios), ""])


def _why(name: str, durability: Durability, metric: str) -> str:
    contestant = entry(name)
    return contestant.out_of_class.get(durability) or contestant.cannot[METRICS[metric].task]


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


def _figure(result: Result) -> str:
    low, high = result.spread
    spread = "" if len(result.rounds) == 1 else f" ({_number(low)} – {_number(high)})"
    return f"**{_number(result.value)}**{spread}"


def _ratios(result: Result) -> str:
    return " / ".join(DASH if ratio is None else f"{_number(ratio)} ×" for ratio in (result.to_floor, result.to_relay))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
