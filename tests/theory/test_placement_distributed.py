"""INFIDA by agents that exchange bytes: the same outcome, counted, and under loss."""

from __future__ import annotations

import naive_placement as naive
import numpy as np
import pytest
from agent_exchange import Exchange

from inferway.placement import Observation, minimal, serve
from inferway.placement.agent import Agent
from inferway.placement.infida import Infida
from inferway.placement.layout import data_of
from inferway.placement.letters import Floor, Needed, Offers, Worst, decode, encode

VARIANTS = [
    {},
    {"rounding": "fresh"},
    {"rounding": "fresh", "residual": "strict", "refresh": 3},
    {"learning_rate": 0.05},
]


def together(network, batches, options) -> list[tuple[int, int, int]]:
    """Run both on what the central one's allocation serves; return the traffic per slot."""
    central, agents = Infida(network, seed=3, **options), Exchange(network, seed=3, **options)
    traffic = []
    for requests in batches:
        assert np.array_equal(central.allocation, agents.allocation)
        observation = Observation(requests, serve(network, requests, central.allocation))
        central.step(observation)
        agents.step(observation)
        assert agents.fractional == pytest.approx(central.fractional, rel=1e-12)
        traffic.append(agents.traffic)
    return traffic


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("alpha", [1.0, 5.0])
def test_on_the_papers_network_they_equal_the_central_computation(alpha, options) -> None:
    network = naive.topology_i(alpha=alpha)
    traffic = together(network, naive.batches_i(network, 8, sliding=False), options)
    for messages, size, lost in traffic:
        # 40 request types; the longest path has 4 links, up and down, and offers come besides.
        assert messages <= 40 * 4 * 2 + 2 * 40 * 4
        assert size < 400_000
        assert lost == 0


@pytest.mark.parametrize("seed", range(12))
def test_on_random_networks_too(seed: int) -> None:
    network = naive.random_network(seed, nodes=6, tasks=2, types=8, copies=2, pins=seed % 2 == 0)
    together(network, [naive.batch(network, k) for k in range(10)], VARIANTS[seed % 4])


def test_what_needs_no_help_further_up_is_not_sent() -> None:
    network = naive.topology_i(alpha=1)
    policy = Exchange(network)
    counts = []
    for requests in naive.batches_i(network, 30, sliding=False):
        policy.step(Observation(requests, serve(network, requests, policy.allocation)))
        counts.append(policy.traffic.messages)
    assert counts[-1] < counts[0] / 3


def test_losses_cost_little_until_they_are_many() -> None:
    network = naive.topology_i(alpha=3)
    batches = naive.batches_i(network, 60, sliding=False)
    least = minimal(network).astype(np.uint8)
    gains = {}
    for loss in (0.0, 0.1, 1.0):
        policy = Exchange(network, loss=loss)
        total, lost = 0.0, 0
        for requests in batches:
            load = serve(network, requests, policy.allocation)
            total += network.options.cost @ (serve(network, requests, least) - load)
            policy.step(Observation(requests, load))
            lost += policy.traffic.lost
        gains[loss] = total
        assert (lost > 0) == (loss > 0)
    assert gains[0.1] > 0.98 * gains[0.0]
    assert gains[1.0] < 0.9 * gains[0.0]


@pytest.mark.parametrize("seed", range(10))
def test_offers_lead_a_request_to_the_cheapest_running_instance(seed: int) -> None:
    network = naive.random_network(seed, nodes=6, tasks=2, types=8, copies=2)
    policy = Exchange(network, rounding="fresh")
    options = network.options
    for slot in range(6):
        allocation = policy.allocation
        for rho in range(len(options.first) - 1):
            own = np.arange(*options.first[rho : rho + 2])
            cheapest = own[allocation[options.pair[own]] > 0][0]
            node = network.paths.node[network.paths.first[network.requests.path[rho]]]
            while (k := policy.agents[node].route(rho)) is None:
                node = policy.agents[node].data.crossings[rho].upstream
            found = policy.agents[node].data.crossings[rho].option[k]
            assert options.cost[found] == options.cost[cheapest]
        requests = naive.batch(network, slot)
        policy.step(Observation(requests, serve(network, requests, allocation)))


def test_an_agent_holds_nothing_of_other_nodes() -> None:
    network = naive.topology_i()
    for v, data in enumerate(data_of(network)):
        start, end = network.pairs.first[v], network.pairs.first[v + 1]
        assert len(data.layout.size) == end - start
        for crossing in data.crossings.values():
            assert np.all(network.options.node[crossing.option] == v)


def test_a_message_that_comes_before_the_slot_has_ended_waits() -> None:
    network = naive.random_network(2, nodes=3, types=1, tasks=1)
    route = network.paths.node[: network.paths.first[1]]
    agents = [Agent(data) for data in data_of(network)]
    letters = [letter for agent in agents for letter in agent.open()]
    while letters:
        letter = letters.pop(0)
        letters += agents[letter.to].receive(letter.data)
    top = agents[route[-1]]
    early = top.receive(encode(Needed(0, 1, 5.0, 0.0, ())))
    assert early == []
    answers = top.close_slot({}, {}, {})
    assert [type(decode(letter.data)) for letter in answers] == [Worst]
    assert top.receive(encode(Needed(0, 0, 5.0, 0.0, ()))) == []  # of a slot that is over


def test_messages_survive_their_encoding() -> None:
    for message in (
        Floor(3, 1.5),
        Needed(3, 9, 100.0, 2.5, ((1.0, 2.0), (3.0, 4.0))),
        Worst(3, 9, 7.25),
        Offers(3, ((1.0, 60.0),)),
    ):
        assert decode(encode(message)) == message


def test_a_loss_is_a_probability() -> None:
    with pytest.raises(ValueError, match=r"the loss is a probability, not 1\.5"):
        Exchange(naive.random_network(1), loss=1.5)
