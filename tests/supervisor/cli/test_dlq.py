"""Dead letters are found, judged, replayed, edited, exported and purged from the command line."""

from __future__ import annotations

import json
import os
import pty
from pathlib import Path

import pytest

from tests.kit.cli import Relay
from tests.kit.waiting import PATIENCE_SECS, wait_until


def dead(relay: Relay, *subjects: str, payload: object = "x", sender: str = "relay.me") -> list[str]:
    """Publish to subjects that have nobody, and return the ids of the dead letters."""
    return [relay.publish(subject, payload, sender) for subject in subjects]


def test_a_dead_letter_is_listed_shown_and_grouped(relay: Relay) -> None:
    (id,) = dead(relay, "relay.list.a", payload={"content": "look here"})
    shown, document = relay.both("dlq", "show", id)
    assert "look here" in shown.out
    assert "no_match" in shown.out
    assert document["messageId"] == id
    assert relay("dlq", "show", "01ARZ3NDEKTSV4RRFFQ69G5FAV", code=1).out == ""


def test_a_listing_is_filtered(relay: Relay) -> None:
    dead(relay, "relay.filter.a", payload={"content": "needle"}, sender="relay.filterer")
    filters = {
        ("--code", "no_match"): 1,
        ("--code", "cycle"): 0,
        ("--endpoint", "relay.filter.*"): 1,
        ("--endpoint", "relay.other"): 0,
        ("--reason", "no matching"): 1,
        ("--text", "needle"): 1,
        ("--text", "haystack"): 0,
        ("--since", "1h"): 1,
        ("--before", "1h"): 0,
        ("--since", "2020-01-01T00:00Z"): 1,
        ("--where", "to=relay.filter.* reason~MATCHING !code=cycle age<1h NEEDLE"): 1,
        ("--where", "!to~filter"): 0,
        ("--where", ""): 1,
    }
    found = {one: relay("dlq", "--sender", "relay.filterer", *one, "--json").json["total"] for one in filters}
    assert found == filters
    assert "not a time" in relay("dlq", "--since", "yesterday", code=2).err
    assert "no field 'colour'" in relay("dlq", "--where", "colour=red", code=2).err


def test_a_filter_says_what_is_planned_exported_and_purged(relay: Relay) -> None:
    kept, chosen = dead(relay, "relay.where.kept", "relay.where.chosen")
    where = ("--where", "to=relay.where.* !to~kept")
    assert [item["messageId"] for item in relay("dlq", "plan", *where, "--json").json["items"]] == [chosen]
    assert [json.loads(line)["messageId"] for line in relay("dlq", "export", *where).out.splitlines()] == [chosen]
    assert relay("dlq", "purge", *where, "--yes", "--json").json == {"purged": 1, "partial": 0}
    assert relay("dlq", "show", kept, "--json").json["messageId"] == kept
    document = relay("dlq", "replay", "--where", "to=relay.where.kept", "--json", code=4).json
    assert [item["verdict"] for item in document["plan"]["items"]] == ["no_target"]


def test_a_replay_is_planned_shown_and_run(relay: Relay) -> None:
    ids = dead(relay, "relay.replay.a", "relay.replay.b")
    plan, document = relay.both("dlq", "plan", *ids)
    assert "2 no_target" in plan.out
    assert "--plan" in plan.err
    assert {item["verdict"] for item in document["items"]} == {"no_target"}
    assert relay("dlq", "replay", *ids, "--json", code=4).json["replay"]["outcome"]["skipped"] == 2
    relay.add("relay.replay.a")
    assert "1 will_deliver" in relay("dlq", "replay", *ids, "--dry-run").out
    again = relay("dlq", "plan", ids[0], "--json").json["id"]
    ran = relay.real("dlq", "replay", "--plan", again, "--canary", "--rate", "100")
    assert "1 delivered, 0 failed" in ran.out
    runs, document = relay.both("dlq", "runs")
    assert again in runs.out
    assert document["replays"][-1]["planId"] == again
    assert relay.waiting("relay.replay.a") == ["x"]


def test_a_canary_says_that_it_waits_for_an_acknowledgement(relay: Relay) -> None:
    subject = "relay.canary.a"
    ids = dead(relay, *[subject] * 3)
    relay.add(subject)
    plan = relay("dlq", "replay", *ids, "--canary", "--no-wait", "--json").json["replay"]["planId"]
    wait_until(lambda: relay.waiting(subject) == ["x"])
    wait_until(lambda: f"waits for an acknowledgement from {subject}" in _why_paused(relay, plan))
    claimed = relay("inbox", subject, "--claim", "--json").json["messages"]
    relay("ack", subject, claimed[0]["id"])
    wait_until(lambda: relay("dlq", "runs", "--json").json["replays"][-1]["outcome"]["delivered"] == 3)
    assert len(relay.waiting(subject)) == 2


def _why_paused(relay: Relay, plan: str) -> str:
    (outcome,) = [one["outcome"] for one in relay("dlq", "runs", "--json").json["replays"] if one["planId"] == plan]
    return str(outcome["detail"]) if outcome["state"] == "paused" else ""


