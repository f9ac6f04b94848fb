"""Exchange: a distributed local search on the integral allocation, by the gain that is served.

Ours. INFIDA ([SiSalem23]) climbs eq. 16 at a fractional allocation, with the potential available
capacities of eq. 7. Those count an instance's room for each request type alone: where types share
instances, what it climbs rises while what is served falls, and rounding costs more. Here nodes hold
whole copies from the start, and trade some for others where the requests that cross them are then
served at less cost, by the rule of `inferway.placement.serving`. There is no learning rate.

At the end of a slot, for each request type:

1. Its entry forecasts the next count (`inferway.placement.forecast`).
2. `Above` goes down its path, from the repository to the entry: of all that runs further up, the
   cost, what it served of the type, and the room that nobody used. What a node may count on is that
   room and what the types that cross it took themselves; the others keep theirs.
3. `Below` goes up the path, from the entry: the forecast, and what now runs before it comes, with
   its room. A node waits until both are there for all of its types, decides (`search.improve`), and
   writes on. So along a path nodes decide one after the other, each knowing what those before it
   have decided; all at once, each would count on what the others take away.

What is missing abstains: where a letter about a type is lost or late, the node leaves the copies of
its task as they are in this slot. Each node waits until a part of the time for letters that grows
with its distance to the farthest entry, so that one lost letter does not hold up all that follow.

Where nothing is to say, nothing is sent. An entry whose forecasts, with room for chance, are served
by its own copies at a cost that no allocation of its own or above could lower by as much as a move
must gain, says once that its types are `Quiet`, and no more letters are written about them until it
takes that back. No `Below` goes to the end of a path, where nothing is decided.

Paths of a deployment's network form a forest, so that who decides before whom is never in doubt.
Paths that are given one by one may lead to different repositories through the same nodes in
opposite directions. Then the nodes of such a circle decide in an order that turns from slot to slot
(`Turns`), and where a type comes through nodes whose turn is later, its task abstains.

With `waiting`, a copy stands in scenes and letters once for each level of its room, at the price
of waiting there (`inferway.placement.waiting`), and what a node may count on of a copy elsewhere is
said for each level. In `Below`, what others take fills the cheapest levels, and the rest is for the
reader; in `Above`, what types took together fills them, each in proportion.

No bound on the regret is known: a local search may end in an allocation that no single trade and no
kick improves, and nodes side by side may count on the same room above. INFIDA has the bound of
[SiSalem23].
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Annotated, Final

import numpy as np
from pydantic import Field

from inferway.deployment.units import Count, PositiveNumber
from inferway.network.delivery import DeliveryNetwork
from inferway.placement.contract import Allocation, Float, Observation, batch_of, load_of
from inferway.placement.delays import DELAYS, Delays, Measured, check_delays
from inferway.placement.exchange_agent import KICKS, LEAST, ExchangeAgent
from inferway.placement.infida import couple_all, first_state
from inferway.placement.layout import NodeData, data_of, layout_of
from inferway.placement.letters import Above, Below, Letter, decode
from inferway.placement.rounding import word
from inferway.placement.turns import Turns
from inferway.site.draw import uniform

_LOST: Final = 0x105E  # Tells this use of the seed from others


def first_allocation(network: DeliveryNetwork, seed: int) -> Allocation:
    """(P,) what runs before anything is known: INFIDA's first rounding, with the same seed."""
    layout = layout_of(network)
    state = first_state(layout)
    couple_all(layout, 0, state.y, seed, state.x)
    return state.x


