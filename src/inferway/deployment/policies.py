"""Policies by name, each with the options that it takes.

The names are those of the papers. A dispatch policy may also be a class in a Python file of the
user's own, ``./mine.py:Cheapest``, which takes any options.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationInfo,
    field_validator,
)

from inferway.deployment.quantities import (
    Count,
    Number,
    PositiveNumber,
    PositiveRate,
    PositiveSeconds,
    Ratio,
    refuse,
)
from inferway.deployment.section import Name, Place, Section

__all__ = [
    "DispatchPolicy",
    "PlacementPolicy",
    "PolicySpec",
    "SchedulingPolicy",
    "scheduled_dispatch",
    "scheduling_spec",
]

_ROUNDING = 1e-6
FILE_POLICY = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_][A-Za-z0-9_]*)")


@dataclass(frozen=True)
class PolicySpec:
    """A policy as the deployment names it.

    Attributes
    ----------
    policy
        Its name, or ``FILE.py:CLASS`` with the file relative to the deployment file.
    options
        Every option of the policy, those not given at their defaults; times in seconds, rates per
        second.
    """

    policy: str
    options: dict[str, Any] = field(default_factory=dict)


class _Policy(Section):
    """What all policies share: a name, and options that become a `PolicySpec`."""

    policy: str

    def spec(self) -> PolicySpec:
        """Return name and options."""
        options = self.model_dump(exclude={"policy"})
        return PolicySpec(self.policy, options)


class PlainDispatch(_Policy):
    """A dispatch policy without options."""

    policy: Literal[
        "fastest-only", "most-accurate-only", "jiq-fast", "jiq-accurate", "tad", "tad-op"
    ]


class RandomizedDispatch(_Policy):
    """A policy that draws the server class from the bound's probabilities for the arrival rate."""

    policy: Literal["r-jiq", "r-jsq"]
    rate: PositiveRate | None = None
    """Arrival rate to plan for; if not given, the workload's, or an estimate over `window`."""
    window: PositiveSeconds | None = None
    """Estimate the arrival rate over the last such stretch of time."""
    beta: Annotated[Number, Field(gt=0, lt=0.5)] | None = None
    """Load is kept below 1 - n^-beta of the greatest, in (0, 0.5); if not given, from the rate."""


class RandomizedDispatchD(RandomizedDispatch):
    """As r-jsq, looking at `d` servers of the class drawn."""

    policy: Literal["r-jsq-d"]  # type: ignore[assignment]
    d: Count = 2
    """How many servers to compare."""


class PricedDispatch(_Policy):
    """The priced idle queue: least response time less the price of the accuracy delivered."""

    policy: Literal["priced"]
    price: Number | None = None
    """Starting price, in seconds per unit of accuracy; if not given, from the bound."""
    step: PositiveNumber | None = None
    """How fast the price moves, relative to its scale; if not given, set for the fleet."""
    wait: Number = 3.0
    """Service times that each request at a server counts."""


class DeadlineDispatch(_Policy):
    """The most accurate server predicted to finish in time."""

    policy: Literal["deadline"]
    margin: Annotated[PositiveNumber, Field(ge=1)] = 1.5
    """Service times are believed to be this much longer than their learned quantile."""


class LeastCostDispatch(_Policy):
    """The least wait and service time together with the price of inaccuracy (eq. 6)."""

    policy: Literal["least-cost"]
    alpha: Number | None = None
    """Milliseconds per point of inaccuracy; if not given, as `cost` says, or 1."""


class AliasDispatch(_Policy):
    """Every request to a server at random, by fixed probabilities."""

    policy: Literal["alias"]
    probabilities: Annotated[dict[Name, Ratio], Field(min_length=1)] | None = None
    """By variant, split evenly over its instances; in proportion to service rates if not given."""

    @field_validator("probabilities")
    @classmethod
    def _sum_to_one(cls, given: dict[str, float] | None) -> dict[str, float] | None:
        if given is not None and abs(sum(given.values()) - 1.0) > _ROUNDING:
            raise refuse(f"sum to {sum(given.values()):.6g}, not to 1")
        return given


