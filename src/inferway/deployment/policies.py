"""Policies by name: one table of the three kinds, and the section of a file that each one makes.

A row names the class of a policy, which is imported when a file names the policy. Its options are
the keyword parameters of its `build` that are annotated with `Annotated`: type, limits, description
and default stand there and nowhere else. Any policy may also be a class in a Python file of the
user's own, ``./mine.py:Cheapest``, which takes any options. The names are those of the papers.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import operator
import re
import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    TypeAdapter,
    ValidationInfo,
    create_model,
    field_validator,
)
from pydantic_core import core_schema

from inferway.deployment.section import Section, says
from inferway.deployment.units import PositiveSeconds, refuse

FILE_POLICY = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_][A-Za-z0-9_]*)")

Kind = Literal["dispatch", "scheduling", "placement"]


class Row(NamedTuple):
    """One policy."""

    place: str
    """MODULE:CLASS below the package."""
    section: str = ""
    """Of the file's schema; policies with the same options share one. Empty where no file may name
    the policy."""
    says: str = ""
    """What the section is; in the first row of those that share it."""
    implies: str = "alias"
    """Of a scheduler: the dispatch policy that routes as it says."""
    hindsight: bool = False
    """Of a placement policy: whether it must be given the requests of all slots."""
    steered: bool = False
    """Of a dispatch policy: whether it goes by the accuracy balance, and so needs a target."""
    thrifty: bool = False
    """Of a dispatch policy: whether it keeps an energy budget."""
    sighted: bool = False
    """Of a scheduler: whether it goes by the workload's state, which a live server cannot see."""


DISPATCH: Final[Mapping[str, Row]] = {
    "fastest-only": Row(
        "dispatch.ordered:FastestOnly", "PlainDispatch", "A dispatch policy without options."
    ),
    "most-accurate-only": Row("dispatch.ordered:MostAccurateOnly", "PlainDispatch"),
    "jiq-fast": Row("dispatch.ordered:JiqFast", "PlainDispatch"),
    "jiq-accurate": Row("dispatch.ordered:JiqAccurate", "PlainDispatch"),
    "r-jiq": Row(
        "dispatch.routing:RJiq",
        "RandomizedDispatch",
        "A policy that draws the server class from the bound's probabilities for the arrival rate.",
        steered=True,
        thrifty=True,
    ),
    "r-jsq": Row("dispatch.routing:RJsq", "RandomizedDispatch", steered=True, thrifty=True),
    "r-jsq-d": Row(
        "dispatch.routing:RJsqD",
        "RandomizedDispatchD",
        "As r-jsq, looking at `d` servers of the class drawn.",
        steered=True,
        thrifty=True,
    ),
    "tad": Row("dispatch.tad_op:Tad", "PlainDispatch", steered=True),
    "tad-op": Row("dispatch.tad_op:TadOp", "PlainDispatch", steered=True),
    "priced": Row(
        "dispatch.priced:Priced",
        "PricedDispatch",
        "The priced idle queue: least response time less the price of the accuracy delivered.",
        steered=True,
        thrifty=True,
    ),
    "deadline": Row(
        "dispatch.deadline:Deadline",
        "DeadlineDispatch",
        "The most accurate server predicted to finish in time.",
    ),
    "least-cost": Row(
        "dispatch.least_cost:LeastCost",
        "LeastCostDispatch",
        "The least wait and service time together with the price of inaccuracy (eq. 6).",
    ),
    "alias": Row(
        "dispatch.alias:Alias",
        "AliasDispatch",
        "Every request to a server at random, by fixed probabilities.",
    ),
    "steered": Row("dispatch.alias:Steered"),
    "sq": Row(
        "dispatch.ordered:SingleQueue",
        "SingleQueueDispatch",
        "One queue for all instances of a task: an idle one takes the first that waits.",
    ),
    "hw-e": Row(
        "dispatch.ordered:EarlyDrop",
        "EarlyDropDispatch",
        "All to the most accurate variant; requests that cannot be in time leave its queue.",
    ),
}