class ExchangePolicy:
    """Exchange on a whole network: its nodes' parts, and the letters between them.

    Parameters
    ----------
    network
        The inference delivery network; each node's part gets its own data alone.
    seed
        Of the first allocation, of kicks and of losses.
    least_ms
        Cost per crossing request that a trade must save.
    kicks
        How many are tried at each node in each slot.
    lost
        Share of the letters about a slot that never come.
    waiting
        Whether what decisions count on includes the price of waiting
        (`inferway.placement.waiting`); without it, a request that has room waits for nothing.
    delays
        Of what costs are made: the file's round trips and service times, those that nodes
        `measure`, or these and waits (`inferway.placement.delays`).

    Attributes
    ----------
    letters
        By kind, how many were written about the last slot, and before it at the start.
    bytes
        Of these.
    """

    fractional: Float | None = None

    def __init__(
        self,
        network: DeliveryNetwork,
        *,
        seed: int = 0,
        least_ms: float = LEAST,
        kicks: int = KICKS,
        lost: float = 0.0,
        waiting: bool = False,
        delays: Delays = "file",
    ) -> None:
        for holds, sentence in (
            (least_ms > 0, f"a trade must save more than 0 ms per request, not {least_ms}"),
            (kicks >= 0, f"a node tries 0 kicks or more, not {kicks}"),
            (0 <= lost <= 1, f"the share of letters that are lost is 0 to 1, not {lost}"),
        ):
            if not holds:
                raise ValueError(sentence)
        check_delays(delays, waiting=waiting)
        self.network, self._seed, self._lost, self._drawn = network, seed, lost, 0
        self._least, self._kicks, self._turns = least_ms, kicks, Turns(network)
        self._waiting, self._delays = waiting, delays
        self.allocation = first_allocation(network, seed)
        self.agents = [self.part(data) for data in data_of(network)]
        self._late = sorted(self.agents, key=lambda agent: agent.stage)
        self.letters: Counter[str] = Counter()
        self.bytes = 0
        self._deliver([letter for agent in self.agents for letter in agent.open()])

    def part(self, data: NodeData) -> ExchangeAgent:
        """Make a node's part, which has heard nothing yet and runs what the network runs now."""
        first = self.network.pairs.first
        x = self.allocation[first[data.node] : first[data.node + 1]]
        return ExchangeAgent(
            data,
            x,
            self._turns,
            seed=self._seed,
            least_ms=self._least,
            kicks=self._kicks,
            slot_ms=1000.0 * self.network.slot_s if self._waiting else None,
            delays=self._delays,
        )

    @classmethod
    def build(
        cls,
        network: DeliveryNetwork,
        *,
        seed: int = 0,
        batches: Float | None = None,
        least_ms: Annotated[
            PositiveNumber,
            Field(description="Milliseconds per crossing request that a trade must save."),
        ] = LEAST,
        kicks: Annotated[
            Count, Field(description="Copies that each node tries at random in each slot.")
        ] = KICKS,
        lost: float = 0.0,
        waiting: Annotated[
            bool,
            Field(description="Whether decisions count how long requests wait for busy copies."),
        ] = False,
        delays: Annotated[Delays, DELAYS] = "file",
    ) -> ExchangePolicy:
        """Make the policy; it needs no `batches`."""
        return cls(
            network,
            seed=seed,
            least_ms=least_ms,
            kicks=kicks,
            lost=lost,
            waiting=waiting,
            delays=delays,
        )

    def measure(self, measured: Sequence[Measured]) -> None:
        """Give each node how long all took there in the slot that has ended, before `step`."""
        letters = [
            letter
            for agent, one in zip(self.agents, measured, strict=True)
            for letter in agent.measure(one)
        ]
        self._deliver(letters)

    def step(self, observation: Observation) -> Allocation:
        """Give each node what it measured itself, and let them talk and decide.

        ValueError for arrays of another shape or with impossible numbers.
        """
        requests = batch_of(self.network, observation.requests)
        load = load_of(self.network, observation.load)
        self.letters, self.bytes = Counter(), 0
        waiting: list[Letter] = []
        for agent in self.agents:
            arrived, served = agent.data.measured(requests, load)
            waiting += agent.close_slot(arrived, {}, served)
        self._deliver(waiting)
        for agent in self._late:
            self._deliver(agent.decide())
        for agent in self.agents:
            agent.step()
        self.allocation = np.concatenate([agent.x for agent in self.agents])
        return self.allocation

    def _deliver(self, letters: list[Letter]) -> None:
        """Deliver in order, with what they give rise to, until none is left."""
        waiting = deque(letters)
        while waiting:
            letter = waiting.popleft()
            message = decode(letter.data)
            self.letters[type(message).__name__] += 1
            self.bytes += len(letter.data)
            if self._lost > 0 and isinstance(message, Above | Below):
                self._drawn += 1
                if uniform(word(self._seed, _LOST), self._drawn) < self._lost:
                    continue
            waiting.extend(self.agents[letter.to].take(message))
