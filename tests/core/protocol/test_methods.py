"""The table of methods holds together, and parameters are taken at their word."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from relay_core.errors import ProtocolError
from relay_core.messages.base import WireModel
from relay_core.messages.dead_letter import DeadLetterFilter
from relay_core.messages.envelope import BudgetOverrides
from relay_core.messages.operator_views import JobArguments
from relay_core.messages.signals import Signal, SignalType
from relay_core.protocol import (
    base,
    consuming,
    deadletters,
    endpoints,
    methods,
    operating,
    publishing,
    reporting,
    scheduling,
    serving,
)
from relay_core.protocol.base import Params
from relay_core.protocol.methods import AGENTS, METHODS, NOTIFICATIONS, Method, parse_params
from relay_core.rules.access import AccessRule
from tests.kit.bus import A, B

PUBLISH = {"subject": A, "from": B, "payload": 1}

EXAMPLES: dict[type[Params], list[Params]] = {
    base.Nothing: [base.Nothing()],
    serving.HelloParams: [serving.HelloParams(), serving.HelloParams(protocol=9, token="t", client="c")],
    publishing.PublishParams: [
        publishing.PublishParams(subject=A, sender=B, payload={"a": [1, {"b": None}]}),
        publishing.PublishParams(
            subject="relay.>",
            sender=B,
            payload="x",
            reply_to=B,
            budget=BudgetOverrides(hop_count=1, max_hops=3, ancestor_chain=("m",), ttl=5, call_budget_remaining=0),
            parent_id="p",
            dedupe_id="d",
        ),
    ],
    publishing.BatchParams: [
        publishing.BatchParams(messages=[]),
        publishing.BatchParams(messages=[publishing.PublishParams(subject=A, sender=B, payload=1)] * 2),
    ],
    consuming.SubscribeParams: [
        consuming.SubscribeParams(pattern="relay.*"),
        consuming.SubscribeParams(pattern=A, max_in_flight=1000),
    ],
    base.PatternParams: [base.PatternParams(pattern="relay.>")],
    consuming.SubscriptionParams: [consuming.SubscriptionParams(subscription_id="s")],
    consuming.DeliveryParams: [consuming.DeliveryParams(delivery_id="1")],
    consuming.FailDeliveryParams: [consuming.FailDeliveryParams(delivery_id="1", reason="why")],
    base.SubjectParams: [base.SubjectParams(subject=A)],
    consuming.PeekParams: [consuming.PeekParams(subject=A), consuming.PeekParams(subject=A, limit=1000)],
    consuming.ClaimParams: [
        consuming.ClaimParams(subject=A),
        consuming.ClaimParams(subject=A, limit=2, lease_ms=1000, ids=["m", "n"]),
    ],
    consuming.WaitParams: [
        consuming.WaitParams(subject=A),
        consuming.WaitParams(subject=A, limit=2, after="m", answer_to="n", timeout_ms=1),
    ],
    endpoints.AddAgentParams: [
        endpoints.AddAgentParams(subject=A),
        endpoints.AddAgentParams(subject=A, description="sums", cwd="/home/me"),
    ],
    base.ListParams: [base.ListParams(), base.ListParams(limit=1, cursor=A)],
    endpoints.OpenReplyParams: [endpoints.OpenReplyParams(), endpoints.OpenReplyParams(key="k" * 64)],
    consuming.CompleteParams: [consuming.CompleteParams(subject=A, id="m")],
    consuming.FailParams: [consuming.FailParams(subject=A, id="m", reason="why")],
    consuming.SignalParams: [
        consuming.SignalParams(
            subject=A,
            signal=Signal(
                type=SignalType.TYPING,
                state="on",
                endpoint_subject=B,
                timestamp="2026-01-01T00:00:00Z",
                data={"a": None},
            ),
        )
    ],
    deadletters.DeadLettersParams: [
        deadletters.DeadLettersParams(),
        deadletters.DeadLettersParams(
            filter=DeadLetterFilter(ids=("m",), code="timeout", failed_before=1, exclude=True), limit=1, cursor="c"
        ),
    ],
    deadletters.DeadLetterParams: [
        deadletters.DeadLetterParams(id="m"),
        deadletters.DeadLetterParams(id="m", endpoint=A),
    ],
    deadletters.PlanParams: [
        deadletters.PlanParams(),
        deadletters.PlanParams(ids=["m"], filter=DeadLetterFilter(sender=B), fresh_budget=True),
    ],
    deadletters.PlanItemsParams: [
        deadletters.PlanItemsParams(plan_id="p"),
        deadletters.PlanItemsParams(plan_id="p", limit=5, cursor="5"),
    ],
    deadletters.RunParams: [
        deadletters.RunParams(plan_id="p"),
        deadletters.RunParams(plan_id="p", rate=0.5, canary=True),
    ],
    deadletters.PlanIdParams: [deadletters.PlanIdParams(plan_id="p")],
    deadletters.EditParams: [deadletters.EditParams(id="m", endpoint=A, payload=[1], fresh_budget=True)],
    deadletters.PurgeParams: [
        deadletters.PurgeParams(),
        deadletters.PurgeParams(ids=["m"], older_than=5, filter=DeadLetterFilter(text="x"), plan_id="p"),
    ],
    deadletters.ExportParams: [
        deadletters.ExportParams(),
        deadletters.ExportParams(filter=DeadLetterFilter(where="code=x"), plan_id="p", limit=9, cursor="c"),
    ],
    operating.ResetBreakerParams: [
        operating.ResetBreakerParams(target=A),
        operating.ResetBreakerParams(target=A, reason="why"),
    ],
    operating.ForceBreakerParams: [operating.ForceBreakerParams(target=A, state="OPEN", reason="why")],
    operating.AdapterParams: [operating.AdapterParams(id="hook")],
    operating.ReloadAdaptersParams: [operating.ReloadAdaptersParams(), operating.ReloadAdaptersParams(id="hook")],
    operating.AddRuleParams: [
        operating.AddRuleParams(rule=AccessRule(sender="relay.>", to=A, action="deny", priority=3))
    ],
    operating.RemoveRuleParams: [operating.RemoveRuleParams(sender="relay.>", to=A)],
    operating.AddTokenParams: [
        operating.AddTokenParams(pattern="relay.>"),
        operating.AddTokenParams(pattern=A, note="n"),
    ],
    base.IdParams: [base.IdParams(id="m")],
    scheduling.ScheduleParams: [scheduling.ScheduleParams(id="tick")],
    reporting.TracesParams: [
        reporting.TracesParams(),
        reporting.TracesParams(id="0", subject=A, sender="b", status="failed", since=1, until=2, limit=3, cursor="c"),
    ],
    serving.WatchParams: [serving.WatchParams(watch_id="w")],
    reporting.JobParams: [reporting.JobParams(name="purge")],
    reporting.RunJobParams: [
        reporting.RunJobParams(name="purge", wait=False),
        reporting.RunJobParams(name="metrics", arguments=JobArguments(since="2026-01-31", until="2026-02-01")),
    ],
    reporting.ReportParams: [reporting.ReportParams(), reporting.ReportParams(date="2026-01-31")],
}


def named(method: str) -> Method:
    return METHODS[method]


class TestTable:
    def test_every_method_stands_under_its_own_name_once(self) -> None:
        source = re.findall(r'Method\(\s*"([\w.]+)"', Path(methods.__file__).read_text())
        assert list(METHODS) == source
        assert all(name == method.name for name, method in METHODS.items())
        assert all(re.fullmatch(r"[a-z]+(\.[a-z]+)?", name) for name in METHODS)

    @pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
    def test_a_method_takes_params_returns_a_model_and_says_what_it_does_in_a_sentence(self, method: Method) -> None:
        assert issubclass(method.params, Params)
        assert issubclass(method.result, WireModel)
        assert re.fullmatch(r"[A-Z].*\.", method.summary)

    @pytest.mark.parametrize("name", NOTIFICATIONS)
    def test_a_notification_is_a_model(self, name: str) -> None:
        assert issubclass(NOTIFICATIONS[name], WireModel)

    def test_every_model_has_a_sentence(self) -> None:
        models = {*(method.params for method in METHODS.values()), *(method.result for method in METHODS.values())}
        for model in (*models, *NOTIFICATIONS.values()):
            assert re.fullmatch(r"[A-Z].*\.", model.__doc__ or "", re.DOTALL), model

    def test_what_may_be_none_may_be_left_out(self) -> None:
        # Since that is how it is written: without what is None.
        for model in sorted(all_models(), key=lambda model: model.__name__):
            for name, field in model.model_fields.items():
                if NoneType in get_args(field.annotation):
                    assert not field.is_required(), f"{model.__name__}.{name}"

    def test_no_params_can_be_told_apart_only_by_the_order_of_their_keys(self) -> None:
        for method in METHODS.values():
            names = [field.alias or name for name, field in method.params.model_fields.items()]
            assert len(set(names)) == len(names)

    def test_what_only_looks_around_or_changes_the_operators_things_is_the_operators(self) -> None:
        own = ("deadletters", "breakers", "senders", "adapters", "access", "tokens", "traces", "jobs", "reports")
        for name, method in METHODS.items():
            if name.split(".")[0] in (*own, "config", "state", "metrics", "mailboxes"):
                assert AGENTS not in method.traits, name
        assert AGENTS not in METHODS["server.stop"].traits
        assert AGENTS not in METHODS["server.status"].traits

    # CONTRACT.md's names.
    @pytest.mark.parametrize(
        ("name", "required", "optional"),
        [
            ("publish", {"subject", "from", "payload"}, {"replyTo", "budget", "parentId", "dedupeId"}),
            ("endpoints.register", {"subject"}, set()),
            ("endpoints.list", set(), {"limit", "cursor"}),
            ("inbox.peek", {"subject"}, {"limit", "after"}),
            ("inbox.claim", {"subject"}, {"limit", "leaseMs", "ids"}),
            ("inbox.complete", {"subject", "id"}, {"late"}),
            ("inbox.fail", {"subject", "id", "reason"}, set()),
            ("subscribe", {"pattern"}, {"maxInFlight", "queue", "starts"}),
            ("ack", {"deliveryId"}, set()),
            ("fail", {"deliveryId", "reason"}, {"putBack"}),
            ("deadletters.list", set(), {"filter", "limit", "cursor"}),
            ("server.info", set(), set()),
        ],
    )
    def test_the_names_that_others_rely_on(self, name: str, required: set[str], optional: set[str]) -> None:
        fields = METHODS[name].params.model_fields
        found = {field.alias or key: field.is_required() for key, field in fields.items()}
        assert {key for key, needed in found.items() if needed} == required
        assert {key for key, needed in found.items() if not needed} == optional

    def test_the_names_of_the_message_notification(self) -> None:
        fields = NOTIFICATIONS["message"].model_fields
        assert {field.alias for field in fields.values()} == {"subscriptionId", "deliveryId", "envelope"}


class TestParams:
    def test_there_is_an_example_of_each(self) -> None:
        assert {method.params for method in METHODS.values()} == set(EXAMPLES)

    @pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: str(kind.__name__))
    def test_what_is_written_is_read_again(self, kind: type[Params]) -> None:
        method = next(method for method in METHODS.values() if method.params is kind)
        for params in EXAMPLES[kind]:
            assert parse_params(method, params.to_wire()) == params

    @pytest.mark.parametrize(
        ("method", "params", "text"),
        [
            ("publish", {**PUBLISH, "subjekt": 1}, "publish: unknown key 'subjekt', did you mean 'subject'?"),
            ("publish", {**PUBLISH, "replyto": A}, "did you mean 'replyTo'?"),
            ("inbox.fail", {"subject": A, "id": "m", "raeson": "r"}, "unknown key 'raeson', did you mean 'reason'?"),
            ("publish", {**PUBLISH, "qqqqqq": 1}, "unknown key 'qqqqqq'; known keys: subject, from, payload"),
            ("publish.batch", {"messages": [{**PUBLISH, "form": B}]}, "publish.batch: messages.0: unknown key 'form'"),
            ("server.ping", {"x": 1}, "server.ping: unknown key 'x'"),
            ("inbox.peek", {"subject": A, "limitt": 1}, "did you mean 'limit'?"),
            ("publish", {**PUBLISH, "x" * 5000: 1}, "unknown key 'xxx"),
        ],
        ids=["near", "case", "instead", "far", "nested", "none-known", "another", "long"],
    )
    def test_an_unknown_key_is_named_with_the_nearest_known_one(
        self, method: str, params: dict[str, Any], text: str
    ) -> None:
        with pytest.raises(ProtocolError) as refused:
            parse_params(named(method), params)
        assert refused.value.code == "invalid_params"
        assert text in refused.value.message
        assert len(refused.value.message) < 300

    @pytest.mark.parametrize(
        ("method", "params"),
        [
            ("publish", {"subject": A, "sender": B, "payload": 1}),
            ("publish", {**PUBLISH, "reply_to": A}),
            ("publish", {**PUBLISH, "dedupe_id": "d"}),
            ("subscribe", {"pattern": A, "max_in_flight": 1}),
            ("ack", {"delivery_id": "1"}),
            ("unsubscribe", {"subscription_id": "1"}),
            ("inbox.claim", {"subject": A, "lease_ms": 1000}),
            ("deadletters.run", {"plan_id": "p"}),
            ("deadletters.purge", {"older_than": 1}),
            ("state.unwatch", {"watch_id": "w"}),
        ],
        ids=lambda value: value if isinstance(value, str) else "-".join(sorted(value)),
    )
    def test_python_names_are_not_the_wires(self, method: str, params: dict[str, Any]) -> None:
        with pytest.raises(ProtocolError) as refused:
            parse_params(named(method), params)
        assert refused.value.code == "invalid_params"

    @pytest.mark.parametrize(
        ("method", "key"),
        [
            (method.name, field.alias or key)
            for method in METHODS.values()
            for key, field in method.params.model_fields.items()
            if field.is_required() and field.annotation is not Any
        ],
    )
    def test_a_needed_key_that_is_missing_null_or_of_another_type_is_named(self, method: str, key: str) -> None:
        good = EXAMPLES[named(method).params][-1].to_wire()
        parse_params(named(method), good)
        for wrong in ({**good, key: None}, {**good, key: 1}, {**good, key: True}, without(good, key)):
            with pytest.raises(ProtocolError) as refused:
                parse_params(named(method), wrong)
            assert refused.value.code == "invalid_params"
            assert refused.value.message.startswith(f"{method}: {key}: ")

    @pytest.mark.parametrize(
        ("method", "params"),
        [
            ("inbox.peek", {"subject": A, "limit": "5"}),
            ("inbox.peek", {"subject": A, "limit": 5.0}),
            ("inbox.peek", {"subject": A, "limit": True}),
            ("inbox.peek", {"subject": A, "limit": 0}),
            ("inbox.peek", {"subject": A, "limit": 1001}),
            ("inbox.claim", {"subject": A, "leaseMs": 999}),
            ("subscribe", {"pattern": A, "maxInFlight": 0}),
            ("publish", {**PUBLISH, "dedupeId": "x" * 201}),
            ("publish", {**PUBLISH, "dedupeId": 7}),
            ("publish", {**PUBLISH, "budget": []}),
            ("publish", {**PUBLISH, "budget": {"maxHops": 0}}),
            ("publish.batch", {"messages": {}}),
            ("publish.batch", {"messages": [1]}),
            ("publish.batch", {"messages": [PUBLISH] * 1001}),
            ("deadletters.run", {"planId": "p", "canary": 1}),
            ("deadletters.run", {"planId": "p", "rate": 0}),
            ("deadletters.run", {"planId": "p", "rate": "1"}),
            ("deadletters.plan", {"ids": "m"}),
            ("deadletters.plan", {"ids": [1]}),
            ("deadletters.list", {"filter": "m"}),
            ("breakers.force", {"target": A, "state": "HALF_OPEN", "reason": "r"}),
            ("reports.get", {"date": "../../etc/passwd"}),
            ("reports.get", {"date": "2026-01-31\n"}),
            ("jobs.run", {"name": "purge", "wait": "yes"}),
            ("access.add", {"rule": {"from": "a b", "to": A, "action": "deny"}}),
            ("signal.send", {"subject": A, "signal": {"type": "nonsense"}}),
            ("server.hello", {"client": "x" * 201}),
        ],
        ids=[
            "limit-text",
            "limit-float",
            "limit-true",
            "limit-0",
            "limit-1001",
            "lease-too-short",
            "no-flight",
            "dedupe-too-long",
            "dedupe-number",
            "budget-array",
            "budget-no-hops",
            "batch-object",
            "batch-number",
            "batch-too-long",
            "canary-number",
            "rate-0",
            "rate-text",
            "ids-text",
            "ids-numbers",
            "filter-text",
            "half-open",
            "date-path",
            "date-line-end",
            "wait-text",
            "rule-with-space",
            "signal-nonsense",
            "client-too-long",
        ],
    )
    def test_a_value_of_another_type_or_outside_its_limits_is_refused(
        self, method: str, params: dict[str, Any]
    ) -> None:
        with pytest.raises(ProtocolError) as refused:
            parse_params(named(method), params)
        assert refused.value.code == "invalid_params"
        assert refused.value.message.startswith(f"{method}: ")

    def test_a_refused_value_is_not_repeated(self) -> None:
        with pytest.raises(ProtocolError) as refused:
            parse_params(named("server.hello"), {"token": ["canary-4711"]})
        assert "canary" not in refused.value.message

    def test_null_stands_for_an_optional_value_that_is_not_there(self) -> None:
        left_out = parse_params(named("publish"), PUBLISH)
        assert parse_params(named("publish"), {**PUBLISH, "replyTo": None, "budget": None}) == left_out

    def test_a_payload_may_be_null_but_must_be_there(self) -> None:
        assert parse_params(named("publish"), {**PUBLISH, "payload": None}) == publishing.PublishParams(
            subject=A, sender=B, payload=None
        )
        with pytest.raises(ProtocolError, match="payload"):
            parse_params(named("publish"), without(PUBLISH, "payload"))


def all_models() -> set[type[BaseModel]]:
    """Return every model of the protocol, with those inside of others."""
    found: set[type[BaseModel]] = set()
    waiting: list[Any] = [*NOTIFICATIONS.values()]
    waiting += chain.from_iterable((method.params, method.result) for method in METHODS.values())
    while waiting:
        one = waiting.pop()
        if isinstance(one, type) and issubclass(one, BaseModel):
            if one not in found:
                found.add(one)
                waiting += [field.annotation for field in one.model_fields.values()]
        elif get_origin(one) is not Literal:
            waiting += get_args(one)
    return found


def without(params: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name != key}
