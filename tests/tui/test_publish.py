from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, TextArea

from relay_core.client.client import RelayClient
from relay_core.errors import AccessDenied, SupervisorUnavailable
from relay_core.messages.results import PublishResult
from relay_core.protocol.live_state import LiveState, StateUpdate
from relay_core.rules.access import AccessRule
from relay_tui.views.publish.draft import Draft, DraftError, budget_of, check_body, check_names
from relay_tui.views.publish.outcome import Outcome, explain
from relay_tui.views.publish.recipients import recipients_line
from relay_tui.views.publish.saved_drafts import BUILT_IN, KEPT, read_history, read_templates, remember
from relay_tui.views.publish.view import Publish
from tests.kit.servers.proxy import a_wire
from tests.kit.supervisor import a_client, a_supervisor
from tests.kit.waiting import until
from tests.tui.driver import Driver, a_dashboard
from tests.tui.hostile import CORPUS

A, B, C = "relay.agent.a", "relay.agent.b", "relay.agent.c"
ME = "relay.human.operator"
MOST = 1 << 20


# The draft


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("", "empty"),
        ('{"a": 1', "line 1, column 8"),
        ('{\n"a": 1,\n"b" 2}', "line 3, column 5"),
        ("hello", "line 1, column 1"),
        ("[NaN]", "NaN is not a JSON number"),
        ("[" * 150 + "]" * 150, "deeper than 100 levels"),
        ("[" * 100_000, "nested too deeply"),
        (f"[{2**70}]", "Integer exceeds 64-bit range"),
        (json.dumps("x" * 2000), "the limit is 1000"),
    ],
    ids=lambda value: value[:20],
)
def test_what_is_no_json_says_where(body: str, problem: str) -> None:
    checked = check_body(body, as_text=False, limit=1000)
    assert checked.problem is not None
    assert problem in checked.problem


def test_text_is_sent_as_text_only_if_asked_for() -> None:
    assert check_body('{"a": 1}', as_text=False, limit=MOST) == ({"a": 1}, 7, None)
    assert check_body('{"a": 1}', as_text=True, limit=MOST) == ('{"a": 1}', 12, None)


