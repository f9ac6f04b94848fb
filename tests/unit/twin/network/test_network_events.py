"""Rehearsing a network request by request."""

from __future__ import annotations

import json
import threading
from math import inf

import numpy as np
import pytest

import inferway
from inferway.network.demand import requests_of
from inferway.network.layout import deployed
from inferway.twin.network.engine import Engine
from inferway.twin.network.events import simulate_events
from inferway.twin.slots import placement_of, run_slots, simulate_slots


class Same:
    """The very requests of an event run, as counts by slot."""

    def __init__(self, network, demand, slots) -> None:
        trace = requests_of(network, demand, slots * network.slot_s)
        slot = np.floor(trace.time_s / network.slot_s).astype(int)
        self._counts = np.zeros((slots, len(network.requests.task)), np.int64)
        np.add.at(self._counts, (slot, trace.type), 1)

    def counts(self, slot):
        return self._counts[slot]


def in_slots(deployment, policy, slots):
    """What the slot twin says of the same requests."""
    network, demand = deployed(deployment)
    _, built = placement_of(
        deployment,
        network,
        demand,
        slots=slots,
        policy=policy,
        options={},
    )
    return run_slots(network, Same(network, demand, slots), built, slots=slots)


@pytest.mark.parametrize("policy", ["static-greedy", "repository-only"])
def test_without_queues_and_moves_it_is_the_slot_twin(small, policy) -> None:
    deployment = small()
    slots, events = (
        in_slots(deployment, policy, 6),
        simulate_events(deployment, slots=6, policy=policy),
    )
    assert events.requests == pytest.approx(slots.requests)
    assert events.gain == pytest.approx(slots.gain, abs=1e-6)
    assert events.ntag_ms == pytest.approx(slots.ntag_ms, abs=1e-9)
    assert events.latency_s == pytest.approx(slots.latency_s, rel=1e-9)
    assert events.inaccuracy == pytest.approx(slots.inaccuracy, rel=1e-9)
    assert events.served == pytest.approx(slots.served)
    assert events.presence == pytest.approx(slots.presence)
    for mine, theirs in ((events.tiers, slots.tiers), (events.tasks, slots.tasks)):
        for name, part in theirs.items():
            assert mine[name].to_json() == pytest.approx(part.to_json(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("policy", ["infida", "olag"])
def test_moves_that_take_no_time_differ_by_what_offers_take(small, policy) -> None:
    # Requests go by the old offers while the news of a move is under way, and copies that are to
    # go stay until then: 0.1 to 0.15 s of 20.
    deployment = small()
    slots = in_slots(deployment, policy, 8)
    events = simulate_events(deployment, slots=8, policy=policy, fetch_rate=inf, start_s=0.0)
    assert slots.mu_bytes_per_slot > 0
    assert events.mu_bytes_per_slot == pytest.approx(slots.mu_bytes_per_slot, rel=0.05)
    assert events.ntag_ms == pytest.approx(slots.ntag_ms, rel=0.015)
    assert events.latency_s == pytest.approx(slots.latency_s, rel=0.03)
    assert events.lost == 0


def test_with_requests_of_its_own_the_slot_twin_says_nearly_the_same(small) -> None:
    deployment = small()
    slots = simulate_slots(deployment, slots=20, policy="static-greedy")
    events = simulate_events(deployment, slots=20, policy="static-greedy")
    assert events.requests.sum() == slots.requests.sum()  # constant arrivals
    assert events.ntag_ms == pytest.approx(slots.ntag_ms, rel=0.03)


def test_loading_takes_time_in_which_the_old_ones_serve(small) -> None:
    deployment = small()
    quick = simulate_events(deployment, slots=6, policy="olag", fetch_rate=inf, start_s=0.0)
    slow = simulate_events(deployment, slots=6, policy="olag", fetch_rate=50e6)
    assert slow.ntag_ms < quick.ntag_ms - 1
    assert slow.lost == 0
    assert 0.5 < slow.used_most <= 1 + 1e-9
    # Nothing is there before its bytes are: the first slot has repositories alone, and the second
    # while the first copies load.
    assert slow.gain[0] == pytest.approx(0, abs=1e-6)
    assert slow.gain[1] < 0.9 * quick.gain[1]


def test_all_requests_are_accounted_for(small) -> None:
    deployment = small(("rate: 7/s", "rate: 400/s"), ("process: constant", "process: poisson"))
    result = simulate_events(deployment, slots=3)
    assert result.answered + result.lost == result.requests.sum()
    assert result.in_system == pytest.approx(result.flow)
    assert result.in_system == pytest.approx(
        result.latency_s * result.answered / (result.slots * result.slot_s), rel=0.01
    )
    assert sum(part.share for part in result.tiers.values()) == pytest.approx(1)
    assert sum(sum(row.values()) for row in result.variants.values()) == pytest.approx(1)
    assert result.p50_s <= result.p95_s <= result.p99_s
    assert 0 < result.forwarded < 1


def test_queues_cost_what_the_slot_twin_does_not_see(small) -> None:
    busy = small(("rate: 7/s", "rate: 300/s"), ("process: constant", "process: poisson"))
    slots = in_slots(busy, "static-greedy", 2)
    events = simulate_events(busy, slots=2, policy="static-greedy")
    assert events.ntag_ms < slots.ntag_ms
    assert events.p99_s > events.p50_s


def test_late_requests_are_dropped_or_served_as_the_node_says(small) -> None:
    # One slow copy at the cloud; deadlines that its queue makes impossible.
    text = (
        (
            "placement: {policy: infida, slot: 20 s}",
            "placement: {policy: repository-only, slot: 20 s}",
        ),
        ("rate: 7/s", "rate: 90/s"),
        ("process: constant", "process: poisson"),
        ("  quiet:\n    max_instances: 2", "  quiet:\n    deadline: 52 ms\n    max_instances: 2"),
    )
    dropped = simulate_events(small(*text), slots=3)
    assert dropped.lost > 0
    assert dropped.answered + dropped.lost == dropped.requests.sum()
    served = simulate_events(
        small(
            *text,
            ("{repository: true}", "{repository: true, late: serve}"),
            ("{budget: 500 MB}", "{budget: 500 MB, late: serve}"),
            ("{budget: 200 MB}", "{budget: 200 MB, late: serve}"),
        ),
        slots=3,
    )
    assert served.lost == 0
    assert served.late > 0


def test_nobody_is_begun_after_the_deadline(small, monkeypatch) -> None:
    begun: list[float] = []
    begin = Engine._begin

    def told(self, server, request) -> None:
        begun.append(self.now_s - request.deadline_s)
        begin(self, server, request)

    monkeypatch.setattr(Engine, "_begin", told)
    result = simulate_events(
        small(
            ("policy: infida", "policy: repository-only"),
            ("rate: 7/s", "rate: 90/s"),
            ("process: constant", "process: poisson"),
            # Longer than predicted, often.
            ("mean: 8 ms", "distribution: hyperexponential, mean: 8 ms, cv: 3"),
            ("  quiet:\n    max_instances", "  quiet:\n    deadline: 90 ms\n    max_instances"),
        ),
        slots=3,
    )
    assert max(begun) <= 0
    assert result.lost > 0
    assert result.answered + result.lost == result.requests.sum()


def test_a_node_that_has_no_room_is_asked_once(small) -> None:
    # Two places at every instance, and the metro close to full: its refusals go to the cloud.
    full = small(
        ("{budget: 600 MB}", "{budget: 600 MB, buffer: 1}"),
        ("policy: infida", "policy: static-greedy"),
        ("rate: 7/s", "rate: 200/s"),
        ("process: constant", "process: poisson"),
    )
    result = simulate_events(full, slots=2)
    assert result.retried > 100
    assert result.lost < result.retried


def test_an_accuracy_target_is_kept_across_nodes(small) -> None:
    target = (
        "  quiet:\n    max_instances",
        "  quiet:\n    accuracy_target: 0.8\n    max_instances",
    )
    unset = ("dispatch: {policy: least-cost}\n", "")
    result = simulate_events(
        small(target, unset, ("rate: 7/s", "rate: 60/s")), slots=5, policy="static-greedy"
    )
    quiet = result.tasks["quiet"]
    # At edge-1 its own large one is the quickest, at 0.9; edge-2 gets no more than it asks for.
    assert 1 - quiet.inaccuracy == pytest.approx(0.85, abs=0.005)
    weak = ("{repository: true}", "{repository: true, pinned: {quiet/tiny: 1}}")
    poor = simulate_events(small(target, unset, weak), slots=1, policy="repository-only")
    assert 1 - poor.tasks["quiet"].inaccuracy < 0.8  # nothing within reach is better
    assert poor.lost == 0


def test_runs_are_seeded(small) -> None:
    deployment = small(("mean: 8 ms", "distribution: exponential, mean: 8 ms"))
    one, same, other = (simulate_events(deployment, slots=2, seed=seed) for seed in (1, 1, 2))
    assert one.gain.tolist() == same.gain.tolist()
    assert one.gain.tolist() != other.gain.tolist()


def test_central_queues_and_bad_numbers_are_refused(small) -> None:
    with pytest.raises(ValueError, match="node metro has `queue: central`"):
        simulate_events(small(("{budget: 600 MB}", "{budget: 600 MB, queue: central}")), slots=1)
    deployment = small()
    with pytest.raises(ValueError, match="one slot or more"):
        simulate_events(deployment, slots=0)
    with pytest.raises(ValueError, match="more than 0 bytes per second"):
        simulate_events(deployment, slots=1, fetch_rate=0.0)
    with pytest.raises(ValueError, match="0 s or more to start"):
        simulate_events(deployment, slots=1, start_s=-1.0)
    with pytest.raises(ValueError, match="`regret` is of whole slots"):
        inferway.simulate(deployment, slots=1, events=True, regret=True)
    with pytest.raises(ValueError, match="`fetch_rate` needs `events`"):
        inferway.simulate(deployment, slots=1, fetch_rate=1e6)


def test_nodes_form_batches_of_their_clients_and_their_neighbors_requests(small) -> None:
    # Each copy at the cloud takes 125/s one by one and 250/s four at once.
    batch = "batch: {sizes: [1, 2, 4], service: [8 ms, 10 ms, 16 ms]}"
    busy = (
        ("policy: infida", "policy: repository-only"),
        ("rate: 7/s", "rate: 160/s"),
        ("process: constant", "process: poisson"),
        ("  quiet:\n    max_instances", "  quiet:\n    deadline: 90 ms\n    max_instances"),
        ("cloud: {repository: true}", "cloud: {repository: true, PINNED}"),
        ("PINNED", "instances: {quiet/large: 2}, pinned: {quiet/large: 2}"),
    )
    alone = simulate_events(small(*busy), slots=2)
    batched = simulate_events(small(*busy, ("mean: 8 ms}", f"mean: 8 ms}}, {batch}")), slots=2)
    assert batched.answered + batched.lost == batched.requests.sum()
    assert batched.lost < alone.lost
    assert batched.p99_s < alone.p99_s
    assert batched.in_system == pytest.approx(batched.flow)


@pytest.mark.parametrize(("own", "other"), [("cpu", "gpu"), ("gpu", "cpu")])
@pytest.mark.parametrize("where", ["cloud", "edge-1"])
def test_nodes_form_the_batches_of_their_own_hardware(small, own, other, where) -> None:
    """A table for each hardware is, where all copies are on one, that one's table for all."""
    well = "sizes: [1, 2, 4], service: [8 ms, 10 ms, 16 ms]"
    badly = "sizes: [1, 2, 4], service: [8 ms, 16 ms, 32 ms]"
    described = {"cloud": "repository: true", "edge-1": "budget: 500 MB"}
    busy = [
        ("policy: infida", "policy: repository-only"),
        ("rate: 7/s", "rate: 160/s"),
        ("process: constant", "process: poisson"),
        ("  quiet:\n    max_instances", "  quiet:\n    deadline: 90 ms\n    max_instances"),
        *(
            (f"{name}: {{{said}}}", f"{name}: {{{said}, hardware: {own if one else other}, MORE}}")
            for name, said in described.items()
            for one in [name == where]
        ),
    ]
    if where == "edge-1":
        busy += [
            (f"hardware: {own}, MORE", f"hardware: {own}, pinned: {{quiet/large: 1}}"),
            ("nodes: [edge-1, edge-2]}}\n  other", "nodes: [edge-1]}}\n  other"),
        ]
    else:
        pinned = "instances: {quiet/large: 2}, pinned: {quiet/large: 2}"
        busy.append((f"hardware: {own}, MORE", f"hardware: {own}, {pinned}"))
    busy.append((", MORE", ""))

    def latency_s(batch: str) -> float:
        text = ("mean: 8 ms}", f"mean: 8 ms}}, batch: {{{batch}}}")
        return float(simulate_events(small(*busy, text), slots=1).latency_s)

    best_s, worst_s = latency_s(well), latency_s(badly)
    near_s = 0.25 * (worst_s - best_s)
    assert near_s > 0.0
    # The other node has a few of the requests at most.
    both_s = latency_s(f"{own}: {{{well}}}, {other}: {{{badly}}}")
    assert both_s == pytest.approx(best_s, abs=near_s)
    turned_s = latency_s(f"{other}: {{{well}}}, {own}: {{{badly}}}")
    assert turned_s == pytest.approx(worst_s, abs=near_s)


def test_a_policy_that_pulls_says_what_is_dropped_where_no_batches_are_offered(small) -> None:
    busy = (
        ("policy: infida", "policy: repository-only"),
        ("rate: 7/s", "rate: 500/s"),
        ("process: constant", "process: poisson"),
        ("  quiet:\n    max_instances", "  quiet:\n    deadline: 10 ms\n    max_instances"),
        ("nodes: [edge-1, edge-2]}}\n  other", "nodes: [cloud]}}\n  other"),
        ("cloud: {repository: true}", "cloud: {repository: true, late: serve}"),
    )
    plain, early = (
        simulate_events(small(*busy, ("policy: least-cost", f"policy: {name}")), slots=1)
        for name in ("most-accurate-only", "hw-e")
    )
    # All that is late is served, but for what the policy drops.
    assert plain.late > 100 * early.late
    assert early.lost > 0 == plain.lost
    assert early.answered + early.lost == early.requests.sum()


def test_what_waits_for_a_larger_batch_is_dropped_at_its_deadline_or_run_at_the_end(small) -> None:
    batch = "batch: {sizes: [1, 4], service: [8 ms, 16 ms], min: 4, max: 4}"
    lone = (
        ("policy: infida", "policy: repository-only"),
        ("rate: 7/s", "rate: 0.5/s"),
        ("mean: 8 ms}", f"mean: 8 ms}}, {batch}"),
        ("dispatch: {policy: least-cost}", "dispatch: {policy: most-accurate-only}"),
    )
    waited = simulate_events(small(*lone), slots=2)
    assert waited.lost == 0
    assert waited.p99_s > 1.0
    deadline = ("  quiet:\n    max_instances", "  quiet:\n    deadline: 1 s\n    max_instances")
    late = simulate_events(small(*lone, deadline), slots=2)
    assert 0 < late.lost < late.requests.sum()
    assert late.answered + late.lost == late.requests.sum()


def test_the_python_api_gives_what_the_command_prints(small) -> None:
    told: list[tuple[str, int]] = []
    result = inferway.simulate(
        small(), slots=2, events=True, progress=lambda name, done: told.append((name, done))
    )
    printed = json.loads(json.dumps(result.to_json()))
    network = printed["network"]
    assert printed["policy"] == "infida"
    assert {"ntag_ms", "mu_bytes_per_slot", "latency_s", "p99_s", "lost", "series"} <= set(network)
    assert len(network["series"]["ntag_ms"]) == 2
    assert sum(done for _, done in told) == network["answered"] + network["lost"]
    assert {"latency_s", "lost"} <= set(result.to_frame().columns)


def test_a_run_that_is_stopped_gives_what_is_known(small) -> None:
    stop = threading.Event()
    seen: list[int] = []

    def after_two(name: str, done: int) -> None:
        seen.append(done)
        if len(seen) == 2:
            stop.set()

    deployment = small()
    result = inferway.simulate(deployment, slots=50, events=True, stop=stop, progress=after_two)
    found = result.network
    assert found is not None
    assert found.slots == len(found.gain) == 2
    assert "interrupted" in found.notes[0]
    assert found.requests.sum() == sum(seen)
    whole = simulate_events(deployment, slots=2)
    assert found.ntag_ms == pytest.approx(whole.ntag_ms, rel=0.05)
    with pytest.raises(KeyboardInterrupt):
        inferway.simulate(deployment, slots=50, events=True, stop=stop)


ASKING = """
tasks:
  quiet:
    accuracy_target: 0.85
    difficulty: {quality: 0.8}
    DEADLINE
    variants:
      tiny:  {accuracy: 0.7, size: 100 MB, service: {mean: 2 ms}}
      large: {accuracy: 0.9, size: 400 MB, service: {distribution: LAW, mean: 8 ms}}
nodes:
  edge: {budget: 100 MB, pinned: {quiet/tiny: 1}}
  metro: {budget: 100 MB}
  cloud: {repository: true}
network:
  links: [{between: [edge, metro], rtt: 4 ms}, {between: [metro, cloud], rtt: 6 ms}]
dispatch: {policy: escalate}
placement: {policy: repository-only, slot: 20 s}
seed: 3
workload:
  quiet: {arrivals: {process: constant, rate: RATE/s}, entries: {nodes: [edge]}}
"""


def asking(folder, rate=20, deadline="", law="deterministic"):
    text = ASKING.replace("RATE", str(rate)).replace("DEADLINE", deadline).replace("LAW", law)
    file = folder / "asking.yaml"
    file.write_text(text)
    return inferway.load(file)


@pytest.fixture
def ran(monkeypatch):
    """Engines that have run."""
    found = []
    check = Engine.check

    def checked(self):
        found.append(self)
        check(self)

    monkeypatch.setattr(Engine, "check", checked)
    return found


def balance_of(engine, task=0):
    edge = engine._terrain.number["edge"]
    return engine._by[edge, task].dispatcher.balance


def test_an_entry_asks_a_second_variant_further_up(tmp_path, ran) -> None:
    found = simulate_events(asking(tmp_path), slots=3)
    (pair,) = found.escalated
    assert (pair.first, pair.second) == ("quiet/tiny", "quiet/large")
    assert 0.1 < pair.share < 0.9
    assert found.answered == 20 * 60
    assert found.lost == found.late == 0
    # Nobody waits: a second answer takes its way and its service after the first one's.
    (variants,) = [found.variants["quiet/large"]]
    directly = sum(variants.values()) - pair.share
    second_s = 0.008 + 0.010
    expected_s = (1 - directly) * 0.002 + (pair.share + directly) * second_s
    assert found.latency_s == pytest.approx(expected_s, rel=1e-6)
    assert found.forwarded == pytest.approx(pair.share + directly)
    # What is counted is what is expected of the answers that were sent, by whoever decided.
    assert found.accuracy == pytest.approx(0.85, abs=0.02)
    assert balance_of(ran[0]) == pytest.approx(found.answered * (found.accuracy - 0.85), abs=1e-6)
    metro, cloud = (ran[0]._terrain.number[name] for name in ("metro", "cloud"))
    assert all(ran[0]._by[node, 0].dispatcher.balance == 0.0 for node in (metro, cloud))
    told = found.to_json()["escalated"]
    assert told == [{"from": "quiet/tiny", "to": "quiet/large", "share": pair.share}]


def test_an_answer_in_hand_goes_out_at_its_deadline(tmp_path, ran) -> None:
    deployment = asking(tmp_path, deadline="deadline: 40 ms", law="exponential")
    found = simulate_events(deployment, slots=3)
    assert found.answered + found.lost == 20 * 60
    engine = ran[0]
    second = sum(engine._ledger._again.values())
    # Some second answers came too late, and none of these was waited for, or lost.
    assert engine._ledger.unsent - second > 5
    assert second > 50
    assert found.p99_s <= 0.0402
    assert balance_of(engine) == pytest.approx(found.answered * (found.accuracy - 0.85), abs=1e-6)


def test_asking_again_takes_less_time_than_asking_once_at_the_same_accuracy(tmp_path) -> None:
    deployment = asking(tmp_path, rate=60)
    again = simulate_events(deployment, slots=5)
    once = simulate_events(deployment.with_(policy="priced"), slots=5)
    assert once.escalated is None
    assert "escalated" not in once.to_json()
    assert again.accuracy == pytest.approx(once.accuracy, abs=0.01)
    assert again.latency_s < 0.9 * once.latency_s


def moves_and_notes(deployment, policy, **mail):
    found = inferway.simulate(
        deployment, placement=policy, slots=6, events=True, fetch_rate=inf, start_s=0.0, **mail
    ).network
    return found.mu_bytes_per_slot, found.ntag_ms, found.notes


def test_letters_on_their_way_move_what_letters_at_once_do(small) -> None:
    deployment = small()
    for policy in ("infida", "exchange"):
        at_once = moves_and_notes(deployment, policy)
        by_letters = moves_and_notes(deployment, policy, letters_s=0.0)
        assert at_once[2] == ()
        assert by_letters[2][0].endswith("0 were lost, and 0 came after the time for them")
        # A tenth of each slot later.
        assert by_letters[0] == pytest.approx(at_once[0], rel=0.1)
        assert by_letters[1] == pytest.approx(at_once[1], rel=0.1)


def test_without_letters_nobody_moves_anything(small) -> None:
    deployment = small()
    moved, _, (note,) = moves_and_notes(deployment, "exchange", letters_lost=1.0)
    assert moved == 0.0
    assert "0 came" in note
    moved, _, (note,) = moves_and_notes(deployment, "exchange", letters_s=60.0)
    assert moved == 0.0
    assert "0 were lost" in note
    assert moves_and_notes(deployment, "exchange", letters_lost=0.0)[0] > 0.0


def test_whoever_writes_no_letters_takes_no_losses(small) -> None:
    deployment = small()
    with pytest.raises(ValueError, match="olag writes no letters"):
        simulate_events(deployment, slots=1, policy="olag", letters_lost=0.1)
    with pytest.raises(ValueError, match="lost is 0 to 1, not 2"):
        simulate_events(deployment, slots=1, letters_lost=2.0)
    with pytest.raises(ValueError, match="`letters_lost` needs `events`"):
        inferway.simulate(deployment, slots=1, letters_lost=0.1)


def test_where_the_file_names_no_policy_exchange_runs(small) -> None:
    deployment = small(("placement: {policy: infida, slot: 20 s}\n", ""))
    asked = {"deployment": deployment, "slots": 3, "seed": 5}
    found, named = simulate_slots(**asked), simulate_slots(**asked, policy="exchange")
    assert found.policy == "exchange"
    assert found.gain == pytest.approx(named.gain)
    listed = ("metro: {budget: 600 MB}", "metro: {budget: 600 MB, instances: {quiet/large: 1}}")
    without = ("placement: {policy: infida, slot: 20 s}\n", "")
    assert simulate_slots(small(without, listed), slots=1).policy == "written"


JOINT = (
    "dispatch: {policy: least-cost}\n",
    "targets:\n  all: {tasks: [quiet, other], accuracy: 0.8}\n",
)


def test_a_target_over_several_tasks_is_kept_at_each_entry(small) -> None:
    deployment = small(
        JOINT, ("entries: {nodes: [edge-1, edge-2]}}", "entries: {nodes: [edge-1]}}")
    )
    alone = simulate_events(deployment, slots=20).targets["all"]
    assert [*alone["nodes"]] == ["edge-1"]
    found = simulate_events(small(JOINT), slots=20)
    one = found.targets["all"]
    assert one["state"] == "kept"
    assert 0.8 <= one["mean"] < 0.82  # not dearer than promised
    assert one["answers"] == found.answered == sum(of["answers"] for of in one["nodes"].values())
    assert one["mean"] == pytest.approx(found.accuracy)
    assert one["balance"] == pytest.approx(sum(of["balance"] for of in one["nodes"].values()))
    for of in one["nodes"].values():
        assert of["mean"] >= 0.8
    told = inferway.simulate(small(JOINT), slots=2, events=True).to_json()["network"]["targets"]
    assert [*told["all"]] == [
        "tasks", "accuracy", "mean", "balance", "answers", "state", "nodes",
    ]  # fmt: skip
