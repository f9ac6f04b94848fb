"""Proximal policy optimization on sites in lockstep: [Tan24], Algorithm 1.

Departures from the paper, all in `Settings`: trajectories come from E sites at a time, and the
options in its second part. With batches, each part of an action has a clipped surrogate of its
own, as in H-PPO.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from inferway.learning.actor import Actor
from inferway.learning.networks import Perceptron
from inferway.learning.rewards import (
    Potential,
    RunningScale,
    advantages_of,
    baseline_of,
    symlog,
)
from inferway.learning.rows import Rows
from inferway.learning.settings import Settings
from inferway.learning.site import Control, SlottedSites
from inferway.learning.tally import Tally

__all__ = ["DivergenceError", "Learner", "Update"]


_TOLD = ("surrogate", "value_error", "kl", "clipped")


class DivergenceError(RuntimeError):
    """A number of the training is none any more."""


@dataclass(frozen=True)
class Update:
    """What one update was made of and what it did."""

    slots: int
    """Trained for so far."""
    tally: Tally
    """Of the requests in this update's trajectories, with noise."""
    reward: float
    """Mean per slot, as eq. 2 has it."""
    surrogate: float
    """Mean of eq. 10 over the last epoch, before its steps."""
    value_error: float
    """Mean squared error of the critic in the last epoch, in units of the scaled rewards."""
    explained: float
    """Share of the returns' variance that the critic explained before the update."""
    kl: float
    """How far the last epoch's policy was from the one that collected, nats."""
    clipped: float
    """Share of importance weights beyond the clip in the last epoch."""
    sigma: float
    rate: float
    scale: float
    """By which rewards were divided."""


