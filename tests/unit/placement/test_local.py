"""A node's part of every placement policy: the whole network's policy, cut to the node."""

from __future__ import annotations

import json

import naive_placement as naive
import numpy as np
import pytest
from agent_exchange import Exchange

from inferway.network.delivery import DeliveryNetwork
from inferway.placement import Observation, build_policy, minimal, serve
from inferway.placement.agent import Agent, Counters, LocalPolicy
from inferway.placement.infida import InfidaState
from inferway.placement.layout import data_of
from inferway.placement.letters import Floor, Needed, Offers, Worst, decode, encode
from inferway.placement.local import loads_of, local_policy


def some_network(seed: int, **changes: object) -> DeliveryNetwork:
    options = {"nodes": 6, "tasks": 2, "types": 8, "copies": 2, "pins": seed % 2 == 0, **changes}
    return naive.random_network(seed, **options)


def reached(network: DeliveryNetwork, node: int, requests, load) -> dict[int, float]:
    """What came to a node: all of a type but what was served before it."""
    found = {}
    for rho, crossing in data_of(network)[node].crossings.items():
        path = network.paths.node[slice(*network.paths.first[network.requests.path[rho] :][:2])]
        place = int(np.flatnonzero(path == node)[0])
        options = slice(*network.options.first[rho : rho + 2])
        before = network.options.hop[options] < place
        found[rho] = float(requests[rho] - load[options][before].sum())
        assert crossing.type == rho
    return found


def measured(network: DeliveryNetwork, node: int, load) -> dict[int, np.ndarray]:
    crossings = data_of(network)[node].crossings
    return {rho: load[crossing.option] for rho, crossing in crossings.items()}


@pytest.mark.parametrize("name", ["olag", "olag-literal", "greedy"])
@pytest.mark.parametrize("seed", range(6))
def test_nodes_that_count_decide_as_the_whole_network_does(seed: int, name: str) -> None:
    network = some_network(seed)
    whole = build_policy(name, network)
    nodes = [local_policy(name, network, node) for node in range(len(network.nodes))]
    seen = set()
    for slot in range(6):
        requests = naive.batch(network, 10 * seed + slot)
        load = serve(network, requests, whole.allocation)
        for node, local in enumerate(nodes):
            came = reached(network, node, requests, load)
            assert local.close_slot({}, came, measured(network, node, load)) == []
            assert local.step() == []
        whole.step(Observation(requests, load))
        assert np.array_equal(np.concatenate([local.x for local in nodes]), whole.allocation)
        seen.add(whole.allocation.tobytes())
    assert len(seen) > 1 or name != "greedy"
    assert not any(isinstance(local, Agent) for local in nodes)


@pytest.mark.parametrize("name", ["static-greedy", "repository-only", "exact"])
def test_fixed_policies_are_cut(name: str) -> None:
    network = some_network(3)
    batches = np.array([naive.batch(network, slot) for slot in range(3)])
    whole = build_policy(name, network, batches=batches).allocation
    nodes = [
        local_policy(name, network, node, batches=batches) for node in range(len(network.nodes))
    ]
    for local in nodes:
        before = local.x.copy()
        assert local.close_slot({0: 5.0}, {0: 5.0}, {}) == local.step() == []
        assert np.array_equal(local.x, before)
        local.restore(local.state._replace(x=1 - local.x))
        assert np.array_equal(local.x, before)
    assert np.array_equal(np.concatenate([local.x for local in nodes]), whole)
    assert (name == "repository-only") == np.array_equal(whole, minimal(network))


@pytest.mark.parametrize("waiting", [False, True])
def test_infida_is_an_agent_with_the_options_given(waiting: bool) -> None:
    network = some_network(4)
    options = {"rounding": "fresh", "refresh": 2, "waiting": waiting}
    exchange = Exchange(network, seed=5, **options)
    whole = build_policy("infida", network, seed=5, **options)
    plain = build_policy("infida", network, seed=5, rounding="fresh", refresh=2)
    nodes = [
        local_policy("infida", network, node, seed=5, **options)
        for node in range(len(network.nodes))
    ]
    for slot in range(5):
        requests = naive.batch(network, slot)
        load = serve(network, requests, exchange.allocation)
        exchange.step(Observation(requests, load))
        whole.step(Observation(requests, load))
        plain.step(Observation(requests, load))
        letters = [letter for local in nodes for letter in local.open()] if not slot else []
        deliver(nodes, letters)
        for node, local in enumerate(nodes):
            came = reached(network, node, requests, load)
            letters += local.close_slot(
                entering(local, requests), came, measured(network, node, load)
            )
        deliver(nodes, letters)
        deliver(nodes, [letter for local in nodes for letter in local.step()])
        assert np.array_equal(np.concatenate([local.x for local in nodes]), exchange.allocation)
        assert np.array_equal(whole.fractional, exchange.fractional)
    assert all(isinstance(local, Agent) for local in nodes)
    assert np.array_equal(whole.fractional, plain.fractional) != waiting


