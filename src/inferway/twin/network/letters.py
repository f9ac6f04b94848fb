"""Placement by every node's own part in the event twin, with letters on their way, as live.

The parts are those that live nodes run (`inferway.placement.local.local_policy`), and are told the
same at the same times: at a slot's end what the node measured, each letter when it comes, that it
is time to decide, and that letters are late. Departures from the live node: all clocks agree, and
nobody is there who says what makes no sense.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from inferway.deployment.policies import HINDSIGHT
from inferway.network.delivery import DeliveryNetwork
from inferway.placement.agent import LETTERS_SHARE, Agent, Correspondent
from inferway.placement.contract import Allocation, Float, Observation
from inferway.placement.delays import Measured
from inferway.placement.layout import data_of
from inferway.placement.letters import (
    Above,
    Below,
    Floor,
    Letter,
    Message,
    Needed,
    Offers,
    Quiet,
    Worst,
    decode,
)
from inferway.placement.local import local_policy
from inferway.placement.rounding import word
from inferway.site.draw import uniform

if TYPE_CHECKING:
    from inferway.deployment import Deployment

After = Callable[[float, Callable[[Any], None], Any], None]
_LOST: Final = 0x105E  # Tells this use of the seed from others
_KINDS: Final[tuple[type[Message], ...]] = (Floor, Needed, Worst, Offers, Above, Below, Quiet)


class Mail(NamedTuple):
    """What becomes of letters between nodes.

    Attributes
    ----------
    lost
        Share of the letters about a slot that never come. What holds until it changes (least costs,
        offers, who is quiet) always comes, as live, where it is told again to who has missed it.
    extra_s
        Mean time that a letter takes beside the way itself, s; exponential.
    """

    lost: float = 0.0
    extra_s: float = 0.0

    def check(self) -> None:
        """Raise ValueError where a number is out of its range."""
        if not 0.0 <= self.lost <= 1.0:
            raise ValueError(f"the share of letters that are lost is 0 to 1, not {self.lost:g}")
        if not 0.0 <= self.extra_s < math.inf:
            raise ValueError(f"a letter takes 0 s or more beside its way, not {self.extra_s:g}")


class PlacementByLetters:
    """All nodes' parts of a placement policy, and the letters between them.

    Parameters
    ----------
    network
        The inference delivery network.
    name
        A policy whose nodes write to each other.
    seed, options
        As of `inferway.placement.local.local_policy`.
    mail
        What becomes of letters.
    after
        Calls a function in so many seconds.
    decided
        Told the allocation that is to run from now on, (P,).
    deployment
        The file.

    Attributes
    ----------
    written, lost, late
        Letters so far; of them those that never came, and those that came when all was decided.
    cpu_s
        CPU time that the nodes' parts took, since `cut`.

    Raises
    ------
    ValueError
        For a policy that writes no letters, or options that it does not have.
    """

    def __init__(
        self,
        network: DeliveryNetwork,
        name: str,
        *,
        seed: int,
        mail: Mail,
        after: After,
        decided: Callable[[Allocation], None],
        deployment: Deployment | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        mail.check()
        silent = (
            f"placement policy {name} writes no letters that could be lost or late; infida and "
            "exchange do"
        )
        if name in HINDSIGHT:
            raise ValueError(silent)
        self._network, self._seed, self._mail = network, seed, mail
        self._after, self._decided = after, decided
        self._parts: list[Correspondent] = []
        for data in data_of(network):
            part = local_policy(
                name,
                network,
                data.node,
                seed=seed,
                deployment=deployment,
                data=data,
                **(options or {}),
            )
            if not isinstance(part, Correspondent):
                raise ValueError(silent)
            self._parts.append(part)
        self._half_s = _half_ways(network)
        # The last slot that has ended, and whether letters about it are still in time.
        self._slot, self._listens = 0, False
        self.written = self.lost = self.late = 0
        self.cpu_s = 0.0

    @property
    def allocation(self) -> Allocation:
        """(P,) what is to run now."""
        return np.concatenate([part.x for part in self._parts])

    @property
    def fractional(self) -> Float | None:
        """(P,) the fractional allocation; None where the policy has none."""
        ys = [part.state.y for part in self._parts if isinstance(part, Agent)]
        return np.concatenate(ys) if len(ys) == len(self._parts) else None

    @property
    def told(self) -> str:
        """What became of letters, in a sentence."""
        return (
            f"of {self.written:,} letters about placement {self.lost:,} were lost, and "
            f"{self.late:,} came after the time for them"
        )

    def begin(self) -> None:
        """Have everybody know what is said once, as after some time."""
        waiting = [letter for part in self._parts for letter in part.open()]
        while waiting:
            letter = waiting.pop(0)
            waiting += self._parts[letter.to].receive(letter.data)

    def close_slot(
        self, number: int, observation: Observation, measured: Sequence[Measured] = ()
    ) -> None:
        """Tell each node what it measured in a slot, and begin the letters about it."""
        requests, load = observation
        wait_s = LETTERS_SHARE * self._network.slot_s
        self._slot, self._listens = number, True
        for node, one in enumerate(measured):
            self._have(node, lambda p, m=one: p.measure(m))  # type: ignore[misc]
        for node, part in enumerate(self._parts):
            arrived, served = part.data.measured(requests, load)
            self._have(node, lambda p, a=arrived, s=served: p.close_slot(a, {}, s, slot=number))  # type: ignore[misc]
        for node, part in enumerate(self._parts):
            self._after(part.stage * wait_s, self._decide, node)
        self._after(wait_s, self._step, None)

    def way_s(self, node: int, letter: Letter, message: Message) -> float | None:
        """Tell how long a letter of a node takes, s; None where it never comes.

        What is drawn follows from the seed and from what the letter is about alone, so that the
        same letters are lost whatever else happens.
        """
        way_s = self._half_s[node, letter.to]
        draw = word(word(self._seed, _LOST), letter.to)
        draw = word(word(draw, _KINDS.index(type(message))), message.rho)
        if not isinstance(message, Floor | Offers | Quiet):
            draw = word(draw, message.slot)
            if uniform(draw, 0) < self._mail.lost:
                return None
        if self._mail.extra_s > 0.0:
            way_s -= self._mail.extra_s * math.log(1.0 - uniform(draw, 1))
        return way_s

    def cut(self) -> float:
        """Return the CPU time since the last cut, s, and begin anew."""
        taken_s, self.cpu_s = self.cpu_s, 0.0
        return taken_s

    def _have(self, node: int, act: Callable[[Correspondent], list[Letter]]) -> None:
        """Have a node's part do something, and send what it writes."""
        began = time.thread_time()
        letters = act(self._parts[node])
        self.cpu_s += time.thread_time() - began
        for letter in letters:
            message = decode(letter.data)
            self.written += 1
            way_s = self.way_s(node, letter, message)
            if way_s is None:
                self.lost += 1
            else:
                self._after(way_s, self._come, (letter.to, message))

    def _come(self, letter: tuple[int, Message]) -> None:
        node, message = letter
        if not isinstance(message, Floor | Offers | Quiet):
            self.late += not (self._listens and message.slot == self._slot)
        self._have(node, lambda part: part.take(message))

    def _decide(self, node: int) -> None:
        self._have(node, lambda part: part.decide())

    def _step(self, _: Any) -> None:
        self._listens = False
        for node in range(len(self._parts)):
            self._have(node, lambda part: part.step())
        self._decided(self.allocation)


def _half_ways(network: DeliveryNetwork) -> dict[tuple[int, int], float]:
    """Half the round trip between neighbors of any path, s."""
    paths, half_s = network.paths, {}
    for start, end in zip(paths.first[:-1], paths.first[1:], strict=True):
        for i in range(int(start), int(end) - 1):
            near, far = int(paths.node[i]), int(paths.node[i + 1])
            one_s = 0.5 * float(paths.rtt_s[i + 1] - paths.rtt_s[i])
            half_s[near, far] = half_s[far, near] = one_s
    return half_s
