"""Proximal policy optimization on sites in lockstep: [Tan24], Algorithm 1, from top to bottom.

Networks, the policy, what becomes of rewards, then `Learner`: it collects, estimates, and learns.
Departures from the paper, all in `Settings`: trajectories come from E sites at a time, and the
options in its second part. With batches, and with several tasks, each part of an action has a
clipped surrogate of its own, as in H-PPO ([Tan24], ref. 71: doi 10.24963/ijcai.2019/316).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from inferway.learning.control import Control
from inferway.learning.density import SoftmaxGaussian
from inferway.learning.settings import Settings
from inferway.learning.site import Floats, Ints, PhaseTally, joint_sites_of, parts_of
from inferway.scheduling.neural_policy import pairs_of

# (B, n) f of eq. 8, and with batches, by class, (B, P) log chances of its pairs of sizes; those of
# each task where there are several.
Heads = tuple[Tensor, ...]


class _Tanh(torch.autograd.Function):  # type: ignore[misc]
    """tanh as NumPy computes it, in a seventh of the time that PyTorch takes."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        answer = torch.from_numpy(np.tanh(values.detach().numpy()))
        ctx.save_for_backward(answer)
        return answer

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (answer,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(slope, answer)


class Perceptron(nn.Module):  # type: ignore[misc]
    """Linear layers, tanh between them: as many and as begun as the settings say.

    Orthogonal layers begin with biases 0 and gain sqrt 2, uniform ones as PyTorch's own do; the
    last has the gain given, small for an actor, so that it begins near even routing.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        settings: Settings,
        generator: torch.Generator | None = None,
        *,
        gain: float = 1.0,
        apart: Sequence[tuple[int, int]] = (),
    ) -> None:
        super().__init__()
        sizes = pairwise((inputs, *settings.hidden, outputs))
        self.layers = nn.ModuleList([nn.Linear(before, after) for before, after in sizes])
        for layer in self.layers:
            last = layer is self.layers[-1]
            if settings.initial == "orthogonal":
                nn.init.orthogonal_(layer.weight, gain if last else 2**0.5, generator=generator)
                nn.init.zeros_(layer.bias)
            else:
                bound = layer.in_features**-0.5 * (gain if last else 1.0)
                for part in (layer.weight, layer.bias):
                    nn.init.uniform_(part, -bound, bound, generator=generator)
        if len(apart) > 1:
            self._keep_apart(apart, settings.hidden)

    def _keep_apart(self, apart: Sequence[tuple[int, int]], hidden: Sequence[int]) -> None:
        """Let parts with so many inputs and outputs each share no weight: these are and stay 0.

        Hidden units are shared out evenly.
        """
        count = len(apart)
        even = [
            [(k + 1) * units // count - k * units // count for k in range(count)]
            for units in hidden
        ]
        inputs, outputs = zip(*apart, strict=True)
        for layer, widths in zip(self.layers, pairwise((inputs, *even, outputs)), strict=True):
            before, after = (torch.repeat_interleave(torch.tensor(one)) for one in widths)
            own = (after[:, None] == before[None, :]).float()
            layer.weight.data *= own
            layer.weight.register_hook(own.mul)

    def forward(self, values: Tensor) -> Tensor:
        """(B, out) of (B, in)."""
        *hidden, last = self.layers
        for layer in hidden:
            values = _Tanh.apply(layer(values))
        return last(values)

    def arrays(self) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Weight (in, out) and bias (out,) of each layer, in the parameters' own memory."""
        return [(one.weight.detach().numpy().T, one.bias.detach().numpy()) for one in self.layers]


class Actions(NamedTuple):
    """Answers to B observations."""

    # (B, n) log y, task by task: eq. 8 in logarithms, as y may be rounded to 0
    log_routing: Tensor
    pairs: Tensor  # (B, K) which pair of batch sizes; (B, 0) without batches


class Actor(nn.Module):  # type: ignore[misc]
    """The policy: routing (eq. 8) and batch rules, independent given the observation."""

    def __init__(
        self, control: Control, settings: Settings, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.features = control.features
        # By class: (P, 2) the pairs (smallest, largest) that its chances are of.
        self.rules: list[NDArray[np.int64]] = []
        # Of each head its length, and whether it is a task's routing; the others are batch rules.
        self.sizes: list[int] = []
        self.routes: list[bool] = []
        for part in control.parts:
            offered = part.sizes if part.batches else ()
            rules = [np.array(pairs_of(sizes), np.int64) for sizes in offered]
            self.rules += rules
            self.sizes += [part.scenario.fleet.servers, *map(len, rules)]
            self.routes += [True, *(False for _ in rules)]
        self.servers = [part.scenario.fleet.servers for part in control.parts]
        # Features that say which servers are there; of one task alone.
        self.flagged = control.about().layout.flagged
        each = [(part.features, part.about().outputs) for part in control.parts]
        self.network = Perceptron(
            self.features,
            sum(self.sizes),
            settings,
            generator,
            gain=settings.actor_gain,
            apart=each if settings.apart else (),
        )

    def forward(self, observation: Tensor) -> Heads:
        """Answer (B, d) observations, of which the critic may see more features.

        What it says of a server that is away is minus infinity: it is no part of the routing.
        Where all are, the first stands for them, and there is nothing to choose.
        """
        heads = self.network(observation[:, : self.features]).split(self.sizes, 1)
        both = zip(heads, self.routes, strict=True)
        f, *others = (head if routes else torch.log_softmax(head, 1) for head, routes in both)
        if self.flagged is not None:
            away = observation[:, self.flagged] == 0
            away[:, 0] &= ~away.all(1)
            f = f.masked_fill(away, -math.inf)
        return f, *others

    def draw(self, heads: Heads, sigma: float, random: np.random.Generator) -> Actions:
        """Draw an action for each answer."""

        def noisy(head: Tensor, routes: bool) -> Tensor:
            if routes:
                return head + sigma * torch.from_numpy(
                    random.standard_normal(head.shape, np.float32)
                )
            # The greatest of log chances with Gumbel noise has these chances.
            return head + torch.from_numpy(random.gumbel(size=head.shape))

        return self.best(tuple(map(noisy, heads, self.routes)))

    def best(self, heads: Heads) -> Actions:
        """Choose as a deployed policy does: sigma = 0, and the likeliest batch rules."""
        routings, rules = self._apart(heads)
        none = torch.empty((len(routings[0]), 0), dtype=torch.int64)
        pairs = torch.stack([log.argmax(1) for log in rules], 1) if rules else none
        return Actions(torch.cat([torch.log_softmax(f, 1) for f in routings], 1), pairs)

    def _apart(self, heads: Heads) -> tuple[list[Tensor], list[Tensor]]:
        """The heads that are routings, and those that are batch rules."""
        both = list(zip(heads, self.routes, strict=True))
        return [one for one, routes in both if routes], [one for one, routes in both if not routes]

    def decisions(self, actions: Actions) -> tuple[Floats, Ints | None]:
        """(B, n) probabilities and (B, K, 2) batch rules, as sites take them."""
        probabilities = actions.log_routing.double().exp().numpy()
        if not self.rules:
            return probabilities, None
        chosen = zip(self.rules, actions.pairs.numpy().T, strict=True)
        return probabilities, np.stack([rule[pairs] for rule, pairs in chosen], axis=1)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def deployed(self, observation: NDArray[np.float32]) -> tuple[Floats, Ints | None]:
        """Decide as `best` for (B, d) observations."""
        return self.decisions(self.best(self(torch.from_numpy(observation))))

    def log_probs(self, heads: Heads, actions: Actions, sigma: float) -> Tensor:
        """(B, T + K) log densities of T tasks' routings (eq. 9), and log chances of the rules."""
        routings, rules = self._apart(heads)
        each = zip(routings, actions.log_routing.split(self.servers, 1), strict=True)
        dense = [
            SoftmaxGaussian(f, sigma, validate_args=False).log_prob_of_log(own, normalized=True)
            for f, own in each
        ]
        chosen = [log.gather(1, actions.pairs[:, k, None])[:, 0] for k, log in enumerate(rules)]
        return torch.stack([*dense, *chosen], 1)

    def rule_entropy(self, heads: Heads) -> Tensor:
        """(B,) entropy of the batch rules."""
        return -torch.cat([log.exp() * log for log in self._apart(heads)[1]], 1).sum(1)


class Potential:
    """Worth of the requests that are at a site, as observations tell it.

    ``queues``: each request counts the accuracy of the class where it is, times beta; a reward is
    then paid when a request is accepted rather than when it is answered. ``outcomes``: each counts
    that only where it will be answered in time, if every service takes its mean, else -1 as a late
    one does. Batches are not foreseen: requests count as served one by one.
    """

    def __init__(self, kind: str, control: Control) -> None:
        about, fleet = control.about(), control.scenario.fleet
        layout = about.layout
        self.places, self.width = layout.buffer, layout.width
        self.outcomes = kind == "outcomes"
        gain = control.accuracy_weight * np.array(control.reward_gains)
        self.gain = np.repeat(gain, fleet.count).astype(np.float32)[:, None]
        self.service_s = np.repeat(about.service_s, fleet.count).astype(np.float32)[:, None]
        self.longest_s = layout.elapsed_s.astype(np.float32)[:, None]
        self.age_s, self.deadline_s = np.float32(layout.age_s), np.float32(about.deadline_s)
        self.place = np.arange(self.places, dtype=np.float32)

    def of(self, observation: NDArray[np.float32]) -> Floats:
        """(B,) of (B, d) observations."""
        servers = len(self.gain)
        seen = observation[:, : servers * self.width].reshape(-1, servers, self.width)
        queue = seen[:, :, : self.places + 1] @ np.append(self.place, np.float32(self.places))
        if not self.outcomes:
            return (queue @ self.gain[:, 0]).astype(np.float64)
        answer = np.zeros(len(seen))
        # Where all servers are idle, which is most of the time, there is nothing to look at.
        busy = np.flatnonzero(queue.any(axis=1))
        seen, queue = seen[busy], queue[busy]
        served_s = seen[:, :, self.places + 1, None] * self.longest_s
        ages_s = seen[:, :, self.places + 2 : -1] * self.age_s
        time_s = ages_s + (self.place + 1) * self.service_s - served_s
        worth = np.where(time_s <= self.deadline_s, self.gain, np.float32(-1.0))
        worth *= self.place < queue[:, :, None]
        answer[busy] = worth.sum(axis=(1, 2))
        return answer


class RunningScale:
    """Standard deviation of the discounted sums of rewards so far."""

    def __init__(self, sites: int, discount: float) -> None:
        self.discount, self.sums = discount, np.zeros(sites)
        # How many sums there were, their mean, and that of their squared distances from it, summed.
        self.moments = np.zeros(3)

    @property
    def value(self) -> float:
        """1 before anything is known."""
        count, _, square = self.moments.tolist()
        return (square / count) ** 0.5 if count and square > 0 else 1.0

    def see(self, rewards: Floats) -> None:
        """Take in (T, E) rewards."""
        seen = np.empty_like(rewards)
        for t, row in enumerate(rewards):
            self.sums = self.discount * self.sums + row
            seen[t] = self.sums
        count, (known, mean, square) = seen.size, self.moments.tolist()
        total, away = known + count, float(seen.mean()) - mean
        square += float(((seen - seen.mean()) ** 2).sum()) + away**2 * known * count / total
        self.moments = np.array([total, mean + away * count / total, square])


def advantages_of(rewards: Floats, values: Floats, discount: float, trace: float) -> Floats:
    """Generalized advantage estimation, (T, E), doi 10.48550/arXiv.1506.02438.

    [Tan24]'s eq. 11 prints r + V(o') - V(o) for the temporal differences, without gamma before the
    next value; with gamma < 1 that is no estimate of the advantage in eq. 6, whose value function
    (eq. 5) is discounted. Here it is r + gamma V(o') - V(o), of (T, E) rewards and (T + 1, E)
    values. Nothing ends: the sum stops at the trajectory's end, and the last value stands for what
    follows.
    """
    advantages = rewards + discount * values[1:] - values[:-1]
    for t in range(len(rewards) - 2, -1, -1):
        advantages[t] += discount * trace * advantages[t + 1]
    return advantages


def symlog(values: Floats, unit: float) -> Floats:
    """sign(x) log(1 + |x| / unit), doi 10.48550/arXiv.2301.04104."""
    return np.sign(values) * np.log1p(np.abs(values) / unit)


@dataclass(frozen=True)
class Update:
    """Figures of one update: what it was made of, and what it did."""

    slots: int  # Trained for so far
    tally: PhaseTally  # Of the requests in this update's trajectories, with noise
    reward: float  # Mean per slot, as eq. 2 has it
    surrogate: float  # Mean of eq. 10 over the last epoch, before its steps
    # Mean squared error of the critic in the last epoch, in units of the scaled rewards
    value_error: float
    explained: float  # Share of the returns' variance that the critic explained before the update
    kl: float  # Distance of the last epoch's policy from the one that collected, nats
    clipped: float  # Share of importance weights beyond the clip in the last epoch
    sigma: float
    rate: float
    scale: float  # By which rewards were divided


def _baseline(control: Control, given: float) -> float:
    least = min(control.reward_gains)
    return (least if given < 0 else given) * control.accuracy_weight


class DivergenceError(RuntimeError):
    """A number of the training is none any more."""


class Learner:
    """Actor, critic and the sites that they learn on, as the deployed policy will see them.

    The seed is that of everything: weights, noise, order of minibatches, sites.
    """

    def __init__(self, control: Control, settings: Settings, seed: int = 0) -> None:
        self.control, self.settings = control, settings
        if settings.critic_sees_phase and control.others:
            raise ValueError("critic_sees_phase is for the training of one task")
        seen = replace(control, sees_phase=control.sees_phase or settings.critic_sees_phase)
        words = np.random.SeedSequence([seed, 3]).generate_state(2, np.uint64)
        self.sites = joint_sites_of(seen, count=settings.sites, seed=int(words[0] >> 1))
        self.random = np.random.default_rng([seed, 4])
        generator = torch.Generator().manual_seed(int(words[1] >> 1))
        self.actor = Actor(control, settings, generator)
        self.critic = Perceptron(seen.features, 1, settings, generator)
        self._modules: dict[str, nn.Module] = {"actor": self.actor, "critic": self.critic}
        groups = [{"params": list(part.parameters())} for part in self._modules.values()]
        self.optimizer = torch.optim.Adam(groups, lr=settings.learning_rate)
        # Subtracted for each arrival, by task: exogenous, so that no action is better for it.
        self.baselines = [_baseline(part, settings.baseline or 0.0) for part in control.parts]
        kind = settings.potential
        # By task, and where its observation ends.
        self.potentials = [] if kind == "none" else [Potential(kind, one) for one in control.parts]
        self._ends = np.cumsum([part.features for part in control.parts]).tolist()
        self.scale = RunningScale(settings.sites, settings.discount)
        self.slots = 0

    def update(self) -> Update:
        """Collect trajectories and learn from them.

        DivergenceError where a loss or a weight is not finite any more; this object is then of no
        use.
        """
        settings = self.settings
        *rates, sigma = settings.at(self.slots)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        observation, taken, log_probs, rewards, exogenous = self._collect(sigma)
        tally = PhaseTally.of(self.sites)
        # What is exogenous is taken off, and the rest shaped.
        paid = rewards - exogenous
        if self.potentials:
            worth = np.stack([self._worth(seen.numpy()) for seen in observation])
            paid += settings.discount * worth[1:] - worth[:-1]
        if settings.scale:
            self.scale.see(paid)
        scale = self.scale.value if settings.scale else 1.0
        values = self._values(observation)
        advantages = advantages_of(paid / scale, values, settings.discount, settings.trace)
        targets = advantages + values[:-1]
        spread = float(targets.var())
        explained = 1.0 - float(advantages.var()) / spread if spread > 0 else math.nan
        if settings.symlog is not None:
            advantages = symlog(advantages * scale, settings.symlog)
        if settings.standardize:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)

        figures = self._learn(observation[:-1], taken, log_probs, advantages, targets, sigma)
        self.slots += settings.slots_per_update
        reward = float(rewards.mean())
        shown = {"reward": reward, "explained": explained, "sigma": sigma, "rate": rates[0]}
        update = Update(slots=self.slots, tally=tally, scale=scale, **shown, **figures)
        numbers = {"reward": reward, "surrogate": update.surrogate}
        numbers["critic's error"] = update.value_error
        after = f"after {self.slots:,} slots"
        for name, value in numbers.items():
            if not math.isfinite(value):
                raise DivergenceError(f"the {name} is {value} {after}")
        for name, module in self._modules.items():
            if not all(torch.isfinite(one).all() for one in module.parameters()):
                raise DivergenceError(f"a weight of the {name} is not finite {after}")
        return update

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _collect(self, sigma: float) -> tuple[Tensor, Actions, Tensor, Floats, Floats]:
        """Trajectories of T slots at E sites.

        (T + 1, E, d) observations, actions of T E rows and their log chances, and (T, E) rewards,
        eq. 2, and what of them is taken off for those who arrived.
        """
        sites, actor = self.sites, self.actor
        steps = self.settings.slots_per_update // sites.count
        observation = torch.empty(steps + 1, *sites.observation.shape)
        rewards, exogenous = np.zeros((2, steps, sites.count))
        taken, log_probs = [], []
        sites.clear()
        for t in range(steps):
            observation[t] = torch.from_numpy(sites.observation)
            heads = actor(observation[t])
            actions = actor.draw(heads, sigma, self.random)
            taken.append(actions)
            log_probs.append(actor.log_probs(heads, actions, sigma))
            rewards[t] = sites.step(*actor.decisions(actions))
            for part, baseline in zip(parts_of(sites), self.baselines, strict=True):
                exogenous[t] += baseline * part.arrivals
        observation[steps] = torch.from_numpy(sites.observation)
        actions = Actions(*map(torch.cat, zip(*taken, strict=True)))
        return observation, actions, torch.cat(log_probs), rewards, exogenous

    def _worth(self, observation: NDArray[np.float32]) -> Floats:
        """(B,) potential of (B, d) observations, of all tasks."""
        worth = np.zeros(len(observation))
        for potential, first, end in zip(
            self.potentials, [0, *self._ends], self._ends, strict=False
        ):
            worth += potential.of(observation[:, first:end])
        return worth

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _values(self, observation: Tensor) -> Floats:
        return np.stack([self.critic(seen)[:, 0].double().numpy() for seen in observation])

    def _learn(
        self,
        seen_before: Tensor,
        taken: Actions,
        log_probs: Tensor,
        advantages: Floats,
        targets: Floats,
        sigma: float,
    ) -> dict[str, float]:
        settings, actor, critic = self.settings, self.actor, self.critic
        observation = seen_before.flatten(0, 1)
        gain, target = (
            torch.from_numpy(of.astype(np.float32).reshape(-1)) for of in (advantages, targets)
        )
        for _ in range(settings.epochs):
            sums = np.zeros(4)
            order = torch.from_numpy(self.random.permutation(len(observation)))
            for some in order.split(settings.minibatch):
                seen, worth = observation[some], gain[some, None]
                actions = Actions(*(part[some] for part in taken))
                heads = actor(seen)
                change = actor.log_probs(heads, actions, sigma) - log_probs[some]
                ratio = change.exp()
                limited = ratio.clamp(1 - settings.clip, 1 + settings.clip)
                surrogate = torch.minimum(ratio * worth, limited * worth).sum(1).mean()
                error = nn.functional.mse_loss(critic(seen)[:, 0], target[some])
                loss = error - surrogate
                if settings.entropy and actor.rules:
                    loss = loss - settings.entropy * actor.rule_entropy(heads).mean()
                self.optimizer.zero_grad()
                loss.backward()
                if settings.norm is not None:
                    for group in self.optimizer.param_groups:
                        nn.utils.clip_grad_norm_(group["params"], settings.norm)
                self.optimizer.step()

                # The estimate of KL that is never below 0: E[w - 1 - log w].
                kl, clipped = (ratio - 1 - change).sum(1).mean(), (limited != ratio).float().mean()
                figures = (surrogate, error, kl, clipped)
                sums += [len(some) / len(observation) * figure.item() for figure in figures]
            if settings.kl is not None and sums[2] > settings.kl:
                break
        names = ("surrogate", "value_error", "kl", "clipped")
        return dict(zip(names, sums.tolist(), strict=True))

    def state(self) -> dict[str, NDArray[Any]]:
        """Copy all that changes, between two updates: with it, training goes on exactly."""
        random = json.dumps(self.random.bit_generator.state)
        state: dict[str, NDArray[Any]] = {"slots": np.array(self.slots), "random": np.array(random)}
        for part, module in self._modules.items():
            state |= {f"{part}.{name}": t.numpy().copy() for name, t in module.state_dict().items()}
        for place, moments in self.optimizer.state_dict()["state"].items():
            state |= {f"adam.{place}.{name}": t.numpy().copy() for name, t in moments.items()}
        state |= {f"sites.{name}": array for name, array in self.sites.state().items()}
        return state | {"scale.sums": self.scale.sums, "scale.moments": self.scale.moments}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on where `state` was taken; ValueError for a state of other networks or sites."""
        parts: dict[str, dict[str, Any]] = {}
        for name, array in state.items():
            part, _, rest = name.partition(".")
            parts.setdefault(part, {})[rest] = array
        try:
            for part, module in self._modules.items():
                module.load_state_dict(
                    {name: torch.tensor(one) for name, one in parts[part].items()}
                )
            adam = self.optimizer.state_dict()
            adam["state"] = {}
            for name, array in parts.get("adam", {}).items():
                place, _, moment = name.partition(".")
                adam["state"].setdefault(int(place), {})[moment] = torch.tensor(array)
            self.optimizer.load_state_dict(adam)
            self.sites.restore(parts["sites"])
            self.scale.sums, self.scale.moments = state["scale.sums"], state["scale.moments"]
            self.random.bit_generator.state = json.loads(str(state["random"][()]))
            self.slots = int(state["slots"])
        except (KeyError, RuntimeError) as error:
            raise ValueError(f"this state is not one of such a training: {error}") from None