def entering(agent: Agent, requests) -> dict[int, float]:
    return {
        rho: float(requests[rho])
        for rho, crossing in agent.data.crossings.items()
        if crossing.downstream is None
    }


def deliver(nodes: list[LocalPolicy], letters: list) -> None:
    while letters:
        letter = letters.pop(0)
        letters += nodes[letter.to].receive(letter.data)


def test_unknown_names_and_options_are_refused() -> None:
    network = some_network(1)
    with pytest.raises(ValueError, match="unknown placement policy 'best'"):
        local_policy("best", network, 0)
    with pytest.raises(ValueError, match=r"placement policy olag: .*'seeds'"):
        local_policy("olag", network, 0, seeds=1)
    with pytest.raises(ValueError, match="rounding is coupled or fresh, not 'half'"):
        local_policy("infida", network, 0, rounding="half")
    with pytest.raises(ValueError, match="in hindsight"):
        local_policy("static-greedy", network, 0)
    with pytest.raises(ValueError, match="what a file lists runs: give the deployment"):
        local_policy("written", network, 0)


class Course:
    """Agents whose letters are delivered at once, and what each was told once."""

    def __init__(self, network: DeliveryNetwork) -> None:
        self.network = network
        self.agents = [Agent(data, seed=3) for data in data_of(network)]
        self.told: dict[int, dict[tuple[int, type], bytes]] = {}
        self.deliver([letter for agent in self.agents for letter in agent.open()])

    def deliver(self, letters: list) -> None:
        while letters:
            letter = letters.pop(0)
            message = decode(letter.data)
            if isinstance(message, Floor | Offers):
                self.told.setdefault(letter.to, {})[message.rho, type(message)] = letter.data
            letters += self.agents[letter.to].receive(letter.data)

    def slot(self, number: int) -> None:
        requests = naive.batch(self.network, number)
        load = serve(self.network, requests, self.allocation)
        letters = []
        for node, agent in enumerate(self.agents):
            loads = measured(self.network, node, load)
            letters += agent.close_slot(entering(agent, requests), {}, loads, slot=number)
        self.deliver(letters)
        self.deliver([letter for agent in self.agents for letter in agent.step()])

    def restart(self, node: int) -> None:
        """A node comes back with what it saved, and its neighbors tell it what they say once."""
        old = self.agents[node]
        saved = InfidaState(*(array.copy() for array in old.state))
        new = Agent(old.data, seed=3)
        new.restore(saved, closed=old._closed)
        self.agents[node] = new
        self.deliver(new.open())
        for data in list(self.told.get(node, {}).values()):
            self.deliver(new.receive(data))
        assert new._floor == old._floor
        for array in saved:
            array[...] = 0  # it keeps a copy

    @property
    def allocation(self):
        return np.concatenate([agent.x for agent in self.agents])


@pytest.mark.parametrize("seed", range(4))
def test_an_agent_that_restarts_goes_on_where_it_stopped(seed: int) -> None:
    network = some_network(seed)
    steady, broken = Course(network), Course(network)
    for slot in range(7, 15):
        steady.slot(slot)
        broken.slot(slot)
        broken.restart(slot % len(network.nodes))
        for one, other in zip(steady.agents, broken.agents, strict=True):
            for name, left, right in zip(one.state._fields, one.state, other.state, strict=True):
                assert np.array_equal(left, right), name
    assert steady.agents[0].state.slot[0] == 8


def test_a_state_of_another_node_is_refused() -> None:
    network = some_network(2)
    one, *_, other = (Agent(data) for data in data_of(network))
    assert one.state.y.shape != other.state.y.shape
    with pytest.raises(ValueError, match=r"the saved state has \(\d+,\) numbers for y"):
        one.restore(other.state)
    nodes = len(network.nodes)
    counted, last = (local_policy("olag", network, node) for node in (0, nodes - 1))
    with pytest.raises(ValueError, match="numbers for y"):
        counted.restore(last.state)
    with pytest.raises(ValueError, match="numbers for y"):
        local_policy("infida", network, 0).restore(other.state)