class SingleQueueDispatch(_Policy):
    """One queue for all instances of a task: an idle one takes the first that waits."""

    policy: Literal["sq"]
    ties: Literal["heavy", "uniform"] = "heavy"
    """Which of several idle instances: one of the most accurate variant, or any."""


class EarlyDropDispatch(_Policy):
    """All to the most accurate variant; requests that cannot be in time leave its queue."""

    policy: Literal["hw-e"]


class FileDispatch(_Policy):
    """A class in a Python file of the user's own, with any options."""

    model_config = ConfigDict(extra="allow")

    policy: Annotated[str, Field(pattern=r"^.+\.py:[A-Za-z_][A-Za-z0-9_]*$")]
    """FILE.py:CLASS, the file relative to this one."""

    @field_validator("policy")
    @classmethod
    def _stands_in_its_file(cls, policy: str, info: ValidationInfo) -> str:
        match = FILE_POLICY.fullmatch(policy)
        assert match is not None
        path = (info.context or {}).get("folder", Path()) / match["file"]
        if not path.is_file():
            raise refuse(f"no such file: {path}")
        names = _names_bound_in(path)
        if match["name"] not in names:
            raise refuse(
                f"{match['file']} has no {match['name']}; it has {', '.join(names) or 'nothing'}"
            )
        return policy

    def spec(self) -> PolicySpec:
        """Return name and options, these as they were written."""
        return PolicySpec(self.policy, dict(self.model_extra or {}))


def _names_bound_in(path: Path) -> list[str]:
    """List the names at the top level of a Python file, without running it."""
    try:
        module = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise refuse(f"{path} is not Python{line}") from None
    names: list[str] = []
    for statement in module.body:
        match statement:
            case ast.ClassDef(name=name):
                names.append(name)
            case ast.ImportFrom(names=imported):
                names += [alias.asname or alias.name for alias in imported]
            case ast.Assign(targets=targets):
                names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


def _dispatch_kind(value: Any) -> str | None:
    name = value.get("policy") if isinstance(value, dict) else getattr(value, "policy", None)
    if not isinstance(name, str):
        return None
    for kind in DISPATCH_KINDS:
        if name in _names_of(kind):
            return kind.__name__
    return FileDispatch.__name__ if FILE_POLICY.fullmatch(name) else None


def _names_of(kind: type[_Policy]) -> tuple[str, ...]:
    names: tuple[str, ...] = kind.model_fields["policy"].annotation.__args__  # type: ignore[union-attr]
    return names


DISPATCH_KINDS: tuple[type[_Policy], ...] = (
    PlainDispatch,
    RandomizedDispatch,
    RandomizedDispatchD,
    PricedDispatch,
    DeadlineDispatch,
    LeastCostDispatch,
    AliasDispatch,
    SingleQueueDispatch,
    EarlyDropDispatch,
)

DispatchPolicy = Annotated[
    Annotated[PlainDispatch, Tag("PlainDispatch")]
    | Annotated[RandomizedDispatch, Tag("RandomizedDispatch")]
    | Annotated[RandomizedDispatchD, Tag("RandomizedDispatchD")]
    | Annotated[PricedDispatch, Tag("PricedDispatch")]
    | Annotated[DeadlineDispatch, Tag("DeadlineDispatch")]
    | Annotated[LeastCostDispatch, Tag("LeastCostDispatch")]
    | Annotated[AliasDispatch, Tag("AliasDispatch")]
    | Annotated[SingleQueueDispatch, Tag("SingleQueueDispatch")]
    | Annotated[EarlyDropDispatch, Tag("EarlyDropDispatch")]
    | Annotated[FileDispatch, Tag("FileDispatch")],
    Discriminator(_dispatch_kind),
]


class _Slotted(_Policy):
    """A controller that sets routing once a slot."""

    slot: PositiveSeconds = 1.0
    """Time between two decisions."""
    event: Literal["rejection"] | None = None
    """Decide also at once after such an event."""


