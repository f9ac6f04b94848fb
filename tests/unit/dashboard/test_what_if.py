"""Answers of the twin about the last minutes."""

from __future__ import annotations

import threading
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lately import CONTENT, SURE, fleet, joined, rows, told

from inferway.dashboard.question import POLICIES, ObservedTask, Question, WhatIfError
from inferway.dashboard.rehearsals import joined_by
from inferway.dashboard.what_if import Canceled, answer, rehearsal
from inferway.dispatch.contract import policy_class
from inferway.twin.scenario import scenario_of

MINE = """\
from typing import NamedTuple
open("{ran}", "w").close()
class Mine(NamedTuple):
    @classmethod
    def build(cls, fleet, *, target, rate_per_s):
        return cls()
    def choose(self, site, request, draw):
        return 1
"""


def asked(of: ObservedTask | None = None, **keys: Any) -> dict[str, Any]:
    question = Question("http://here:8002", "digits", **keys)
    return answer(question, told() if of is None else of, threading.Event())


def test_the_present_is_replayed_and_its_error_is_the_band() -> None:
    found = asked()
    numbers = found["numbers"]
    assert numbers["live"]["mean_s"] == pytest.approx(3.3e-3, rel=0.01)
    assert numbers["live"]["accuracy"] == pytest.approx(0.8, abs=0.001)
    # Nothing else was asked for.
    assert numbers["what_if"] == numbers["present"]
    assert numbers["present"]["accuracy"] == pytest.approx(0.8, abs=0.005)
    mean = numbers["present"]["mean_s"] / numbers["live"]["mean_s"] - 1.0
    assert found["error"]["mean"] == pytest.approx(mean, abs=1e-3)
    count = len(found["ends_s"])
    for name in ("mean_s", "p99_s", "accuracy"):
        low, high = (np.array(one) for one in found["band"][name])
        live, twin = np.array(found["live"][name]), np.array(found["twin"][name])
        assert len(live) == len(twin) == len(low) == count
        assert ((low <= twin + 1e-9) & (twin <= high + 1e-9)).all()
        # What was lies in it, but for a few stretches.
        assert ((low <= live + 1e-6) & (live <= high + 1e-6)).mean() >= 0.75


def test_other_settings_give_other_courses() -> None:
    usual = asked()["numbers"]["what_if"]
    accurate = asked(target=0.88)
    assert accurate["numbers"]["what_if"]["accuracy"] == pytest.approx(0.88, abs=0.01)
    assert accurate["target"] == 0.88
    assert accurate["numbers"]["what_if"]["mean_s"] > usual["mean_s"]
    fast = asked(policy="fastest-only")["numbers"]["what_if"]
    assert fast["accuracy"] == pytest.approx(0.7)
    assert fast["mean_s"] < usual["mean_s"] / 2
    double = asked(rate=2.0)["numbers"]
    assert double["what_if"]["rate_per_s"] == pytest.approx(
        2 * double["live"]["rate_per_s"], rel=0.05
    )
    assert double["what_if"]["mean_s"] > usual["mean_s"]
    more = asked(rate=2.0, instances={"big": 3})["numbers"]["what_if"]
    assert more["mean_s"] < double["what_if"]["mean_s"]
    alone = asked(instances={"tiny": 0})["numbers"]["what_if"]
    assert alone["accuracy"] == pytest.approx(0.9)


def test_who_may_ask_twice_is_quicker_where_confidences_are_known() -> None:
    sure = told(confidence=SURE)
    usual, twice = (asked(sure, policy=name) for name in ("priced", "escalate"))
    numbers = twice["numbers"]["what_if"]
    assert numbers["accuracy"] == pytest.approx(0.8, abs=0.01)
    assert numbers["mean_s"] < 0.9 * usual["numbers"]["what_if"]["mean_s"]
    # The course counts what answers are expected to be, as the mean does.
    assert np.nanmean(twice["twin"]["accuracy"]) == pytest.approx(numbers["accuracy"], abs=0.01)
    # More than the best variant has, as `big` errs where `tiny` knows.
    assert asked(sure, policy="escalate", target=0.91)["target"] == 0.91
    with pytest.raises(ValueError, match="confidence"):
        asked(policy="escalate")


