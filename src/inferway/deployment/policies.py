"""Policies by name: one table of the three kinds, and the section of a file that each one makes.

A row names the class of a policy, which is imported when a file names the policy. Its options are
the keyword parameters of its `build` that are annotated with `Annotated`: type, limits, description
and default stand there and nowhere else. Any policy may also be a class in a Python file of the
user's own, ``./mine.py:Cheapest``, which takes any options. The names are those of the papers.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import importlib
import inspect
import linecache
import operator
import re
import sys
import textwrap
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType
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

from inferway.deployment.own_class import OWN_CLASS, file_of_class
from inferway.deployment.section import Section, check_kind, says
from inferway.deployment.units import PositiveSeconds
from inferway.files import home_folder, syntax_tree, write_whole

FILE_POLICY = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_][A-Za-z0-9_]*)")

Kind = Literal["dispatch", "scheduling", "placement"]
# Why placement takes no waits as delays where it has a price for them.
WAITS_TWICE: Final = (
    "with `waiting`, waits have a price already: say `delays: measured`, which measures that too, "
    "in place of `sojourns`"
)


class Row(NamedTuple):
    """One policy."""

    place: str  # MODULE:CLASS below the package
    section: str = ""  # of the file's schema; empty where no file may name the policy
    implies: str = "alias"  # of a scheduler: the dispatch policy that routes as it says
    hindsight: bool = False  # of placement: it must be given the requests of all slots
    steered: bool = False  # of dispatch: it goes by the accuracy balance, and so needs a target
    thrifty: bool = False  # of dispatch: it keeps an energy budget
    joint: bool = False  # of dispatch: it keeps targets over several tasks
    weighing: bool = False  # of dispatch or scheduling: it tells variants apart by accuracy alone
    within: bool = False  # of placement: it gives out the devices of one site, without a network
    sighted: bool = False  # of a scheduler: it goes by the workload's state, unseen by live servers
    together: bool = False  # of a scheduler: one policy may schedule several tasks


# What the sections are; policies with the same options share one.
_SECTIONS: Final[Mapping[str, str]] = {
    "PlainDispatch": "A dispatch policy without options.",
    "RandomizedDispatch": (
        "A policy that draws the server class from the bound's probabilities for the arrival rate."
    ),
    "RandomizedDispatchD": "As r-jsq, looking at `d` servers of the class drawn.",
    "PricedDispatch": (
        "The priced idle queue: least response time less the price of the accuracy delivered."
    ),
    "EscalateDispatch": (
        "As priced, and a second variant is asked where the confidence of the first says that it "
        "pays."
    ),
    "DeadlineDispatch": "The most accurate server predicted to finish in time.",
    "LeastCostDispatch": (
        "The least wait and service time together with the price of inaccuracy (eq. 6)."
    ),
    "AliasDispatch": "Every request to a server at random, by fixed probabilities.",
    "SingleQueueDispatch": (
        "One queue for all instances of a task: an idle one takes the first that waits."
    ),
    "EarlyDropDispatch": (
        "All to the most accurate variant; requests that cannot be in time leave its queue."
    ),
    "LearnedScheduling": (
        "A trained controller that sets routing (and, with ``-b``, batch sizes) once a slot."
    ),
    "FixedScheduling": (
        "Routing that never changes: all to the least (lw) or most accurate variant (hw, hw-e)."
    ),
    "SingleQueueScheduling": "One queue for all instances of a task.",
    "StationaryScheduling": (
        "The greatest share of the accurate variant that keeps the deadline, by phase."
    ),
    "InfaasScheduling": "Evenly over the instances that are not overloaded.",
    "HandScheduling": (
        "A hand rule: all to the accurate variant while it keeps up, else a set share."
    ),
    "InfidaPlacement": (
        "INFIDA: each node moves its allocation a little every slot, with no view of the future."
    ),
    "ExchangePlacement": (
        "Exchange: each node trades copies for others by the gain that is really served."
    ),
    "AssignPlacement": (
        "Gives out the devices of one node to the copies of all tasks, by the demand seen so far."
    ),
    "PlainPlacement": "A placement policy without options of its own.",
}

_RANDOMIZED: Final = Row("dispatch.routing:RJiq", "RandomizedDispatch", steered=True, thrifty=True)
_TAD: Final = Row("dispatch.tad_op:Tad", "PlainDispatch", steered=True)
_HW_E: Final = Row("dispatch.ordered:EarlyDrop", "EarlyDropDispatch", weighing=True)
_SQ: Final = Row("dispatch.ordered:SingleQueue", "SingleQueueDispatch")
DISPATCH: Final[Mapping[str, Row]] = {
    "fastest-only": Row("dispatch.ordered:FastestOnly", "PlainDispatch"),
    "most-accurate-only": Row("dispatch.ordered:MostAccurateOnly", "PlainDispatch", weighing=True),
    "jiq-fast": Row("dispatch.ordered:JiqFast", "PlainDispatch"),
    "jiq-accurate": Row("dispatch.ordered:JiqAccurate", "PlainDispatch", weighing=True),
    "r-jiq": _RANDOMIZED,
    "r-jsq": _RANDOMIZED._replace(place="dispatch.routing:RJsq"),
    "r-jsq-d": _RANDOMIZED._replace(place="dispatch.routing:RJsqD", section="RandomizedDispatchD"),
    "tad": _TAD,
    "tad-op": _TAD._replace(place="dispatch.tad_op:TadOp"),
    "priced": Row(
        "dispatch.priced:Priced", "PricedDispatch", steered=True, thrifty=True, joint=True
    ),
    "escalate": Row("dispatch.escalate:Escalate", "EscalateDispatch", steered=True),
    "deadline": Row("dispatch.deadline:Deadline", "DeadlineDispatch"),
    "least-cost": Row("dispatch.least_cost:LeastCost", "LeastCostDispatch"),
    "alias": Row("dispatch.alias:Alias", "AliasDispatch"),
    "steered": Row("dispatch.alias:Steered"),
    "sq": _SQ,
    "hw-e": _HW_E,
}

_LEARNED: Final = Row(
    "scheduling.store:PolicyStore",
    "LearnedScheduling",
    implies="steered",
    weighing=True,
    together=True,
)
_FIXED: Final = Row("scheduling.fixed:FixedRouting", "FixedScheduling", weighing=True)
# `hw-e` and `sq` are all dispatch and need no controller.
SCHEDULING: Final[Mapping[str, Row]] = {
    "rl-po": _LEARNED,
    "rl-fo": _LEARNED._replace(sighted=True),
    "rl-po-b": _LEARNED,
    "rl-fo-b": _LEARNED._replace(sighted=True),
    "lw": _FIXED,
    "hw": _FIXED,
    "hw-e": _HW_E._replace(section="FixedScheduling", implies="hw-e"),
    "sq": _SQ._replace(section="SingleQueueScheduling", implies="sq"),
    "sa": Row(
        "scheduling.sa:StationaryApproximation",
        "StationaryScheduling",
        weighing=True,
        sighted=True,
    ),
    "infaas": Row("scheduling.infaas:Infaas", "InfaasScheduling"),
    "hand": Row("scheduling.hand_rule:HandRule", "HandScheduling", weighing=True),
}

PLACEMENT: Final[Mapping[str, Row]] = {
    "infida": Row("placement.infida:Infida", "InfidaPlacement"),
    "exchange": Row("placement.exchange:ExchangePolicy", "ExchangePlacement"),
    "assign": Row("placement.assign:Assign", "AssignPlacement", within=True),
    "infida-offline": Row("placement.static:InfidaOffline", "PlainPlacement", hindsight=True),
    "static-greedy": Row("placement.static:StaticGreedy", "PlainPlacement", hindsight=True),
    "olag": Row("placement.counters:Olag", "PlainPlacement"),
    "olag-literal": Row("placement.counters:OlagLiteral", "PlainPlacement"),
    "greedy": Row("placement.counters:Greedy", "PlainPlacement"),
    "exact": Row("placement.exact:Exact", "PlainPlacement", hindsight=True),
    "repository-only": Row("placement.static:RepositoryOnly", "PlainPlacement"),
}

# Those that go by accuracies as the site shows them, and so follow what is measured; the others
# have plans that are made of profiles, or look at no accuracy.
FOLLOWING: Final = frozenset({"tad", "priced", "escalate", "least-cost"})
# The dispatch policy that asks a second variant where the first one is not sure.
ESCALATE: Final = "escalate"

# Placement policies that must be given the requests of all slots.
HINDSIGHT: Final = frozenset(name for name, row in PLACEMENT.items() if row.hindsight)
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


class _NamedPolicy(Section, BaseModel):
    """A policy in a file: its name, and its options."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    policy: str


