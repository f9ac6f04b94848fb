"""Settings of a training: the paper's, and what may be changed about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

_COUNTS = ("slots", "slots_per_update", "sites", "epochs")
_POSITIVE = ("learning_rate", "clip", "sigma", "critic_rate", "final_sigma", "symlog", "norm")
_LIMITS: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
    ((*_COUNTS, "minibatch"), lambda value: value >= 1, "at least 1"),
    (("discount", "trace"), lambda value: 0 <= value <= 1, "in 0..1"),
    ((*_POSITIVE, "kl", "actor_gain"), lambda value: value > 0 and math.isfinite(value), "above 0"),
    (("final_rate", "entropy"), lambda value: value >= 0, "at least 0"),
)


@dataclass(frozen=True)
class Settings:
    """Proximal policy optimization (doi 10.48550/arXiv.1707.06347) as [Tan24] sets it.

    The first part are the paper's settings (Sec. 5.1.4 and 5.1.5) and what it leaves open; the
    second part is off by default: what is not in the paper, and what helps.

    Raises
    ------
    ValueError
        Where a setting is out of range.
    """

    slots: int = 250_000_000  # To train for, over all sites
    slots_per_update: int = 50_000  # T: trajectories collected with one policy, over all sites
    # E sites in lockstep, T / E slots each per update. The paper has one of T slots; GAE's weights
    # (gamma lambda)^k are below 1 % after 74.
    sites: int = 250
    epochs: int = 5
    minibatch: int = 10_000
    learning_rate: float = 2.5e-4  # Adam's (doi 10.48550/arXiv.1412.6980), of actor and critic
    discount: float = 0.99  # gamma
    trace: float = 0.95  # lambda of GAE, eq. 11.
    clip: float = 0.2  # epsilon of eq. 7.
    sigma: float = 0.698  # Standard deviation of the noise, eq. 8.
    hidden: tuple[int, ...] = (90, 60)  # tanh units of actor and critic each
    # Weights to begin with; the paper does not say.
    initial: Literal["orthogonal", "uniform"] = "orthogonal"
    actor_gain: float = 0.01  # Of the actor's last layer: near 0, routing begins nearly even

    # Accuracy g in r - g x arrivals of the slot: arrivals are nobody's doing. -1 is the least
    # accurate class's.
    baseline: float | None = None
    # Shaping gamma P(o') - P(o), which changes no optimal policy (Ng, Harada and Russell, ICML
    # 1999): P as `inferway.learning.ppo.Potential` has it.
    potential: Literal["none", "queues", "outcomes"] = "none"
    scale: bool = False  # Divide rewards by the running standard deviation of their discounted sums
    # Advantages A become sign(A) log(1 + |A| / this), A in requests: bursts shout less.
    symlog: float | None = None
    standardize: bool = False  # Advantages of an update get mean 0 and standard deviation 1
    # The critic is told the workload's phase in training; the actor is not, and alone is kept.
    critic_sees_phase: bool = False
    critic_rate: float | None = None  # Learning rate of the critic, if not the actor's
    final_rate: float = 1.0  # Learning rates at the end, as a share of the first, reached linearly
    final_sigma: float | None = None  # sigma at the end, reached linearly
    norm: float | None = None  # Greatest norm of a network's gradient
    kl: float | None = None  # Epochs end where old and new policy differ by more, in nats
    # Of a policy for several tasks, each part of the actor is shown its own task's site alone.
    apart: bool = False
    entropy: float = 0.0  # Bonus for the entropy of batch rules; that of routing follows from sigma

    def __post_init__(self) -> None:
        for names, holds, limit in _LIMITS:
            for name in names:
                value = getattr(self, name)
                if value is not None and not holds(value):
                    raise ValueError(f"{name} is {limit}, not {value:g}")
        if len(self.hidden) != 2 or min(self.hidden) < 1:
            raise ValueError(f"hidden is two numbers of units, each at least 1, not {self.hidden}")
        if self.slots_per_update % self.sites:
            raise ValueError(
                f"{self.slots_per_update} slots per update are no whole number for each of "
                f"{self.sites} sites"
            )

    @property
    def updates(self) -> int:
        """Updates that `slots` take."""
        return math.ceil(self.slots / self.slots_per_update)

    @property
    def scheduled(self) -> bool:
        """Say if something depends on how much of the training is over."""
        return self.final_rate != 1.0 or self.final_sigma not in (None, self.sigma)

    def at(self, slots: int) -> tuple[float, float, float]:
        """Learning rates of actor and critic, and the noise's deviation, after so many slots."""
        over = min(slots / self.slots, 1.0)
        left = 1.0 + (self.final_rate - 1.0) * over
        critic = self.learning_rate if self.critic_rate is None else self.critic_rate
        final = self.sigma if self.final_sigma is None else self.final_sigma
        return self.learning_rate * left, critic * left, self.sigma + (final - self.sigma) * over


def settings_of(start: Settings, changes: Mapping[str, Any]) -> Settings:
    """Change settings by name.

    ValueError with one sentence for an unknown name, a value of another kind, or one out of range.
    """
    known = sorted(_KINDS)
    if unknown := ", ".join(sorted(changes.keys() - {*known})):
        raise ValueError(f"there is no setting {unknown}; there are {', '.join(known)}")
    for name, value in changes.items():
        # Python counts True as 1, and so would a setting that is a number.
        parts = value if isinstance(value, list | tuple) else [value]
        if "bool" not in _KINDS[name] and any(isinstance(part, bool) for part in parts):
            raise ValueError(_not_of_its_kind(name, changes))
    try:
        made: Settings = TypeAdapter(Settings).validate_python({**vars(start), **changes})
    except ValidationError as error:
        first = error.errors()[0]
        wrong = first.get("ctx", {}).get("error")
        if wrong is not None:  # of a limit, in its own words
            raise ValueError(str(wrong)) from None
        raise ValueError(_not_of_its_kind(str(first["loc"][0]), changes)) from None
    return made


# By what annotations begin with, which are text in this module.
_KINDS: Final = {field.name: str(field.type) for field in fields(Settings)}
_KINDS_IN_WORDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "float | None": "a number or None",
    "bool": "True or False",
    "tuple[int, ...]": "two whole numbers, such as (90, 60)",
}


def _not_of_its_kind(name: str, changes: Mapping[str, Any]) -> str:
    """Say what a setting takes, in place of what it was given."""
    kind = _KINDS[name]
    wanted = _KINDS_IN_WORDS.get(kind)
    if wanted is None:
        *most, last = map(repr, get_args(get_type_hints(Settings)[name]))
        wanted = f"{', '.join(most)} or {last}"
    return f"{name} is {wanted}, not {changes[name]!r}"


# Settings of `inferway train` unless told to do as the paper does. The potential pays for a request
# when it is accepted, so little is left for a discount near 1 to look ahead to but the noise of
# bursts to come, which drowns the calm phase: with 0.99 and 0.95, 3 million slots taught it to send
# 59 % of the calm requests to the accurate variant, with 0.9 and 0.8, 94 %.
TUNED = Settings(
    slots=25_000_000,
    learning_rate=1e-3,
    final_rate=0.1,
    discount=0.9,
    trace=0.8,
    baseline=-1.0,
    potential="outcomes",
    scale=True,
    symlog=1.0,
    standardize=True,
)
