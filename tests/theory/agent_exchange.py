"""INFIDA run by its nodes: agents joined by channels that deliver, count and may lose letters."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.agent import Agent
from inferway.placement.contract import Allocation, Float, Observation, batch_of, load_of
from inferway.placement.layout import data_of
from inferway.placement.letters import Letter
from inferway.site.draw import uniform


class Traffic(NamedTuple):
    """What went over the links: messages and bytes, and how many messages were lost."""

    messages: int
    size: int
    lost: int


class Exchange:
    """A network of agents, as one policy.

    Parameters
    ----------
    network
        The inference delivery network; each agent gets its own node's part alone.
    seed
        Of rounding and of losses.
    loss
        Probability that a letter is lost on its link, after the start.
    options
        As of `inferway.placement.infida.Infida`.

    Raises
    ------
    ValueError
        For a loss outside 0..1.
    """

    def __init__(
        self, network: DeliveryNetwork, *, seed: int = 0, loss: float = 0.0, **options: Any
    ) -> None:
        if not 0 <= loss <= 1:
            raise ValueError(f"the loss is a probability, not {loss}")
        self.network = network
        self.agents = [Agent(data, seed=seed, **options) for data in data_of(network)]
        self._seed, self._loss, self._drawn = seed, 0.0, 0
        self.traffic = Traffic(0, 0, 0)
        """Of the last slot; before the first, of the start."""
        self.asked = self.traffic
        """Of it, the questions about the worst needed options and their answers."""
        self._deliver([letter for agent in self.agents for letter in agent.open()])
        self._loss = loss

    @classmethod
    def build(
        cls,
        network: DeliveryNetwork,
        *,
        seed: int = 0,
        batches: Float | None = None,
        **options: Any,
    ) -> Exchange:
        """Make the policy; it needs no `batches`."""
        return cls(network, seed=seed, **options)

    @property
    def allocation(self) -> Allocation:
        """(P,) the integral allocations of all nodes."""
        return np.concatenate([agent.x for agent in self.agents])

    @property
    def fractional(self) -> Float:
        """(P,) the fractional allocations of all nodes."""
        return np.concatenate([agent.state.y for agent in self.agents])

    def step(self, observation: Observation) -> Allocation:
        """Give each node what it measured itself, and let them talk until all is said.

        Raises
        ------
        ValueError
            For arrays of another shape or with impossible numbers.
        """
        requests = batch_of(self.network, observation.requests)
        load = load_of(self.network, observation.load)
        self.traffic = Traffic(0, 0, 0)
        letters: list[Letter] = []
        for agent in self.agents:
            crossings = agent.data.crossings
            arrived = {
                rho: float(requests[rho])
                for rho, crossing in crossings.items()
                if crossing.downstream is None
            }
            measured = {rho: load[crossing.option] for rho, crossing in crossings.items()}
            letters += agent.close_slot(arrived, {}, measured)
        self._deliver(letters)
        self.asked = self.traffic
        self._deliver([letter for agent in self.agents for letter in agent.step()])
        return self.allocation

    def _deliver(self, letters: list[Letter]) -> None:
        """Deliver in order, with what they give rise to, until none is left."""
        waiting = deque(letters)
        messages, size, lost = self.traffic
        while waiting:
            letter = waiting.popleft()
            messages += 1
            size += len(letter.data)
            if self._loss > 0:
                self._drawn += 1
                if uniform(self._seed, self._drawn) < self._loss:
                    lost += 1
                    continue
            waiting.extend(self.agents[letter.to].receive(letter.data))
        self.traffic = Traffic(messages, size, lost)