class LearnedScheduling(_Slotted):
    """A trained controller that sets routing (and, with ``-b``, batch sizes) once a slot."""

    policy: Literal["rl-po", "rl-fo", "rl-po-b", "rl-fo-b"]
    checkpoint: Place
    """The trained policy, relative to this file; or a folder with one for each set of healthy
    instances, of which the matching one is used, and `deadline` while there is none."""


class FixedScheduling(_Policy):
    """Routing that never changes: all to the least (lw) or most accurate variant (hw, hw-e)."""

    policy: Literal["lw", "hw", "hw-e"]


class SingleQueueScheduling(_Policy):
    """One queue for all instances of a task."""

    policy: Literal["sq"]
    ties: Literal["heavy", "uniform"] = "heavy"
    """Which of several idle instances: one of the most accurate variant, or any."""


class StationaryScheduling(_Slotted):
    """The greatest share of the accurate variant that keeps the deadline, by phase."""

    policy: Literal["sa"]
    violations: Annotated[Ratio, Field(gt=0, lt=1)] = 0.02
    """Largest share of requests that may be late."""


class InfaasScheduling(_Slotted):
    """Evenly over the instances that are not overloaded."""

    policy: Literal["infaas"]
    slot: PositiveSeconds = 0.1
    """Time between two decisions."""
    overloaded: Annotated[Ratio, Field(gt=0)] = 0.5
    """Share of the deadline that serving what waits takes where an instance is overloaded."""


class HandScheduling(_Slotted):
    """A hand rule: all to the accurate variant while it keeps up, else a set share."""

    policy: Literal["hand"]
    share: Ratio = 0.12
    """Share of the most accurate variant while load is high."""
    waiting: Count = 3
    """Requests waiting there from which on load is high."""


SchedulingPolicy = Annotated[
    LearnedScheduling
    | FixedScheduling
    | SingleQueueScheduling
    | StationaryScheduling
    | InfaasScheduling
    | HandScheduling,
    Field(discriminator="policy"),
]


def scheduling_spec(policy: str, **options: Any) -> PolicySpec:
    """Return a scheduling policy with these options, as a file would name it, and its defaults.

    Raises
    ------
    pydantic.ValidationError
        For an unknown name or option, or a value that a file may not have.
    """
    written = {name: str(v) if isinstance(v, Path) else v for name, v in options.items()}
    found: _Policy = TypeAdapter(SchedulingPolicy).validate_python({"policy": policy, **written})
    return found.spec()


def scheduled_dispatch(scheduling: PolicySpec) -> PolicySpec:
    """Return the dispatch policy that a scheduling policy implies."""
    match scheduling.policy:
        case "sq":
            return PolicySpec("sq", {"ties": scheduling.options["ties"]})
        case "hw-e":
            return PolicySpec("hw-e")
        case name if name.startswith("rl-"):
            return PolicySpec("steered")
        case _:
            return PolicySpec("alias")


class InfidaPlacement(_Policy):
    """INFIDA: each node moves its allocation a little every slot, with no view of the future."""

    policy: Literal["infida"]
    slot: PositiveSeconds = 60.0
    """Time between two steps."""
    learning_rate: PositiveNumber | None = None
    """Step size; if not given, it tunes itself."""
    refresh: Count = 1
    """Slots between two changes of the integral allocation."""
    rounding: Literal["coupled", "fresh"] = "coupled"
    """Whether successive roundings share their random numbers, so that few models move."""


class PlainPlacement(_Policy):
    """A placement policy without options of its own."""

    policy: Literal[
        "infida-offline",
        "static-greedy",
        "olag",
        "olag-literal",
        "greedy",
        "exact",
        "repository-only",
    ]
    slot: PositiveSeconds = 60.0
    """Time between two steps."""


PlacementPolicy = Annotated[InfidaPlacement | PlainPlacement, Field(discriminator="policy")]