_LEARNED: Final = Row(
    "scheduling.store:PolicyStore",
    "LearnedScheduling",
    "A trained controller that sets routing (and, with ``-b``, batch sizes) once a slot.",
    implies="steered",
)
_FIXED: Final = Row(
    "scheduling.fixed:FixedRouting",
    "FixedScheduling",
    "Routing that never changes: all to the least (lw) or most accurate variant (hw, hw-e).",
)
SCHEDULING: Final[Mapping[str, Row]] = {
    "rl-po": _LEARNED,
    "rl-fo": _LEARNED._replace(sighted=True),
    "rl-po-b": _LEARNED,
    "rl-fo-b": _LEARNED._replace(sighted=True),
    **dict.fromkeys(("lw", "hw"), _FIXED),
    "hw-e": DISPATCH["hw-e"]._replace(section="FixedScheduling", implies="hw-e"),
    "sq": DISPATCH["sq"]._replace(
        section="SingleQueueScheduling",
        says="One queue for all instances of a task.",
        implies="sq",
    ),
    "sa": Row(
        "scheduling.sa:StationaryApproximation",
        "StationaryScheduling",
        "The greatest share of the accurate variant that keeps the deadline, by phase.",
        sighted=True,
    ),
    "infaas": Row(
        "scheduling.infaas:Infaas",
        "InfaasScheduling",
        "Evenly over the instances that are not overloaded.",
    ),
    "hand": Row(
        "scheduling.hand_rule:HandRule",
        "HandScheduling",
        "A hand rule: all to the accurate variant while it keeps up, else a set share.",
    ),
}
"""`hw-e` and `sq` are all dispatch and need no controller."""

PLACEMENT: Final[Mapping[str, Row]] = {
    "infida": Row(
        "placement.infida:Infida",
        "InfidaPlacement",
        "INFIDA: each node moves its allocation a little every slot, with no view of the future.",
    ),
    "infida-offline": Row(
        "placement.infida_offline:InfidaOffline",
        "PlainPlacement",
        "A placement policy without options of its own.",
        hindsight=True,
    ),
    "static-greedy": Row("placement.static_greedy:StaticGreedy", "PlainPlacement", hindsight=True),
    "olag": Row("placement.counters:Olag", "PlainPlacement"),
    "olag-literal": Row("placement.counters:OlagLiteral", "PlainPlacement"),
    "greedy": Row("placement.counters:Greedy", "PlainPlacement"),
    "exact": Row("placement.exact:Exact", "PlainPlacement", hindsight=True),
    "repository-only": Row("placement.repository_only:RepositoryOnly", "PlainPlacement"),
}

HINDSIGHT: Final = frozenset(name for name, row in PLACEMENT.items() if row.hindsight)
"""Placement policies that must be given the requests of all slots."""
_NONE: Final = Row("")

ROWS: Final[Mapping[Kind, Mapping[str, Row]]] = {
    "dispatch": DISPATCH,
    "scheduling": SCHEDULING,
    "placement": PLACEMENT,
}


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


class PolicySection(Section, BaseModel):
    """A policy in a file: its name, and options that become a `PolicySpec`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    policy: str

    def spec(self) -> PolicySpec:
        """Return name and options."""
        options = self.model_dump(exclude={"policy"})
        return PolicySpec(self.policy, options)


class _FilePolicy(PolicySection):
    """A class in a Python file of the user's own, with any options."""

    model_config = ConfigDict(extra="allow")

    policy: Annotated[
        str,
        Field(pattern=r"^.+\.py:[A-Za-z_][A-Za-z0-9_]*$"),
        says("FILE.py:CLASS, the file relative to this one."),
    ]

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


def row_of(kind: Kind, name: str) -> Row:
    """Return the row of a policy; an empty one for a class in a file of the user's own."""
    return ROWS[kind].get(name, _NONE)


def builtin_class(kind: Kind, name: str) -> Any:
    """Import the class of a policy of ours; KeyError for another name."""
    module, _, attribute = ROWS[kind][name].place.partition(":")
    return getattr(importlib.import_module(f"inferway.{module}"), attribute)


