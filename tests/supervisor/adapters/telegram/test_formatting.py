from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from relay_supervisor.adapters.telegram import formatting
from relay_supervisor.adapters.telegram.formatting import to_html
from relay_supervisor.adapters.telegram.splitting import LIMIT, split, units
from tests.kit.servers.telegram import parse_html

MARKS = ["**", "*", "_", "__", "~~", "`", "```", "```python\n", "~~~", "\n", " ", "[", "](", ")", "](https://a.b/c)"]
MORE = ["# ", "<", "&", ">", '"', "&amp;", "<b>", "</b>", "\\", "\U0001f600", "é", "word", "x", "1"]
markdown = st.lists(st.sampled_from(MARKS + MORE) | st.text(max_size=5), max_size=60).map("".join)
no_links = st.lists(st.sampled_from([*"*_~`#\\ \n<&>", "word", "Ü", "9"]), max_size=60).map("".join)


@pytest.mark.parametrize(
    ("source", "html"),
    [
        pytest.param("**a** __b__", "<b>a</b> <b>b</b>", id="bold"),
        pytest.param("*a* _b_", "<i>a</i> <i>b</i>", id="italic"),
        pytest.param("***a***", "<b><i>a</i></b>", id="bold and italic"),
        pytest.param("**a *b* c**", "<b>a <i>b</i> c</b>", id="italic within bold"),
        pytest.param("~~a~~", "<s>a</s>", id="strike"),
        pytest.param("`a<b` `` c`d ``", "<code>a&lt;b</code> <code>c`d</code>", id="code"),
        pytest.param("`**a**`", "<code>**a**</code>", id="no marks within code"),
        pytest.param("# A *b*\nc", "<b>A <i>b</i></b>\nc", id="heading"),
        pytest.param("```py\na < b\n```\nc", '<pre><code class="language-py">a &lt; b</code></pre>\nc', id="block"),
        pytest.param("~~~\na\n~~~", "<pre>a</pre>", id="block of tildes"),
        pytest.param('```"><b>\na\n```', "<pre>a</pre>", id="a language that is none"),
        pytest.param("```\nnever closed", "<pre>never closed</pre>", id="open block"),
        pytest.param("[a](https://b.c/d?e=1&f)", '<a href="https://b.c/d?e=1&amp;f">a</a>', id="link"),
        pytest.param("[a](tg://user?id=1)", '<a href="tg://user?id=1">a</a>', id="tg link"),
        pytest.param("[a](javascript:alert)", "[a](javascript:alert)", id="other scheme"),
        pytest.param('[a](https://b.c/"onx=")', '<a href="https://b.c/&quot;onx=&quot;">a</a>', id="quotes in a link"),
        pytest.param("snake_case_name 2 * 3 * 4", "snake_case_name 2 * 3 * 4", id="marks that are none"),
        pytest.param("**open", "**open", id="no partner"),
        pytest.param(r"\*a\*", "*a*", id="escaped"),
        pytest.param("<b>&amp;", "&lt;b&gt;&amp;amp;", id="HTML is text"),
        pytest.param("- a\n- b\n> c", "- a\n- b\n&gt; c", id="lists and quotes stay"),
    ],
)
def test_markdown_becomes_html(source: str, html: str) -> None:
    assert to_html(source) == html


@given(markdown)
def test_any_text_gives_html_that_telegram_takes(source: str) -> None:
    parse_html(to_html(source))


@given(no_links)
def test_nothing_but_marks_is_lost(source: str) -> None:
    # A fence's info string is a mark: it names a language.
    fence = re.compile(r"(?m)^ {0,3}(`{3,}|~{3,}).*$")
    shown = parse_html(to_html(source))
    # Without its marks, a line such as *~~~* looks like a fence.
    assume({found[0] for found in fence.finditer(shown)} <= {found[0] for found in fence.finditer(source)})
    assert kept(fence.sub("", shown)) == kept(fence.sub("", source))


def kept(text: str) -> list[str]:
    return [char for char in text if char.isalnum() or char in "<&>"]


@given(markdown)
def test_formatting_never_makes_a_text_longer(source: str) -> None:
    assert units(parse_html(to_html(source))) <= units(source)


@given(markdown, st.integers(80, 200))
def test_parts_fit_and_lose_nothing(source: str, limit: int) -> None:
    parts = split(source, limit)
    assert "".join(part.source for part in parts) == source
    for part in parts:
        assert 0 < units(part.text) <= limit
        assert part.source in part.text
        parse_html(to_html(part.text))


@given(st.text(alphabet="ab \n\U0001f600", min_size=200), st.integers(80, 100))
def test_long_words_are_cut_between_characters(source: str, limit: int) -> None:
    parts = split(source, limit)
    assert "".join(part.source for part in parts) == source
    assert all(units(part.text) <= limit for part in parts)


def test_a_fence_that_is_cut_is_closed_and_opened_again_with_its_language() -> None:
    code = "\n".join(f"line_{number} = {number}" for number in range(1000))
    parts = split(f"before\n```python\n{code}\n```\nafter")
    assert len(parts) > 3
    assert all(part.text.startswith("```python\n") for part in parts[1:])
    assert all(part.text.endswith("\n```") for part in parts[:-1])
    assert all(to_html(part.text).count("<pre>") == 1 for part in parts)
    shown = "".join(parse_html(to_html(part.text)) + "\n" for part in parts)
    assert re.findall(r"line_(\d+)", shown) == [str(number) for number in range(1000)]


@pytest.mark.parametrize("width", range(1, 76))
def test_a_cut_fence_leaves_room_for_its_mark(width: int) -> None:
    parts = split("````c\n" + f"{'x' * width}\n" * 50 + "````", 80)
    assert all(units(part.text) <= 80 for part in parts)


@pytest.mark.parametrize("width", range(66, 76))
def test_a_closing_fence_stays_with_its_code(width: int) -> None:
    parts = split("```\n" + "x" * width + "\n```\n", 84)
    assert all(to_html(part.text).strip() for part in parts)


@pytest.mark.parametrize("unit", ["~~x **a __b ", "` `` ``` ", "**a ", "[a](https://b( ", "# ", "#  ", "*a _b "])
def test_marks_without_partners_take_no_more_time_than_others(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    find = formatting._closer

    def count(text: str, opener: re.Match[str], single: set[str]) -> re.Match[str] | None:
        nonlocal looked
        known = opener[0] in single
        closer = find(text, opener, single)
        looked += closer is None and not known  # it was looked for up to the end
        return closer

    monkeypatch.setattr(formatting, "_closer", count)
    parse_html(to_html((unit * 4000)[:4000]))
    assert looked < 50


def test_cuts_lie_at_line_ends_and_spaces() -> None:
    assert [part.source for part in split("aaa bbb\n" * 20, 80)] == ["aaa bbb\n" * 10] * 2
    assert split("word " * 100, 80)[0].source == "word " * 16


def test_a_part_is_as_long_as_telegram_counts() -> None:
    parts = split("\U0001f600" * 3000)
    assert [len(part.text) for part in parts] == [LIMIT // 2, 1000]