def test_a_replay_needs_a_selection(relay: Relay) -> None:
    for verb in ("plan", "replay", "purge"):
        assert "--all" in relay("dlq", verb, code=2).err
    assert "nothing to replay" in relay("dlq", "replay", "--code", "cycle").out


@pytest.mark.parametrize("option", ["--where", "--code", "--endpoint", "--sender", "--reason", "--text", "--since"])
def test_a_plan_is_carried_out_as_it_is_or_not_at_all(relay: Relay, option: str) -> None:
    value = "1h" if option == "--since" else "code=x" if option == "--where" else "x"
    assert "--plan already selects" in relay("dlq", "replay", "--plan", "P", option, value, code=2).err


def test_a_run_is_paused_resumed_and_cancelled(relay: Relay) -> None:
    subjects = [f"relay.steer.{number}" for number in range(3)]
    ids = dead(relay, *subjects)
    relay.add(*subjects)
    # So slow that the first message alone is under way while it is steered.
    started = relay("dlq", "replay", *ids, "--rate", "0.001", "--no-wait", "--json").json
    plan = started["replay"]["planId"]
    assert "paused" in relay.real("dlq", "pause", plan).out
    assert relay.real("dlq", "resume", plan, "--json").json["outcome"]["state"] == "running"
    assert relay.real("dlq", "cancel", plan, "--json").json["outcome"]["state"] == "cancelled"
    assert relay("dlq", "pause", "nosuch", code=1).err.startswith("relay: ")


def test_an_edited_copy_takes_a_dead_letters_place(relay: Relay) -> None:
    ids = dead(relay, "relay.edit.a", "relay.edit.b")
    relay.add("relay.edit.a")
    assert relay.real("dlq", "edit", ids[0], '{"fixed": true}', "--json").json["deliveredTo"] == 1
    assert relay.waiting("relay.edit.a") == [{"fixed": True}]
    assert "not valid JSON" in relay("dlq", "edit", ids[1], "{", code=2).err
    assert "no consumer" in relay("dlq", "edit", dead(relay, "relay.edit.c")[0], "1", code=4).err
    relay.add("relay.edit.b")
    assert "replaced by" in relay("dlq", "edit", ids[1], "-", "--fresh-budget", stdin="[1]").out


def test_dead_letters_are_exported_as_lines(relay: Relay) -> None:
    ids = dead(relay, "relay.export.a", "relay.export.b", sender="relay.exporter")
    ran = relay.real("dlq", "export", "--sender", "relay.exporter")
    assert [json.loads(line)["messageId"] for line in ran.out.splitlines()] == ids
    assert ran.err == "2 exported\n"


def test_a_purge_asks_first_or_wants_to_be_told_yes(relay: Relay) -> None:
    ids = dead(relay, "relay.purge.a", "relay.purge.b", "relay.purge.c", sender="relay.purger")
    assert "--yes" in relay("dlq", "purge", "--sender", "relay.purger", code=2).err
    assert relay.real("dlq", "purge", ids[0], "--yes", "--json").json == {"purged": 1, "partial": 0}
    assert "0 purged" in relay("dlq", "purge", "--older-than", "1h", "--sender", "relay.purger").out
    for typed, code in (("99", 1), ("2", 0)):
        leader, follower = pty.openpty()
        try:
            process = relay.start(
                "dlq", "purge", "--sender", "relay.purger", stdin=follower, stderr=follower, stdout=follower
            )
            os.write(leader, f"{typed}\n".encode())
            assert process.wait(PATIENCE_SECS) == code
            assert b"Type 2 to continue" in os.read(leader, 10_000)
        finally:
            os.close(leader)
            os.close(follower)
    assert relay.letters(sender="relay.purger") == []


def test_the_kept_copy_of_a_partial_delivery_is_shown_and_purged_by_name(relay: Relay) -> None:
    (id,) = dead(relay, "relay.aside.a", sender="relay.asider")
    (path,) = relay.daemon.data_dir.rglob(f"failed/{id}.json")
    aside = path.with_name(f"{id[:-4]}{'0000' if id[-4:] != '0000' else '0001'}.json")
    record = json.loads(path.read_text()) | {"partial": True}
    record["envelope"]["id"] = aside.stem
    aside.write_text(json.dumps(record))
    relay("jobs", "run", "index")
    assert relay("trace", aside.stem, "--json").json["spans"][0]["status"] == "partial_failure"
    assert "no_match (partial)" in relay("dlq", "--sender", "relay.asider").out
    assert "other targets received the message" in relay("dlq", "show", aside.stem).out
    planned = relay("dlq", "plan", aside.stem).out
    assert "no_target" in planned
    assert "partial: there is still no target" in planned
    chosen = ("--sender", "relay.asider", "--yes", "--json")
    assert relay("dlq", "purge", *chosen, "--where", "partial=no").json == {"purged": 1, "partial": 0}
    assert (path.exists(), aside.exists()) == (False, True)
    assert relay("dlq", "purge", *chosen).json == {"purged": 1, "partial": 1}
    assert not aside.exists()


def test_without_a_supervisor_it_exits_3(tmp_path: Path) -> None:
    assert "relay-supervisor run" in Relay()("dlq", "--socket", str(tmp_path / "s"), code=3).err