def test_the_balance_begins_where_the_servers_was() -> None:
    # What is owed is made up for.
    kept = rows(200)
    usual = asked(told(kept), rate=0.5)["numbers"]["present"]["accuracy"]
    owed = asked(told(kept, balance=-10.0), rate=0.5)["numbers"]
    assert owed["present"]["accuracy"] > usual + 0.003
    # Another promise begins anew.
    anew = asked(told(kept, balance=-10.0), target=0.79)["numbers"]["what_if"]["accuracy"]
    assert anew < owed["present"]["accuracy"] - 0.003


def test_a_lost_node_takes_what_is_reached_by_way_of_it() -> None:
    classes = fleet()["classes"]
    classes[1] |= {"name": "big@cloud", "node": "cloud", "by": "office"}
    usual = told(classes=classes, target=None, policy="least-cost", node="base")
    for lost in ("cloud", "office"):
        found = asked(usual, lost=lost)
        assert found["numbers"]["what_if"]["accuracy"] == pytest.approx(0.7)
    with pytest.raises(WhatIfError, match="nothing here is answered by node 'attic'"):
        asked(usual, lost="attic")


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"rate": 0.0}, "the rate is multiplied by"),
        ({"policy": "none"}, "no policy 'none'"),
        ({"policy": "./mine.py:Mine"}, "no policy './mine.py:Mine'"),
        ({"instances": {"none": 1}}, "no 1 instances of 'none'"),
        ({"instances": {"tiny": -1}}, "no -1 instances"),
        ({"instances": {"tiny": 0, "big": 0}}, "no instance"),
        ({"target": 0.95}, "above the best variant"),
        ({"rate": 1e-9}, "nothing to replay"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_sentence(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        asked(**keys)


def test_tasks_of_a_target_over_several_are_replayed_together() -> None:
    usual = asked(joined())
    both = usual["targets"]["both"]
    assert both["tasks"] == ["digits", "plain"]
    assert both["accuracy"] == 0.83
    assert both["live"] == pytest.approx(0.8, abs=0.001)
    # It was not kept live, where every other answer was accurate; the twin's policy keeps it.
    assert both["present"] == both["what_if"] == pytest.approx(0.83, abs=0.004)
    alone = asked()["numbers"]["present"]["accuracy"]
    assert usual["numbers"]["present"]["accuracy"] > alone + 0.004
    # What one task owes, the other pays.
    low = asked(joined(), target=0.72)
    assert low["targets"]["both"]["what_if"] == pytest.approx(0.83, abs=0.004)
    owed = asked(joined(balance=-150.0))["targets"]["both"]["present"]
    assert owed > both["present"] + 0.005
    with pytest.raises(ValueError, match="tad, which dispatches digits, keeps no target over sev"):
        asked(joined(), policy="tad")


def test_a_task_without_requests_is_left_out_of_a_target() -> None:
    found = asked(joined(other=rows(3, seed=2)))
    assert found["targets"]["both"]["tasks"] == ["digits"]
    assert found["numbers"]["present"]["accuracy"] == pytest.approx(0.83, abs=0.006)
    (note,) = (note for note in found["notes"] if note.startswith("plain"))
    assert "plain is not replayed beside it: 0 requests came within the last minutes" in note


def test_a_canary_is_told_to_be_a_variant_like_the_others() -> None:
    usual = told()
    tried = told()
    tried.content = deepcopy(tried.content)
    about = {"feedback": {}, "canary": {"variant": "big", "at_least": 0.8}}
    tried.content["tasks"]["digits"] |= about
    (note,) = (note for note in asked(tried)["notes"] if note not in asked(usual)["notes"])
    assert note == "big, which is a canary where this is served, is a variant like the others here"


def test_rows_that_are_none_are_refused() -> None:
    for body in (b"", b"{}\n", b'{"row": []}\nx', told().requests[:-1]):
        with pytest.raises(WhatIfError, match="cannot be read"):
            asked(ObservedTask(CONTENT, fleet(), body))


def test_a_newer_question_ends_it() -> None:
    stop = threading.Event()
    with pytest.raises(Canceled):
        answer(Question("u", "digits"), told(), stop, lambda words: stop.set())


def test_code_of_another_process_is_not_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "mine.py").write_text(MINE.format(ran=ran))
    for policy in (f"{tmp_path}/mine.py:Mine", "./mine.py:Mine"):
        content = CONTENT | {"dispatch": {"policy": policy}}
        with pytest.raises(WhatIfError, match="only a page that is started with it"):
            rehearsal(ObservedTask(content, fleet()))
        within = {"digits": CONTENT["tasks"]["digits"] | {"dispatch": {"policy": policy}}}
        with pytest.raises(WhatIfError, match="only a page that is started with it"):
            rehearsal(ObservedTask(CONTENT | {"tasks": within}, fleet()))
    assert not ran.exists()
    # Of a page that is started with the server, its policy is the starter's own.
    mine = CONTENT | {"dispatch": {"policy": "./mine.py:Mine"}}
    deployment, _ = rehearsal(ObservedTask(mine, fleet(), folder=str(tmp_path)))
    assert deployment.folder == tmp_path
    assert policy_class(deployment.policy_of("digits").policy, deployment.folder) is not None
    assert ran.exists()


def test_nothing_of_the_file_but_its_settings_is_needed() -> None:
    content = CONTENT | {
        "tasks": {"digits": {"variants": {"far": {"remote": "http://nowhere/v2/models/x"}}}},
        "nodes": {"here": {"budget": "1 GB"}},
    }
    deployment, name = rehearsal(ObservedTask(content, fleet()))
    (task,) = deployment.tasks.values()
    assert (name, task.accuracy_target) == ("digits", 0.8)
    assert {one.name: one.accuracy for one in task.variants.values()} == {"tiny": 0.7, "big": 0.9}
    assert deployment.policy_of(task).policy == "priced"


def test_every_policy_that_may_be_asked_for_can_be_made() -> None:
    deployment, _ = rehearsal(ObservedTask(CONTENT, fleet(deadline_s=1.0, confidence=SURE)))
    for policy in POLICIES:
        assert deployment.with_(policy=policy).policy_of("digits").policy == policy


@pytest.mark.parametrize("tasks", [["signs"], ["signs", "forms"]])
def test_who_schedules_other_tasks_plays_no_part(tasks: list[str]) -> None:
    dispatched = {**CONTENT["tasks"]["digits"], "dispatch": {"policy": "priced"}}
    content = {
        **CONTENT,
        "tasks": {"digits": dispatched},
        "scheduling": {"policy": "rl-po", "checkpoint": "policy.npz", "tasks": tasks},
    }
    deployment, name = rehearsal(ObservedTask(content, fleet()))
    assert deployment.policy_of(name).policy == "priced"
    assert deployment.scheduling is None


def test_tasks_of_one_policy_are_not_replayed() -> None:
    scheduling = {"policy": "rl-po", "checkpoint": "policy.npz", "tasks": ["digits", "forms"]}
    with pytest.raises(WhatIfError, match="one policy schedules digits and forms together"):
        rehearsal(ObservedTask({**CONTENT, "scheduling": scheduling}, fleet()))


def test_devices_go_along() -> None:
    classes = fleet()["classes"]
    classes[0] |= {"device": "cpu", "slots": 1}
    classes[1] |= {"device": "cpu", "slots": 2}
    classes.append(classes[0] | {"name": "far", "device": None, "slots": 0})
    of = ObservedTask(CONTENT, fleet(classes=classes, devices={"cpu": 2, "gpu": 1}))
    deployment, name = rehearsal(of)
    scenario = scenario_of(deployment.with_(instances={"digits/big": 3}), name)
    shared = scenario.fleet.devices
    assert shared is not None
    runs_on = dict(zip(scenario.fleet.variants, scenario.fleet.runs_on, strict=True))
    assert (runs_on["tiny"], runs_on["big"]) == ("cpu", "cpu")
    assert dict(zip(scenario.fleet.variants, shared.taken.tolist(), strict=True))["big"] == 2
    slots = dict(zip(shared.names, shared.slots.tolist(), strict=True))
    assert (slots["cpu"], slots["gpu"]) == (2, 1)
    assert slots[runs_on["far"]] > 1000  # nobody waits there


def test_exclusive_devices_go_along() -> None:
    classes = fleet()["classes"]
    for one, load_s in zip(classes, (0.0, 0.25), strict=True):
        one |= {"device": "gpu", "slots": 1, "load_s": load_s}
    deployment, name = rehearsal(told(classes=classes, devices={"gpu": 1, "cpu": 2}))
    shared = scenario_of(deployment, name).fleet.devices
    assert shared is not None
    exclusive = dict(zip(shared.names, shared.exclusive.tolist(), strict=True))
    assert exclusive == {"gpu": True, "cpu": False}
    assert sorted(shared.loads_s.tolist()) == pytest.approx([0.0, 0.25], abs=1e-6)


def test_who_shares_a_core_waits_in_the_replay() -> None:
    classes = fleet()["classes"]
    for one in classes:
        one |= {"device": "cpu", "slots": 1}
    apart, together = asked(rate=2.0), asked(told(classes=classes, devices={"cpu": 1}), rate=2.0)
    mean_s = [one["numbers"]["what_if"]["mean_s"] for one in (apart, together)]
    assert mean_s[1] > 1.2 * mean_s[0]


def test_tasks_that_share_a_core_are_replayed_together() -> None:
    classes = fleet()["classes"]
    for one in classes:
        one |= {"device": "cpu", "slots": 1}
    keys: dict[str, Any] = {"classes": classes, "devices": {"cpu": 1}}
    beside = told(**keys, task="plain", kind="plain")
    both = told(**keys)
    both.content = {**CONTENT, "tasks": {"plain": CONTENT["tasks"]["digits"], **CONTENT["tasks"]}}
    both.beside = [ObservedTask({}, beside.fleet, beside.requests)]
    mean_s = [asked(one)["numbers"]["present"]["mean_s"] for one in (told(**keys), both)]
    assert mean_s[1] > 1.2 * mean_s[0]


def test_devices_join_tasks_whose_instances_cannot_all_run_at_once() -> None:
    tiny, big = fleet()["classes"]
    tiny |= {"device": "cpu", "slots": 1}
    big |= {"device": "gpu", "slots": 1}
    slots = {"cpu": 2, "gpu": 1}
    fleets = {
        "a": fleet(classes=[tiny], devices=slots),
        "b": fleet(classes=[tiny, big], devices=slots),
        "c": fleet(classes=[big], devices=slots),
    }
    assert joined_by({}, "a", fleets) == ["a"]
    assert joined_by({}, "b", fleets) == ["b", "c"]
    targets = {"all": {"tasks": ["a", "c"], "accuracy": 0.8}}
    assert joined_by({"targets": targets}, "b", fleets) == ["b", "c", "a"]


def test_batches_go_along() -> None:
    kept, classes = rows(), fleet()["classes"]
    classes[1]["batch"] = {
        "sizes": [1, 4], "service_s": [5e-3, 8e-3], "min": 1, "max": 4, "pad": False, "wait_s": 0.0,
    }  # fmt: skip
    deployment, _ = rehearsal(told(kept, classes=classes))
    batch = deployment.tasks["digits"].variants["big"].batch_on("cpu")
    assert batch is not None
    assert (batch.sizes, batch.service_s) == ((1, 4), (5e-3, 8e-3))
    assert asked(told(kept, classes=classes))["numbers"]["present"]["mean_s"] > 0.0