def _options(policy: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Give each option of a policy's `build`: its name, its type and its default."""
    build = policy.build
    names = vars(sys.modules[build.__func__.__module__])
    for name, parameter in inspect.signature(build).parameters.items():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        written = parameter.annotation
        if isinstance(written, str):
            written = eval(written, names)  # the module's own text, and the module was imported
        if typing.get_origin(written) is Annotated:
            default = parameter.default
            yield name, (written, ... if default is inspect.Parameter.empty else default)


@functools.cache
def _section(kind: Kind, title: str) -> type[PolicySection]:
    """Make the section of a file that names one of the policies which share it.

    The title of the one that names a class in a file is empty.
    """
    fields: dict[str, Any] = {}
    if kind == "placement":
        # Of all of these: whoever runs one goes by it, and `build` is not told.
        slot = Annotated[PositiveSeconds, Field(description="Time between two steps.")]
        fields["slot"] = (slot, 60.0)
    base: type[PolicySection] = _FilePolicy
    says = _FilePolicy.__doc__
    if title:
        rows = {name: row for name, row in ROWS[kind].items() if row.section == title}
        base, says = PolicySection, next(row.says for row in rows.values() if row.says)
        fields |= {"policy": (Literal[tuple(rows)], ...)}
        fields |= dict(_options(builtin_class(kind, next(iter(rows)))))
    title = title or f"File{kind.title()}"
    made: type[PolicySection] = create_model(title, __base__=base, __doc__=says, **fields)
    return made


def _section_of(kind: Kind, value: Any) -> type[PolicySection] | None:
    """Find the section that a value of a file is; None where it names no policy."""
    name = value.get("policy") if isinstance(value, dict) else None
    if not isinstance(name, str):
        return None
    if title := row_of(kind, name).section:
        return _section(kind, title)
    return _section(kind, "") if FILE_POLICY.fullmatch(name) else None


@functools.cache
def _any_section(kind: Kind) -> TypeAdapter[PolicySection]:
    """All sections of a kind: what the schema shows, and what says why a value is none of them."""
    titles = dict.fromkeys(row.section for row in ROWS[kind].values() if row.section)
    sections = [_section(kind, title) for title in (*titles, "")]

    def tag(value: Any) -> str | None:
        section = _section_of(kind, value)
        return None if section is None else section.__name__

    tagged: list[Any] = [Annotated[section, Tag(section.__name__)] for section in sections]
    union: Any = functools.reduce(operator.or_, tagged)
    return TypeAdapter(Annotated[union, Discriminator(tag)])


def _read(kind: Kind, value: Any, context: Any = None) -> PolicySpec:
    section = _section_of(kind, value)
    if section is None:
        return _any_section(kind).validate_python(value, context=context).spec()
    return section.model_validate(value, context=context).spec()


class _Policies:
    """Reads a kind's sections as policies; only that of the policy named is imported."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.with_info_plain_validator_function(
            lambda value, info: _read(self.kind, value, info.context)
        )

    def __get_pydantic_json_schema__(
        self, source: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(_any_section(self.kind).core_schema)


DispatchPolicy = Annotated[PolicySpec, _Policies("dispatch")]
SchedulingPolicy = Annotated[PolicySpec, _Policies("scheduling")]
PlacementPolicy = Annotated[PolicySpec, _Policies("placement")]


def spec_of(kind: Kind, policy: str, **options: Any) -> PolicySpec:
    """Return a policy with these options, as a file would name it, and its defaults.

    Raises
    ------
    pydantic.ValidationError
        For an unknown name or option, or a value that a file may not have.
    """
    written = {name: str(v) if isinstance(v, Path) else v for name, v in options.items()}
    return _read(kind, {"policy": policy, **written})


def scheduled_dispatch(scheduling: PolicySpec) -> PolicySpec:
    """Return the dispatch policy that a scheduling policy implies."""
    name = row_of("scheduling", scheduling.policy).implies
    return PolicySpec(name, dict(scheduling.options) if name == scheduling.policy else {})