class _FilePolicy(_NamedPolicy):
    """A class in a Python file of the user's own, with any options."""

    model_config = ConfigDict(extra="allow")

    policy: Annotated[
        str,
        Field(pattern=OWN_CLASS),
        says("FILE.py:CLASS, the file relative to this one."),
    ]

    @field_validator("policy")
    @classmethod
    def _stands_in_its_file(cls, policy: str, info: ValidationInfo) -> str:
        file_of_class(policy, (info.context or {}).get("folder", Path()))
        return policy


def row_of(kind: Kind, name: str) -> Row:
    """Return the row of a policy; an empty one for a class in a file of the user's own."""
    return ROWS[kind].get(name, Row(""))


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
def _section(kind: Kind, title: str) -> type[_NamedPolicy]:
    """Make the section of the policies that share it; without a title, of a class in a file."""
    fields: dict[str, Any] = {}
    if kind == "placement":
        # Of all of these: whoever runs one goes by it, and `build` is not told.
        slot = Annotated[PositiveSeconds, Field(description="Time between two steps.")]
        fields["slot"] = (slot, 60.0)
    if not title:
        base = _FilePolicy
        return create_model(f"File{kind.title()}", __base__=base, __doc__=base.__doc__, **fields)
    names = [name for name, row in ROWS[kind].items() if row.section == title]
    fields |= {
        "policy": (Literal[tuple(names)], ...),
        **dict(_options(builtin_class(kind, names[0]))),
    }
    return create_model(title, __base__=_NamedPolicy, __doc__=_SECTIONS[title], **fields)