class Learner:
    """Actor, critic and the sites that they learn on.

    Parameters
    ----------
    control
        The sites, as the deployed policy will see them.
    settings
        See there.
    seed
        Of everything: weights, noise, order of minibatches, sites.
    """

    def __init__(self, control: Control, settings: Settings, seed: int = 0) -> None:
        self.control, self.settings, self.seed = control, settings, seed
        seen = replace(control, sees_phase=control.sees_phase or settings.critic_sees_phase)
        words = np.random.SeedSequence([seed, 3]).generate_state(2, np.uint64)
        self.sites = SlottedSites(seen, count=settings.sites, seed=int(words[0] >> 1))
        self.random = np.random.default_rng([seed, 4])
        generator = torch.Generator().manual_seed(int(words[1] >> 1))
        self.actor = Actor(
            control,
            hidden=settings.hidden,
            initial=settings.initial,
            gain=settings.actor_gain,
            generator=generator,
        )
        self.critic = Perceptron(
            seen.features,
            1,
            hidden=settings.hidden,
            initial=settings.initial,
            generator=generator,
        )
        self.optimizer = torch.optim.Adam(
            [
                {"params": list(self.actor.network.parameters())},
                {"params": list(self.critic.parameters())},
            ],
            lr=settings.learning_rate,
        )
        self.scale = RunningScale(settings.sites, settings.discount)
        self.potential = (
            None if settings.potential == "none" else Potential(settings.potential, control)
        )
        self.baseline = baseline_of(settings, control)
        self.slots = 0
        steps, count = settings.slots_per_update // settings.sites, settings.sites
        self._seen = Rows((steps + 1) * count, seen.features)
        self._worth = np.zeros((steps + 1, count))
        self._log_routing = np.empty((steps, count, self.actor.servers), np.float32)
        self._pairs = np.empty((steps, count, len(self.actor.rules)), np.int64)
        self._outputs = np.empty((steps, count, int(self.actor.ends[-1])), np.float32)
        self._rewards = np.empty((steps, count))
        self._arrivals = np.empty((steps, count))

    def update(self) -> Update:
        """Collect trajectories and learn from them.

        Raises
        ------
        DivergenceError
            Where a loss or a weight is not finite any more; this object is then of no use.
        """
        settings = self.settings
        sigma = settings.sigma_at(self.slots)
        rates = settings.rates_at(self.slots)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._collect(sigma)
        tally = Tally.of(self.sites)
        paid = self._paid()
        if settings.scale:
            self.scale.see(paid)
        scale = self.scale.value if settings.scale else 1.0
        values = self.critic.answer(self._seen).astype(np.float64).reshape(self._worth.shape)
        advantages = advantages_of(paid / scale, values, settings.discount, settings.trace)
        targets = advantages + values[:-1]
        spread = float(targets.var())
        explained = 1.0 - float(advantages.var()) / spread if spread > 0 else math.nan
        if settings.symlog is not None:
            advantages = symlog(advantages * scale, settings.symlog)
        if settings.standardize:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is looked at
            told = self._learn(sigma, advantages, targets)
        self.slots += settings.slots_per_update
        update = Update(
            slots=self.slots,
            tally=tally,
            reward=float(self._rewards.mean()),
            explained=explained,
            sigma=sigma,
            rate=rates[0],
            scale=scale,
            **told,
        )
        self._check(update)
        return update

    def _collect(self, sigma: float) -> None:
        sites, actor, count = self.sites, self.actor, self.sites.count
        sites.clear()
        self._seen.clear()
        self._look(0)
        for t in range(len(self._rewards)):
            latest = np.arange(t * count, (t + 1) * count)
            self._outputs[t] = actor.network.answer(self._seen, latest)
            actions = actor.draw(self._outputs[t], sigma, self.random)
            self._log_routing[t] = actions.log_routing
            self._pairs[t] = actions.pairs
            self._rewards[t] = sites.step(*actor.decisions(actions))
            self._arrivals[t] = sites.arrivals
            self._look(t + 1)

    def _look(self, t: int) -> None:
        self._seen.append(self.sites.observation)
        if self.potential is not None:
            self._worth[t] = self.potential.of(self.sites.observation)

    def _paid(self) -> NDArray[np.float64]:
        """(T, E) rewards less what is exogenous, shaped."""
        paid = self._rewards - self.baseline * self._arrivals
        if self.potential is not None:
            paid += self.settings.discount * self._worth[1:] - self._worth[:-1]
        return paid

    def _learn(
        self, sigma: float, advantages: NDArray[np.float64], targets: NDArray[np.float64]
    ) -> dict[str, float]:
        settings, actor = self.settings, self.actor
        count = advantages.size
        log_routing = _tensor(self._log_routing.reshape(count, -1))
        pairs = _tensor(self._pairs.reshape(count, -1))
        gain = _tensor(advantages.reshape(count).astype(np.float32))
        target = _tensor(targets.reshape(count).astype(np.float32))
        with torch.no_grad():
            old = actor.log_probs(
                _tensor(self._outputs.reshape(count, -1)), log_routing, pairs, sigma
            )
        told: dict[str, float] = {}
        for _ in range(settings.epochs):
            sums = np.zeros(4)
            order = self.random.permutation(count)
            for start in range(0, count, settings.minibatch):
                some = order[start : start + settings.minibatch]
                chosen = torch.from_numpy(some)
                sums += len(some) * self._descend(
                    some,
                    log_routing[chosen],
                    pairs[chosen],
                    old[chosen],
                    gain[chosen],
                    target[chosen],
                    sigma,
                )
            sums /= count
            told = dict(zip(_TOLD, sums.tolist(), strict=True))
            if settings.kl is not None and told["kl"] > settings.kl:
                break
        return told

    def _descend(
        self,
        some: NDArray[np.int64],
        log_routing: Any,
        pairs: Any,
        old: Any,
        gain: Any,
        target: Any,
        sigma: float,
    ) -> NDArray[np.float64]:
        """One step of Adam on a minibatch."""
        settings, actor = self.settings, self.actor
        outputs = actor.network(self._seen, some)
        change = actor.log_probs(outputs, log_routing, pairs, sigma) - old
        weight = change.exp()
        limited = weight.clamp(1 - settings.clip, 1 + settings.clip)
        surrogate = torch.minimum(weight * gain[:, None], limited * gain[:, None]).sum(1).mean()
        error = torch.nn.functional.mse_loss(self.critic(self._seen, some)[:, 0], target)
        loss = error - surrogate
        if settings.entropy and actor.rules:
            loss = loss - settings.entropy * actor.rule_entropy(outputs).mean()
        self.optimizer.zero_grad()
        loss.backward()
        if settings.norm is not None:
            for group in self.optimizer.param_groups:
                torch.nn.utils.clip_grad_norm_(group["params"], settings.norm)
        self.optimizer.step()
        with torch.no_grad():
            # The estimate of KL that is never below 0: E[w - 1 - log w].
            kl = (weight - 1 - change).sum(1).mean()
            clipped = (limited != weight).float().mean()
        return np.array([surrogate.item(), error.item(), kl.item(), clipped.item()])

    def _check(self, update: Update) -> None:
        numbers = {"reward": update.reward, "surrogate": update.surrogate}
        numbers |= {"critic's error": update.value_error}
        for name, value in numbers.items():
            if not math.isfinite(value):
                raise DivergenceError(f"the {name} is {value} after {self.slots:,} slots")
        for name, network in (("actor", self.actor.network), ("critic", self.critic)):
            if not all(np.isfinite(array).all() for layer in network.arrays() for array in layer):
                raise DivergenceError(
                    f"a weight of the {name} is not finite after {self.slots:,} slots"
                )

    def state(self) -> dict[str, NDArray[Any]]:
        """All that changes, between two updates: with it, training goes on to the last digit."""
        found: dict[str, NDArray[Any]] = {"slots": np.array(self.slots)}
        for part, module in (("actor", self.actor.network), ("critic", self.critic)):
            found |= {f"{part}.{name}": t.numpy().copy() for name, t in module.state_dict().items()}
        for place, entry in self.optimizer.state_dict()["state"].items():
            found |= {f"adam.{place}.{name}": t.numpy().copy() for name, t in entry.items()}
        found |= {f"sites.{name}": array for name, array in self.sites.state().items()}
        found |= {f"scale.{name}": array.copy() for name, array in self.scale.state().items()}
        generator: Any = self.random.bit_generator.state
        words = [generator["state"]["state"], generator["state"]["inc"]]
        halves = [word >> shift & (2**64 - 1) for word in words for shift in (0, 64)]
        halves += [generator["has_uint32"], generator["uinteger"]]
        found["random"] = np.array(halves, np.uint64)
        return found

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on where `state` was taken; ValueError for a state of other networks or sites."""
        parts: dict[str, dict[str, Any]] = {}
        for name, array in state.items():
            part, _, rest = name.partition(".")
            parts.setdefault(part, {})[rest] = array
        try:
            for part, module in (("actor", self.actor.network), ("critic", self.critic)):
                module.load_state_dict({name: _tensor(one) for name, one in parts[part].items()})
            adam = self.optimizer.state_dict()
            adam["state"] = {}
            for name, array in parts.get("adam", {}).items():
                place, _, moment = name.partition(".")
                adam["state"].setdefault(int(place), {})[moment] = _tensor(array)
            self.optimizer.load_state_dict(adam)
            self.sites.restore(parts["sites"])
            self.scale.restore(parts["scale"])
            low, high, low_inc, high_inc, has, word = (int(one) for one in state["random"])
            self.slots = int(state["slots"])
        except (KeyError, RuntimeError) as error:
            raise ValueError(f"this state is not one of such a training: {error}") from None
        self.random.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": low | high << 64, "inc": low_inc | high_inc << 64},
            "has_uint32": has,
            "uinteger": word,
        }


def _tensor(array: NDArray[Any]) -> Any:
    return (
        torch.from_numpy(np.ascontiguousarray(array)) if array.ndim else torch.tensor(array.item())
    )