def test_a_node_that_counts_takes_its_allocation_up_again() -> None:
    network = some_network(2)
    policy = local_policy("olag", network, 3)
    requests = naive.batch(network, 1)
    load = serve(network, requests, minimal(network).astype(np.uint8))
    policy.close_slot({}, reached(network, 3, requests, load), measured(network, 3, load))
    policy.step()
    assert policy.x.any()
    again = local_policy("olag", network, 3)
    assert not np.array_equal(again.x, policy.x)
    again.restore(policy.state)
    assert np.array_equal(again.x, policy.x)
    assert again.state.slot.tolist() == [1, 1]


def copied(policy: LocalPolicy) -> tuple[InfidaState, Counters | None]:
    """What is saved of a policy, as it is at this moment."""
    counters = policy.counters
    state = InfidaState(*(array.copy() for array in policy.state))
    return state, counters and counters._replace(counts=counters.counts.copy())


@pytest.mark.parametrize("name", ["olag", "olag-literal", "greedy"])
@pytest.mark.parametrize("seed", range(4))
def test_a_node_that_counts_goes_on_counting_where_it_stopped(seed: int, name: str) -> None:
    network = some_network(seed)
    carried = 0
    for node in range(len(network.nodes)):
        steady, broken = (local_policy(name, network, node) for _ in range(2))
        allocation = minimal(network).astype(np.uint8)
        for slot in range(5):
            requests = naive.batch(network, 10 * seed + slot)
            load = serve(network, requests, allocation)
            for one in (steady, broken):
                one.close_slot({}, reached(network, node, requests, load), {})
                one.step()
            assert np.array_equal(broken.x, steady.x)
            state, counters = copied(broken)
            assert counters is not None
            carried += int(counters.counts.any())
            broken = local_policy(name, network, node)
            broken.restore(state, counters=counters)
            again, kept = copied(broken)
            assert all(np.array_equal(a, b) for a, b in zip(again, state, strict=True))
            assert kept is not None
            assert kept.of == counters.of
            assert kept.counts.tobytes() == counters.counts.tobytes()
    assert carried > 0


def test_counters_go_to_the_same_types_and_pairs_where_options_have_changed() -> None:
    network = copies_network()
    policy = local_policy("olag-literal", network, 1)
    state, empty = copied(policy)
    assert empty is not None
    how, types = json.loads(empty.of)
    assert len(types) == 3
    # Other types come first, one has gone, one has options that were none before.
    gone, (task, path, pairs), *rest = types
    saved = [[task, path, pairs[1:]], *rest, ["another", ["a", "b"], [0]]]
    count = 1.0 + np.arange(sum(len(own) for *_, own in saved))
    policy.restore(state, counters=Counters(json.dumps([how, saved]), count))
    found = policy.counters
    assert found is not None
    assert found.counts.tolist() == [0.0] * (len(gone[2]) + 1) + count[:-1].tolist()
    # Counted by another reading, they say nothing.
    other = local_policy("greedy", network, 1)
    other.restore(state, counters=found)
    assert other.counters is not None
    assert not other.counters.counts.any()


@pytest.mark.parametrize(
    ("of", "count", "reason"),
    [
        ("no JSON", [1.0], "the saved counters do not say what they count"),
        ('["reaching", [7]]', [1.0], "the saved counters do not say what they count"),
        ('["reaching", []]', [1.0], "1 counters were saved, with names for 0"),
        ('["reaching", [["a", ["b"], [0]]]]', [-1.0], "below 0 or no number"),
        ('["reaching", [["a", ["b"], [0]]]]', [np.nan], "below 0 or no number"),
    ],
)
def test_counters_that_make_no_sense_are_refused_and_change_nothing(
    of: str, count: list[float], reason: str
) -> None:
    network = some_network(2)
    policy = local_policy("olag", network, 3)
    policy.close_slot({}, dict.fromkeys(range(8), 50.0), {})
    policy.step()
    (before, counted), x = copied(policy), policy.x.copy()
    with pytest.raises(ValueError, match=reason):
        policy.restore(before._replace(x=1 - x), counters=Counters(of, np.array(count)))
    assert np.array_equal(policy.x, x)
    assert counted is not None
    assert policy.counters is not None
    assert np.array_equal(policy.counters.counts, counted.counts)


def test_what_another_policy_has_saved_is_no_beginning_for_infida() -> None:
    network = some_network(2)
    counted, fresh = (local_policy(name, network, 3) for name in ("olag", "infida"))
    again = local_policy("infida", network, 3)
    again.restore(counted.state, closed=7)
    requests = naive.batch(network, 1)
    for one in (again, fresh):
        one.close_slot(entering(one, requests), {}, {}, slot=8)
        one.step()
        assert one.state.y.any()
    for name, left, right in zip(again.state._fields, again.state, fresh.state, strict=True):
        assert np.array_equal(left, right), name