def _titles(kind: Kind) -> list[str]:
    return list(dict.fromkeys(row.section for row in ROWS[kind].values() if row.section))


def _read(kind: Kind, value: Any, context: Any = None) -> PolicySpec:
    name = value.get("policy") if isinstance(value, dict) else None
    title = row_of(kind, name).section if isinstance(name, str) else ""
    if not title and not (isinstance(name, str) and FILE_POLICY.fullmatch(name)):
        rows = ROWS[kind].items()
        known = [name for title in _titles(kind) for name, row in rows if row.section == title]
        check_kind("policy", known, value)
    section = _section(kind, title).model_validate(value, context=context)
    return PolicySpec(section.policy, section.model_dump(exclude={"policy"}))


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
        sections = [_section(self.kind, title) for title in (*_titles(self.kind), "")]
        tagged: list[Any] = [Annotated[one, Tag(one.__name__)] for one in sections]
        union: Any = functools.reduce(operator.or_, tagged)
        return handler(TypeAdapter(Annotated[union, Discriminator(str)]).core_schema)


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
    return _adapter(kind).validate_python({"policy": policy, **written})


@functools.cache
def _adapter(kind: Kind) -> TypeAdapter[PolicySpec]:
    return TypeAdapter(Annotated[PolicySpec, _Policies(kind)])


def scheduled_dispatch(scheduling: PolicySpec) -> PolicySpec:
    """Return the dispatch policy that a scheduling policy implies."""
    name = row_of("scheduling", scheduling.policy).implies
    return PolicySpec(name, dict(scheduling.options) if name == scheduling.policy else {})


def scheduled_together(scheduling: PolicySpec | None) -> tuple[str, ...]:
    """Name the tasks that one policy schedules together, in its order.

    None where each task is scheduled by itself, as one is that is named alone.
    """
    if scheduling is None or not row_of("scheduling", scheduling.policy).together:
        return ()
    tasks = tuple(scheduling.options.get("tasks") or ())
    return tasks if len(tasks) > 1 else ()