@pytest.mark.parametrize(
    ("draft", "field"),
    [
        pytest.param(Draft(subject="", sender=A), "subject", id="no subject"),
        pytest.param(Draft(subject="no dots!", sender=A), "subject", id="a bad subject"),
        pytest.param(Draft(subject=A, sender="relay.>"), "sender", id="a pattern for a sender"),
        pytest.param(Draft(subject=A, sender=B, reply_to="x y"), "reply_to", id="reply to"),
        pytest.param(Draft(subject=A, sender=B, max_hops="-1"), "max_hops", id="hops"),
        pytest.param(Draft(subject=A, sender=B, calls="many"), "calls", id="calls"),
        pytest.param(Draft(subject=A, sender=B, ttl="soon"), "ttl", id="TTL"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(draft: Draft, field: str) -> None:
    def check() -> None:
        check_names(draft)
        budget_of(draft, 0)

    with pytest.raises(DraftError) as caught:
        check()
    assert caught.value.field == field


def test_an_empty_budget_asks_for_nothing() -> None:
    assert budget_of(Draft(), 1000) is None
    assert budget_of(Draft(max_hops="2", calls="0", ttl="10s"), 1000) == {
        "maxHops": 2,
        "callBudgetRemaining": 0,
        "ttl": 11_000,
    }


# Templates and history


def test_the_history_is_bounded_private_and_newest_first(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history.jsonl"
    for n in range(KEPT + 5):
        remember(path, Draft(subject=A, sender=B, ttl="1m", body="{}"), {"n": n}, at="now", outcome="delivered to 1")
    found = read_history(path)
    assert len(found) == len(path.read_text().splitlines()) == KEPT
    assert json.loads(found[0].draft.body) == {"n": KEPT + 4}
    assert (found[0].draft.subject, found[0].draft.sender, found[0].draft.ttl) == (A, B, "1m")
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_broken_lines_of_the_history_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    remember(path, Draft(subject=A, body="1"), 1, at="now", outcome="")
    path.write_bytes(b'{"torn\n\xff\xfe\n[]\n{"subject": 7, "budget": []}\n' + path.read_bytes())
    assert [saved.draft.subject for saved in read_history(path)] == [A, "7"]
    assert read_history(tmp_path / "none") == []


def test_a_body_too_large_to_keep_leaves_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    remember(path, Draft(subject=A, body="x" * 100_000), "x" * 100_000, at="now", outcome="")
    assert [(saved.draft.subject, saved.draft.body) for saved in read_history(path)] == [(A, "")]
    assert path.stat().st_size < 1000


def test_templates_are_files_and_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "greet.json").write_text(json.dumps({"subject": A, "from": B, "payload": {"content": "hi"}}))
    (tmp_path / "torn.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "huge.json").write_text("[" + " " * 100_000 + "]")
    found, problems = read_templates(tmp_path)
    assert found[0].draft == Draft(subject=A, sender=B, body='{\n  "content": "hi"\n}')
    assert found[1:] == list(BUILT_IN)
    assert sorted(problem.partition(":")[0] for problem in problems) == ["huge.json", "list.json", "torn.json"]


def test_whatever_a_file_says_comes_back_fit_for_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    texts = [text for text in CORPUS.values() if len(text) < 10_000][-KEPT:]
    for text in texts:
        draft = Draft(subject=text, sender=text, reply_to=text, ttl=text)
        remember(path, draft, {text: text}, at=text, outcome=text)
    found = read_history(path)
    assert len(found) == len(texts)
    for saved, text in zip(found, reversed(texts), strict=True):
        assert json.loads(saved.draft.body) == {text: text}
        shown = [
            saved.title,
            saved.note,
            saved.draft.subject,
            saved.draft.sender,
            saved.draft.ttl,
            *saved.draft.body.split("\n"),
        ]
        assert all(part.isprintable() for part in shown)


# What became of it


def a_state(**sections: Any) -> LiveState:
    state = LiveState()
    state.apply(StateUpdate.model_validate({"full": True, "at": 0, **sections}))
    return state


MAILBOX = {"kind": "endpoint", "registered": True, "claimed": 0, "failed": 0, "consumers": 1}
STATE = a_state(
    mailboxes={
        "h1": {**MAILBOX, "subject": A, "depth": 9, "pressure": 0.9},
        "h2": {**MAILBOX, "subject": B, "depth": 0, "pressure": 0.0},
    },
    senders={ME: {"count": 100, "limit": 100, "windowSecs": 60, "resetsAt": 12_000}},
    breakers={
        "h1": {
            "state": "OPEN",
            "consecutiveFailures": 5,
            "halfOpenSuccesses": 0,
            "forced": False,
            "retryAt": 7_000,
        }
    },
)


def a_result(delivered: int = 0, **parts: Any) -> PublishResult:
    return PublishResult(message_id="01MESSAGE", delivered_to=delivered, **parts)


def told(outcome: Outcome) -> str:
    return "\n".join("".join(text for text, _ in line) for line in explain(outcome, STATE, 0))


@pytest.mark.parametrize(
    ("reason", "target", "says"),
    [
        ("rate_limited", "*", "100 of 100 messages in 60 s: the next is accepted in 12s"),
        ("backpressure", "h1", "9 messages waiting, the mailbox is 90% full"),
        ("circuit_open", "h1", "the next probe is allowed in 7s"),
        ("circuit_open", "h2", "send the message again"),
        ("budget_exceeded", "h1", "see hops, calls and TTL"),
    ],
)
def test_a_refusal_says_what_it_waits_for(reason: str, target: str, says: str) -> None:
    result = a_result(rejected=({"endpoint_hash": target, "reason": reason},))
    text = told(Outcome(Draft(subject=A, sender=ME), result))
    assert "nothing was stored" in text
    assert says in text


def test_what_failed_says_why() -> None:
    unavailable = Outcome(Draft(), error=SupervisorUnavailable("nobody answers"))
    assert "the draft is kept" in told(unavailable)
    rule = {"from": "relay.human.>", "to": "relay.agent.>", "action": "deny", "priority": 5}
    denied = Outcome(Draft(), error=AccessDenied("may not", rule=rule, message_id="01MESSAGE"))
    assert "relay.human.> → relay.agent.>  deny, priority 5" in told(denied)
    assert "01MESSAGE" in told(denied)


@pytest.mark.parametrize(
    ("subject", "says"),
    [
        ("", "type a subject"),
        (A, "9 messages waiting, 90% full, 1 consumer  ✗ its breaker is open"),
        ("relay.agent.*", f"a broadcast to 2 mailboxes: {A}, {B}"),
        ("relay.age", f"completes to {A}, {B}"),
        ("relay.x", "no mailbox has this subject"),
        ("relay.x.*", "a broadcast to 0 mailboxes"),
    ],
)
def test_who_would_get_it_is_said_while_it_is_typed(subject: str, says: str) -> None:
    assert says in "".join(text for text, _ in recipients_line(subject, STATE))


# On the screen


async def write_a_message(tui: Driver, subject: str = A, body: str = "") -> Publish:
    await tui.press("7")
    view = tui.view
    assert isinstance(view, Publish)
    await tui.until(lambda: isinstance(tui.app.focused, Input))
    await tui.type(subject)
    if body:
        view.query_one(TextArea).text = body
    return view


def field(view: Publish, name: str) -> Input:
    return view.query_one(f"#publish-{name}", Input)


def focused(tui: Driver) -> str | None:
    widget = tui.app.focused
    return widget.id if widget is not None else None


async def test_a_message_is_completed_written_sent_and_explained(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint(A)
        async with a_dashboard(supervisor) as tui:
            await tui.until(lambda: tui.app.store.state.mailboxes)
            view = await write_a_message(tui, "relay.ag")
            await tui.until("completes to relay.agent.a")
            await tui.until(lambda: field(view, "subject")._suggestion == A)
            await tui.press("right")
            assert field(view, "subject").value == A
            await tui.press("tab", "tab", "tab", "tab", "tab", "5", "m", "tab")
            assert view.draft.ttl == "5m"
            await tui.until(lambda: isinstance(tui.app.focused, TextArea))
            await tui.press("f7", "backspace")
            await tui.type("{")
            await tui.until("invalid JSON: line 1, column 2")
            await tui.type('"n": 1}')
            await tui.until("valid JSON, 7 bytes")
            await tui.press("ctrl+s")
            await tui.until("delivered to 1 target")
            await tui.until("waiting  relay.agent.a")
            (envelope,) = await client.inbox(A)
            assert (envelope.payload, envelope.sender) == ({"n": 1}, ME)

            await tui.press("escape", "t")
            await tui.until("its conversation")
            await tui.until(envelope.id)
            await tui.press("7")
            assert view.draft.body == '{"n": 1}'
            await tui.press("escape", "ctrl+r")
            await tui.until("Published before")
            await tui.press("enter")
            await tui.until(lambda: json.loads(view.draft.body) == {"n": 1} and view.draft.ttl == "5m")


async def test_what_the_bus_refuses_is_explained_from_what_is_so_now(tmp_path: Path) -> None:
    limited = {"reliability": {"rateLimit": {"maxPerWindow": 2}, "backpressure": {"maxMailboxSize": 1}}}
    async with a_supervisor(tmp_path, limited) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint(A)
        await client.register_endpoint(B)
        await client.force_breaker(B, "OPEN", "maintenance")
        await client.add_access_rule(AccessRule(sender=ME, to="relay.agent.secret", action="deny"))
        await client.publish(A, 1, sender=C)
        async with a_dashboard(supervisor) as tui:
            view = await write_a_message(tui, "relay.agent.secret")
            for subject, refused in (
                ("relay.agent.secret", "relay.human.operator → relay.agent.secret  deny"),
                (A, r"waiting, the mailbox is 100% full"),
                (B, "its breaker is forced open"),
                ("relay.agent.more", "2 of 2 messages in 60 s: the next is accepted"),
            ):
                field(view, "subject").value = subject
                await tui.press("ctrl+s")
                await tui.until(refused)


async def test_nobody_there_is_explained(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_dashboard(supervisor, size=(80, 24)) as tui:
        await write_a_message(tui, "relay.agent.nobody")
        await tui.press("ctrl+s")
        await tui.until("not delivered: it is a dead letter")
        await tui.until(r"register the endpoint and\s+replay")


async def test_a_draft_that_cannot_be_sent_is_not_and_its_field_has_the_focus(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint(A)
        async with a_dashboard(supervisor) as tui:
            view = await write_a_message(tui, A, "hello")
            await tui.press("ctrl+s")
            await tui.until("the body is not valid JSON")
            assert focused(tui) == "publish-body"
            await tui.press("f2")
            await tui.until("valid text, 7 bytes")
            field(view, "ttl").value = "soon"
            await tui.press("ctrl+s")
            await tui.until("is not a duration")
            assert focused(tui) == "publish-ttl"
            assert await client.inbox(A) == []
            field(view, "ttl").value = ""
            await tui.press("ctrl+s")
            await tui.until("delivered to 1 target")
            assert [message.payload for message in await client.inbox(A)] == ["hello"]


async def test_a_broadcast_is_asked_about_first(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint(A)
        await client.register_endpoint(B)
        async with a_dashboard(supervisor) as tui:
            await write_a_message(tui, "relay.agent.*")
            await tui.until("a broadcast to 2 mailboxes")
            await tui.press("ctrl+s")
            await tui.until("Publish to all of")
            await tui.press("escape")
            assert await client.inbox(A) == []
            await tui.press("ctrl+s")
            await tui.until("Publish to all of")
            await tui.confirm("publish")
            await tui.until("delivered to 2 targets")


async def test_where_nobody_has_such_a_home_a_message_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, "~nosuchuser/files")
    monkeypatch.chdir(tmp_path)  # where a directory of that name would be made
    async with a_supervisor(tmp_path / "data") as supervisor, a_dashboard(supervisor) as tui:
        await write_a_message(tui)
        await tui.press("ctrl+t")
        await tui.until("a request")


async def test_what_is_typed_right_after_7_is_the_subject(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("7", *"relay")  # at once: nothing was waited for
        view = tui.app.view
        assert isinstance(view, Publish)
        assert field(view, "subject").value == "relay"
        await tui.press("tab", "escape", "5", "7")
        assert tui.app.focused is field(view, "sender")  # and later it goes on where it was left


async def test_the_keys_of_a_field_are_its_own_until_it_is_left(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_dashboard(supervisor) as tui:
        view = await write_a_message(tui, "q7p!:?")
        assert field(view, "subject").value == "q7p!:?"
        await tui.press("shift+home", "ctrl+c")  # copies what is selected
        assert tui.app.is_running
        await tui.press("tab")
        assert tui.app.focused is field(view, "sender")
        await tui.press("shift+tab")
        assert tui.app.focused is field(view, "subject")
        await tui.press("escape", "5")
        await tui.until(lambda: tui.view.NAME == "traces")
        await tui.press("7")
        await tui.until(lambda: tui.app.focused is field(view, "subject"))
        assert view.draft.subject == "q7p!:?"


async def test_read_only_sends_nothing(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint(A)
        async with a_dashboard(supervisor, read_only=True) as tui:
            await write_a_message(tui)
            await tui.until("nothing can be sent from here")
            await tui.press("ctrl+s")
            assert not tui.app.registry.by_name("publish", "send")
            assert await client.inbox(A) == []


async def test_a_template_is_taken_up_and_another_screen_gives_the_subject(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_dashboard(supervisor) as tui:
        await tui.app.goto("publish", B)
        view = tui.view
        assert isinstance(view, Publish)
        await tui.until(lambda: isinstance(tui.app.focused, Input))
        await tui.press("ctrl+t")
        await tui.until("a request")
        await tui.press("j", "enter")
        await tui.until(lambda: view.draft.reply_to == ME)
        assert view.draft.subject == B
        assert json.loads(view.draft.body)["performative"] == "request"


async def test_a_send_whose_outcome_is_unknown_goes_out_once(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint(A)
        async with a_wire(supervisor.socket) as (path, wire), a_dashboard(supervisor, socket=path) as tui:
            view = await write_a_message(tui)
            tui.app.store.client._timeout = 0.3
            wire.cut_answers_to["publish"] = 1_000_000
            await tui.press("ctrl+s")
            await tui.until("the draft is kept")
            assert len(await client.inbox(A)) == 1
            assert view.draft.subject == A
            wire.cut_answers_to.clear()
            tui.app.store.client._timeout = 30.0
            await until(lambda: tui.app.store.is_live)  # else it is refused at once
            await tui.press("ctrl+s")
            await tui.until("delivered to 1 target")
            assert len(await client.inbox(A)) == 1
            await tui.press("ctrl+s")
            await until(lambda: _has(client, A, 2))


async def _has(client: RelayClient, subject: str, count: int) -> bool:
    return len(await client.inbox(subject)) == count