def test_an_answer_that_was_not_asked_for_is_passed_on_and_teaches_nothing() -> None:
    network = some_network(2)
    middle = next(
        agent
        for agent in (Agent(data) for data in data_of(network))
        if any(
            c.upstream is not None and c.downstream is not None and len(c.pair)
            for c in agent.data.crossings.values()
        )
    )
    rho, crossing = next(
        (rho, c)
        for rho, c in middle.data.crossings.items()
        if c.upstream is not None and c.downstream is not None and len(c.pair)
    )
    middle.restore(middle.state, closed=7)
    (letter,) = middle.receive(encode(Worst(rho, 7, 1e9)))
    assert letter.to == crossing.downstream
    assert decode(letter.data) == Worst(rho, 7, 1e9)
    before = middle.state.y.copy()
    middle.step()
    assert np.array_equal(middle.state.y, before)
    # Of a slot that has ended before it restarted, it answers; without `closed` it would wait.
    assert middle.receive(encode(Needed(rho, 7, 1.0, 0.0, ()))) != []
    assert Agent(middle.data).receive(encode(Needed(rho, 7, 1.0, 0.0, ()))) == []


def copies_network() -> DeliveryNetwork:
    """A path of two nodes, two types of one task and one of another, three copies each."""
    small, large = naive.Variant(0.6, 1.0, (50.0,)), naive.Variant(0.7, 4.0, (40.0,))
    return naive.assemble(
        [naive.Node(np.inf), naive.Node(20.0), naive.Node(20.0)],
        [([1, 0], [0.0, 50.0]), ([2, 1, 0], [0.0, 5.0, 50.0])],
        [(0, 0, 30.0), (0, 1, 60.0), (1, 1, 10.0)],
        [[small, large], [small]],
        copies=3,
        slot_s=1.0,
    )


def test_counts_of_a_variant_are_put_down_to_the_copies_that_ran() -> None:
    network = copies_network()
    data = data_of(network)[1]
    names = data.variants
    small, large = (network.variants[k] for k in range(2))
    running = np.zeros(len(names), np.uint8)
    of_small = [p for p, name in enumerate(names) if name == small and data.layout.task[p] == 0]
    running[of_small[1:]] = 1
    loads = loads_of(data, {(0, small): 30.0, (1, small): 60.0}, running)
    at = {
        rho: {int(p): float(n) for p, n in zip(c.pair, loads[rho], strict=True) if n}
        for rho, c in data.crossings.items()
    }
    # The first copy that ran takes 50 of 90, in proportion; the other the rest.
    assert at[0] == pytest.approx({of_small[1]: 30 * 50 / 90, of_small[2]: 30 * 40 / 90})
    assert at[1] == pytest.approx({of_small[1]: 60 * 50 / 90, of_small[2]: 60 * 40 / 90})
    assert at[2] == {}
    # Beyond all capacities, and where nothing runs any more.
    loads = loads_of(data, {(0, small): 500.0}, np.zeros_like(running))
    assert sorted(loads[0][loads[0] > 0]) == [50.0, 50.0, 400.0]
    assert loads_of(data, {(9, small): 5.0, (0, "huge"): 5.0}, running)[0].sum() == 0
    assert loads_of(data, {(0, small): 0.0, (0, large): 0.0}, running)[0].sum() == 0


@pytest.mark.parametrize("seed", range(8))
def test_counts_by_variant_give_back_the_twin_s_loads(seed: int) -> None:
    network = some_network(seed, copies=3)
    allocation = naive.some_allocation(network, seed)
    load = serve(network, naive.batch(network, seed), allocation)
    for node, data in enumerate(data_of(network)):
        names = data.variants
        served: dict[tuple[int, str], float] = {}
        for rho, crossing in data.crossings.items():
            for pair, number in zip(crossing.pair, load[crossing.option], strict=True):
                key = rho, names[pair]
                served[key] = served.get(key, 0.0) + float(number)
        start, end = network.pairs.first[node : node + 2]
        loads = loads_of(data, served, allocation[start:end])
        taken = np.zeros(len(names))
        for rho, crossing in data.crossings.items():
            assert loads[rho].sum() == pytest.approx(load[crossing.option].sum())
            np.add.at(taken, crossing.pair, loads[rho])
            assert not loads[rho][(allocation[start:end] == 0)[crossing.pair]].any()
        exact = np.bincount(network.options.pair, load, len(network.pairs.node))[start:end]
        assert taken == pytest.approx(exact, abs=1e-6)