_CALLS = ("choose", "act", "step")
_PLAIN = (bool, int, float, str, bytes, type(None))
# Modules that objects may be imported from under the very name that they have.
_HOMES = ("inferway.site", "inferway.dispatch.contract", "typing", "numpy", "math")


def policy_name(policy: str | type) -> str:
    """Name a policy as a deployment file does.

    A class in a module of its own has the name of its file. One of a notebook or a script is
    written to a file with all that it refers to, named by its content: from then on it is
    compiled, cached and recorded like any other.

    Parameters
    ----------
    policy
        A name, which comes back as it is; or a class with `choose` (dispatch), `act` (scheduling)
        or `step` (placement).

    Returns
    -------
    str
        ``FILE.py:CLASS`` of a class.

    Raises
    ------
    ValueError
        Where the class is no policy, its source is not known, or it refers to something that no
        file can say.
    """
    if isinstance(policy, str):
        return policy
    if not (isinstance(policy, type) and any(hasattr(policy, call) for call in _CALLS)):
        name = getattr(policy, "__name__", policy)
        raise ValueError(f"a policy is a name or a class with `choose`, not {name!r}")
    module = sys.modules.get(policy.__module__)
    file = getattr(module, "__file__", None) or ""
    at_top = getattr(module, policy.__qualname__, None) is policy
    if file.endswith(".py") and getattr(module, "__spec__", None) is not None and at_top:
        return f"{Path(file).resolve()}:{policy.__qualname__}"
    text = _written(policy)
    mark = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = home_folder("cache") / "policies" / mark / f"{policy.__name__}.py"
    if not path.is_file():
        write_whole(path, text)
    return f"{path}:{policy.__name__}"


def _written(policy: type) -> str:
    """Write a class and what it refers to, each before what refers to it, as a file."""
    space = vars(sys.modules[policy.__module__])
    here = space["__name__"]
    known, imports, parts = {policy.__name__}, set(), []

    def define(found: Any) -> None:
        source = _source_of(found)
        if source is None:
            raise ValueError(
                f"the source of {found.__name__} is not known: put the policy into a file and name "
                "it as FILE.py:CLASS"
            )
        if isinstance(found, FunctionType) and found.__closure__:
            raise ValueError(f"{found.__name__} uses variables of a function around it")
        for one in ast.walk(syntax_tree(source)):
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load):
                refer(one.id, found.__name__)
        parts.append(source.rstrip())

    def refer(name: str, by: str) -> None:
        if name in known or hasattr(builtins, name) or name not in space:
            return
        known.add(name)
        value = space[name]
        module, own_name = getattr(value, "__module__", here), getattr(value, "__name__", "")
        homes = [one for one in _HOMES if getattr(sys.modules.get(one), name, None) is value]
        if isinstance(value, ModuleType):
            imports.add(f"import {value.__name__} as {name}")
        elif _is_plain(value):
            parts.append(f"{name} = {value!r}")
        elif module != here and getattr(sys.modules.get(module), own_name, None) is value:
            imports.add(f"from {module} import {own_name} as {name}")
        elif isinstance(value, type | FunctionType):
            define(value)
        elif isinstance(compiled := getattr(value, "py_func", None), FunctionType):
            define(compiled)  # its decorator stands in its source
        elif homes:
            imports.add(f"from {homes[0]} import {name}")
        else:
            raise ValueError(
                f"{by} refers to {name}, a {type(value).__name__}, which a policy's file cannot "
                "hold: make it a number, or a field that `build` fills"
            )

    define(policy)
    return "\n\n".join(["\n".join(sorted(imports)), *parts]) + "\n"


def _source_of(found: Any) -> str | None:
    """Find the text of a class or function; of a notebook's as well, where classes know no file."""
    if isinstance(found, FunctionType):
        try:
            return textwrap.dedent(inspect.getsource(found))
        except OSError:
            return None
    members = [getattr(one, "__func__", one) for one in vars(found).values()]
    for code in (one.__code__ for one in members if isinstance(one, FunctionType)):
        lines = linecache.getlines(code.co_filename)
        try:
            tree = syntax_tree("".join(lines))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == found.__name__:
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                last = node.end_lineno or first
                if first <= code.co_firstlineno <= last:
                    return textwrap.dedent("".join(lines[first - 1 : last]))
    return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)
