"""report.html: well formed, self-contained and escaped, whatever the day holds; and no wider than a phone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from relay_core.protocol.report import NightlyReport
from spark.report.markup import Markup, element
from spark.report.page import OPEN_FINDINGS, OPEN_ROWS, page
from spark.report.svg import log_scale, nice_top
from tests.spark.report.days import DAYS, a_hostile_day, a_rich_day, an_empty_day, an_unfinished_day

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE = 390
ALONE = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage")
QUIET = ("--disable-quic", "--disable-sync", "--disable-background-networking", "--disable-component-update")


class Reading(HTMLParser):
    """A page, read strictly: what is opened is closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.counts: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] += 1
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


@pytest.mark.parametrize("day", DAYS.values(), ids=DAYS.keys())
def test_a_page_is_well_formed_and_needs_nothing_else(day: Callable[[], NightlyReport]) -> None:
    text = page(day())
    found = Reading(text)
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(found.counts)
    assert not [value for name, value in found.attributes if name.startswith("on") or name in ("src", "srcset")]
    assert all(value and value.startswith("#") for name, value in found.attributes if name == "href")
    assert "url(" not in text
    assert "@import" not in text
    ids = [value for name, value in found.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    places = {value for name, value in found.attributes if name == "href"}
    assert places <= {f"#{id}" for id in ids}


@pytest.mark.parametrize("day", DAYS.values(), ids=DAYS.keys())
def test_every_drawing_is_xml_with_a_title_and_a_description(day: Callable[[], NightlyReport]) -> None:
    text = page(day())
    drawings = re.findall(r'<svg class="plot".*?</svg>(?=</dd>|</figure>|</div>|<p|<div)', text)
    assert len(drawings) == len(re.findall('<svg class="plot"', text))
    for drawing in map(ElementTree.fromstring, drawings):
        if drawing.get("aria-hidden") is None:
            names = [part.get("id") for part in drawing[:2] if part.tag in ("title", "desc") and part.text]
            assert drawing.get("aria-labelledby") == " ".join(map(str, names))


def test_what_strangers_write_is_text_and_nothing_else() -> None:
    text = page(a_hostile_day())
    assert "<script" not in text
    assert not set(text) & {"\u202e", "\x1b", "\x00"}
    assert "\u0301" * 3 not in text
    found = Reading(text)
    assert "<script>alert(1)</script>\"'&‹U+202E›␛[2J␀" in found.text
    assert found.counts["td"] == Reading(page(a_rich_day())).counts["td"]


def test_only_markup_is_not_escaped() -> None:
    assert element("p", "<b>", Markup("<i>"), None, 5, class_='a"b', hidden=True, id=None) == (
        '<p class="a&quot;b" hidden>&lt;b&gt;<i>5</p>'
    )


def test_a_page_opens_with_the_day_then_attention_then_numbers_then_plots_then_tables() -> None:
    report = a_rich_day()
    text = Reading(page(report)).text
    assert f"{report.attention_count} things need attention · 231,904 events" in text
    parts = ["Saturday, 14 March", "Busiest hours", report.attention[0].title, "usually 51,400", "The day in pictures"]
    places = [text.index(part) for part in parts]
    assert [*places, text.rindex("Busiest hours")] == sorted([*places, text.rindex("Busiest hours")])


def test_what_is_too_much_for_a_first_look_is_folded() -> None:
    report = a_rich_day()
    text = page(report)
    assert f"<summary>{len(report.attention) - OPEN_FINDINGS} more findings</summary>" in text
    assert f"<summary>{100 - OPEN_ROWS} more rows</summary>" in text
    assert "The first 100 of 1,932 rows" in text


def test_a_day_that_is_not_over_says_so_first_and_an_empty_one_is_short() -> None:
    assert "So far, until 14:20 UTC" in Reading(page(an_unfinished_day())).text
    empty = Reading(page(an_empty_day()))
    assert "Nothing was published" in empty.text
    assert "This day has nothing in: what changed, busiest hours" in empty.text
    assert empty.counts["svg"] == empty.counts["table"] == 0


@pytest.mark.parametrize(
    ("value", "top"),
    [(0, 2), (1, 2), (3, 4), (9.5, 10), (11, 12), (412, 500), (4500, 5000), (57_600, 60_000), (0.4, 2)],
)
def test_a_scale_ends_in_a_round_number(value: float, top: float) -> None:
    assert nice_top(value) == top


def test_a_logarithmic_scale_is_wide_enough() -> None:
    assert log_scale([None, 400, 58_800_000]) == (100, 1e8)
    assert log_scale([1000]) == (1000, 10_000)
    assert log_scale([0, None]) == (1, 10)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: the page's layout is not looked at")
def test_nothing_is_wider_than_a_phone(tmp_path: Path) -> None:
    """Lay out each day in a frame as wide as a phone, with everything unfolded, and ask how wide it got."""
    frames = "".join(
        f'<iframe title="{name}" width="{PHONE}" height="800" srcdoc="{escape(page(day()))}"></iframe>'
        for name, day in DAYS.items()
    )
    measure = """<script>onload = () => {
      const found = {};
      for (const frame of document.querySelectorAll("iframe")) {
        const page = frame.contentDocument;
        page.querySelectorAll("details").forEach(one => one.open = true);
        const inside = [...page.querySelectorAll("svg, h1, h3, p, .value, .row")];
        const right = Math.max(...inside.map(one => one.getBoundingClientRect().right));
        const scripts = page.querySelectorAll("script").length;
        found[frame.title] = [page.documentElement.scrollWidth, Math.ceil(right), scripts];
      }
      document.body.innerHTML = ""; document.body.textContent = "FOUND" + JSON.stringify(found) + "END";
    }</script>"""
    (tmp_path / "frames.html").write_text(f"<!doctype html><meta charset=utf-8><body>{frames}{measure}", "utf-8")
    dom = subprocess.run(
        [
            str(CHROMIUM),
            *ALONE,
            *QUIET,
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom",
            (tmp_path / "frames.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    ).stdout
    found = re.search("FOUND(.*)END", dom)
    assert found is not None, dom[:1000]
    assert json.loads(found[1]) == {name: [PHONE, PHONE - 16, 0] for name in DAYS}


INKS = [
    *(("ink", ground) for ground in ("ground", "panel", "bar")),
    *(("ink", f"{level}-ground") for level in ("bad", "warn", "good", "info")),
    *(("soft", ground) for ground in ("ground", "panel")),
    ("accent", "ground"),
    *((level, f"{level}-ground") for level in ("bad", "warn", "good", "info")),
    *(("accent", f"{level}-ground") for level in ("bad", "warn", "good", "info")),
    *((level, "ground") for level in ("bad", "warn", "good")),
]  # fmt: skip


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_texts_stand_out_from_their_ground_in_both_schemes(scheme: int) -> None:
    """4.5 to 1, as WCAG 2 asks for texts (level AA)."""
    css = re.search("<style>(.*?)</style>", page(an_empty_day()), re.DOTALL)
    assert css is not None
    blocks = re.findall(r":root \{(.*?)\}", css[1], re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", blocks[scheme]))
    poor = {pair: round(ratio, 2) for pair in INKS if (ratio := contrast(*(colours[name] for name in pair))) < 4.5}
    assert poor == {}


def contrast(first: str, second: str) -> float:
    lights = sorted(
        sum(
            weight * (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
            for weight, part in zip(
                (0.2126, 0.7152, 0.0722), (value / 255 for value in bytes.fromhex(colour[1:])), strict=True
            )
        )
        for colour in (first, second)
    )
    return (lights[1] + 0.05) / (lights[0] + 0.05)
