"""From the stream of a turn to its outcome: what counts as work, whose words they are, and when to ask again."""

from __future__ import annotations

from typing import Any

import pytest
from claude_agent_sdk import (
    AssistantMessage,
    RateLimitEvent,
    RateLimitInfo,
    ResultMessage,
    ServerToolUseBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)
from claude_agent_sdk.types import ContentBlock, ServerToolResultBlock

from relay_supervisor.adapters.claude_code.turn import LONGEST_RETRY_SECS, Outcome, TurnReader

NOW = 1_700_000_000
NOTICE: Any = {"kind": "task-notification"}
BLOCKS: dict[str, tuple[ContentBlock, bool]] = {
    "a text": (TextBlock("I begin"), True),
    "a tool": (ToolUseBlock("t", "Bash", {}), True),
    "a tool of the platform": (ServerToolUseBlock("t", "web_search", {}), True),
    "a result of the platform's": (ServerToolResultBlock("t", {}), True),
    "a result": (ToolResultBlock("t"), True),
    "an empty text": (TextBlock(" \n"), False),
    "thinking": (ThinkingBlock("hm", "s"), False),
}


def say(*blocks: ContentBlock, error: Any = None) -> AssistantMessage:
    return AssistantMessage(content=list(blocks), model="m", error=error)


def result(text: str | None = None, *, origin: Any = None) -> ResultMessage:
    return ResultMessage("success", 1, 1, is_error=False, num_turns=1, session_id="s", result=text, origin=origin)


def refusal() -> ResultMessage:
    return ResultMessage("success", 1, 1, is_error=True, num_turns=1, session_id="s", api_error_status=429)


def read(*messages: Any, busy: bool = False) -> tuple[Outcome | None, list[str]]:
    """Return the outcome of a turn, and what was told of it meanwhile."""
    told: list[str] = []
    reader = TurnReader(told.append, lambda: NOW * 1000, busy=busy)
    outcomes = [outcome for message in messages if (outcome := reader.feed(message)) is not None]
    return (outcomes[0] if outcomes else None), told


@pytest.mark.parametrize(("block", "worked"), BLOCKS.values(), ids=BLOCKS)
def test_only_a_turn_that_did_nothing_is_asked_again(block: ContentBlock, worked: bool) -> None:
    outcome, _ = read(say(block), say(error="rate_limit"), refusal())
    assert outcome is not None
    assert (outcome.retry_after is None) is worked


@pytest.mark.parametrize("busy", [True, False], ids=["under way already", "told by its origin"])
def test_a_turn_of_the_programs_own_is_neither_progress_nor_answer(busy: bool) -> None:
    asked = () if busy else (UserMessage("the task is done", origin=NOTICE),)
    outcome, told = read(
        *asked,
        say(TextBlock("of the task")),
        result("done", origin=NOTICE),
        say(TextBlock("ours")),
        result(),
        busy=busy,
    )
    assert outcome == Outcome("ours", turns=1)
    assert told == ["ours"]
    outcome, _ = read(*asked, say(TextBlock("of the task")), result("done", origin=NOTICE), result(), busy=busy)
    assert outcome == Outcome("(the agent ended its turn without a text)", turns=1)


def test_the_words_of_a_turn_that_is_known_by_its_result_alone_are_not_the_answer() -> None:
    outcome, _ = read(say(TextBlock("of the task")), result("done", origin=NOTICE), result())
    assert outcome == Outcome("(the agent ended its turn without a text)", turns=1)


def test_what_a_turn_of_the_programs_own_did_does_not_keep_ours_from_being_asked_again() -> None:
    outcome, _ = read(say(TextBlock("of the task")), result(origin=NOTICE), refusal())
    assert outcome is not None
    assert outcome.retry_after == 60


def test_a_message_that_was_taken_up_in_the_middle_of_another_turn_may_have_been_worked_on() -> None:
    outcome, told = read(say(ToolUseBlock("t", "Bash", {})), refusal(), busy=True)
    assert outcome is not None
    assert (outcome.retry_after, told) == (None, [])


@pytest.mark.parametrize(
    ("resets_at", "wait"),
    [
        (None, 60),
        (NOW + 100, 100),
        (NOW + 0.5, 1),
        (NOW - 100, 60),
        (NOW * 1000, LONGEST_RETRY_SECS),
        (10**400, LONGEST_RETRY_SECS),
        (float("inf"), LONGEST_RETRY_SECS),
        (float("-inf"), 60),
        (float("nan"), 60),
        ("soon", 60),
    ],
    ids=["nothing", "soon", "at once", "past", "milliseconds", "huge", "never", "always", "no number", "words"],
)
def test_the_wait_is_finite_whatever_the_program_says(resets_at: Any, wait: float) -> None:
    event = RateLimitEvent(RateLimitInfo("rejected", resets_at=resets_at), uuid="u", session_id="s")
    outcome, _ = read(event, refusal())
    assert outcome is not None
    assert outcome.retry_after == wait
