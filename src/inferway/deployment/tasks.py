"""Tasks and their variants: what clients ask for, and the models that can answer."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from inferway.catalog.profile import ConfidenceBins, PairBins
from inferway.deployment.column import ColumnError, read_column
from inferway.deployment.errors import must, refuse, refuse_at, refuse_where, shown
from inferway.deployment.models import (
    ClassOrPython,
    ModelUri,
    StatedProviders,
    UrlOrRemote,
)
from inferway.deployment.policies import DispatchPolicy
from inferway.deployment.profile import file_digest
from inferway.deployment.section import UNWRITTEN, File, Folder, Name, ReadAs, Section, Switch, says
from inferway.deployment.units import (
    Bytes,
    Count,
    FewCount,
    Joules,
    Number,
    PositiveJoules,
    PositiveNumber,
    PositiveRate,
    PositiveSeconds,
    Ratio,
    RatioChange,
    Seconds,
)

ANY_HARDWARE: Final = "*"

_DISTRIBUTION: Final = Literal[
    "deterministic", "exponential", "lognormal", "erlang", "hyperexponential", "empirical"
]
# The keys of which a distribution needs one; no other takes them.
_SHAPES: Final[Mapping[str, tuple[str, ...]]] = {
    "lognormal": ("cv",),
    "hyperexponential": ("cv",),
    "erlang": ("stages",),
    "empirical": ("samples", "file"),
}


def _whole(value: Any) -> Any:
    """Read a count written as 1e6, which YAML takes for a number with a fraction."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _samples(path: Path) -> tuple[float, ...]:
    try:
        values = read_column(path)
        if not (values > 0).all():
            raise ColumnError(f"{path}: {values.min():g} is not a service time above 0 s")
    except ColumnError as error:
        raise refuse(str(error)) from None
    return tuple(values.tolist())


# Defaults that a file's other words replace come from factories, which no schema shows.


@dataclass(frozen=True)
class ServiceTime(Section):
    """A service time: its mean (or rate, one over it) and how it varies."""

    distribution: Annotated[
        str, ReadAs(_DISTRIBUTION, str), says("How single service times spread around the mean.")
    ] = "deterministic"
    mean_s: Annotated[
        PositiveSeconds, says("Mean time that one request takes, at batch 1.", "mean")
    ] = field(default_factory=float)
    rate: Annotated[
        PositiveRate,
        says(
            "Requests that one instance serves per second when it is never idle; instead of `mean`."
        ),
    ] = field(default_factory=float)
    cv: Annotated[
        PositiveNumber,
        says(
            "Coefficient of variation (standard deviation over mean): lognormal, hyperexponential."
        ),
    ] = field(default_factory=float)
    stages: Annotated[FewCount, says("Number of exponential stages in a row: erlang.")] = field(
        default_factory=lambda: 1
    )
    samples_s: Annotated[
        tuple[PositiveSeconds, ...], says("Measured service times: empirical.", "samples")
    ] = field(default_factory=tuple)
    file: Annotated[
        tuple[float, ...],
        ReadAs(File, _samples),
        says("One measured service time in seconds per line, instead of `samples`: empirical."),
    ] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        if not self.mean_s and self.rate:
            object.__setattr__(self, "mean_s", 1.0 / self.rate)
        if self.mean_s:
            object.__setattr__(self, "rate", 1.0 / self.mean_s)

    @model_validator(mode="wrap")
    @classmethod
    def _of_file(cls, value: Any, handler: Callable[[Any], ServiceTime]) -> ServiceTime:
        read = handler(value)
        kind = read.distribution
        takes = _SHAPES.get(kind, ())
        refuse_where(
            (
                "mean" in value and "rate" in value,
                "both `mean` and `rate` are given; one says the other, so keep one",
            ),
            (
                "mean" not in value and "rate" not in value and kind != "empirical",
                "a service time needs `mean` (such as 10.7 ms) or `rate` (such as 0.9/s)",
            ),
            *(
                (key in value, f"`{key}` means nothing where the distribution is {kind}")
                for key in ("cv", "stages", "samples", "file")
                if key not in takes
            ),
            (
                takes and sum(key in value for key in takes) != 1,
                f"the distribution {kind} needs {' or '.join(f'`{key}`' for key in takes)}",
            ),
            (
                kind == "hyperexponential" and read.cv <= 1,
                f"the distribution {kind} has a `cv` above 1, not {read.cv:g}",
            ),
            (
                "samples" in value and not read.samples_s,
                "`samples` is empty; give at least one service time",
            ),
        )
        if kind == "empirical":
            samples = read.samples_s or read.file
            measured = math.fsum(samples) / len(samples)
            scale = read.mean_s / measured if read.mean_s else 1.0
            variance = math.fsum((sample - measured) ** 2 for sample in samples) / len(samples)
            scaled, cv = tuple(one * scale for one in samples), math.sqrt(variance) / measured
            return cls(kind, measured * scale, cv=cv, samples_s=scaled)
        cv = {"exponential": 1.0, "erlang": read.stages**-0.5}.get(kind, read.cv)
        return cls(kind, read.mean_s, cv=cv, stages=read.stages)


def _service_kind(value: Any) -> str:
    one = {"distribution", "mean", "rate", "cv", "stages", "samples", "file"}
    if isinstance(value, dict) and value and not set(value) & one:
        return "per hardware" if all(isinstance(v, dict) for v in value.values()) else "one"
    return "one"


ServiceTimes = Annotated[
    Mapping[str, ServiceTime],
    ReadAs(
        Annotated[
            Annotated[ServiceTime, Tag("one")]
            | Annotated[dict[Name, ServiceTime], Tag("per hardware")],
            Discriminator(_service_kind),
        ],
        lambda value: {ANY_HARDWARE: value} if isinstance(value, ServiceTime) else value,
    ),
]


@dataclass(frozen=True)
class Batch(Section):
    """Sizes at which a variant may serve several requests at once, and how long each takes."""

    sizes: Annotated[
        tuple[Count, ...], Field(min_length=1, max_length=63), says("Batch sizes, increasing.")
    ]
    service_s: Annotated[
        tuple[PositiveSeconds, ...],
        Field(min_length=1),
        says(
            "Service time of a whole batch, one per size; from the file's profile if not given.",
            "service",
        ),
    ] = field(default_factory=tuple)
    min: Annotated[
        Count,
        says(
            "Smallest batch to start while more requests may come; the smallest size if not given."
        ),
    ] = field(default_factory=int)
    max: Annotated[Count, says("Largest batch; the largest size if not given.")] = field(
        default_factory=int
    )
    pad: Annotated[
        Switch,
        says("Whether requests that fill no size may be run as the next one, where quicker."),
    ] = False
    wait_s: Annotated[
        Seconds,
        says(
            "How long after its first request came a batch waits for more, at most; never beyond "
            "the latest start at which that one is in time.",
            "wait",
        ),
    ] = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "min", self.min or self.sizes[0])
        object.__setattr__(self, "max", self.max or self.sizes[-1])

    @field_validator("sizes")
    @classmethod
    def _increase(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        refuse_where(
            *(
                (other <= one, f"batch sizes must increase, but {other} comes after {one}")
                for one, other in pairwise(sizes)
            )
        )
        return sizes

    @model_validator(mode="after")
    def _match(self) -> Batch:
        sizes, times = len(self.sizes), len(self.service_s)
        other = "which is not one of the sizes"
        refuse_where(
            (
                times not in (0, sizes),
                f"{sizes} sizes but {times} service times; give one per size",
            ),
            (self.min not in self.sizes, f"`min` is {self.min}, {other}"),
            (self.max not in self.sizes, f"`max` is {self.max}, {other}"),
            (self.min > self.max, f"`min` is {self.min}, above `max`, which is {self.max}"),
        )
        return self


_OF_BATCH: Final = ("sizes", "service", "min", "max", "pad", "wait")


def _batch_kind(value: Any) -> str:
    if isinstance(value, dict) and any(isinstance(one, dict) for one in value.values()):
        return "per hardware"
    return "one"


def _batch_form(value: Any) -> Any:
    """Refuse what is half of one table and half of one per hardware."""
    if _batch_kind(value) == "one":
        return value
    table = "{sizes: [1, 2], service: [10 ms, 15 ms]}"
    if isinstance(value.get("service"), dict):
        raise refuse_at(
            "service",
            "expected a list, got a mapping; times by hardware stand in a table for each, such as "
            f"batch: {{cpu: {table}}}",
        )
    for key, one in value.items():
        if key in _OF_BATCH:
            hardware = next(name for name, other in value.items() if isinstance(other, dict))
            raise refuse_at(
                key,
                f"it is of one table for any hardware, and {hardware} has one of its own beside "
                f"it; give each hardware a table, such as {{cpu: {table}}}",
            )
        if not isinstance(one, dict):
            raise refuse_at(key, f"expected keys such as {table}, got {shown(one)}")
    return value


def _energy_kind(value: Any) -> str:
    return "per hardware" if isinstance(value, dict) and value else "one"


# By hardware, J; one for any hardware is under `ANY_HARDWARE`.
Energies = Annotated[
    Mapping[str, float],
    ReadAs(
        Annotated[
            Annotated[Joules, Tag("one")] | Annotated[dict[Name, Joules], Tag("per hardware")],
            Discriminator(_energy_kind),
        ],
        lambda value: value if isinstance(value, dict) else {ANY_HARDWARE: value},
    ),
]

# By hardware; one for any hardware is under `ANY_HARDWARE`.
BatchTables = Annotated[
    Mapping[str, Batch],
    ReadAs(
        Annotated[
            Annotated[Batch, Tag("one")] | Annotated[dict[Name, Batch], Tag("per hardware")],
            Discriminator(_batch_kind),
        ],
        lambda value: {ANY_HARDWARE: value} if isinstance(value, Batch) else value,
    ),
    BeforeValidator(_batch_form),
]


_SHA256: Final = "^sha256:[0-9a-fA-F]{64}$"
Digest = Annotated[
    str,
    AfterValidator(
        must(partial(re.fullmatch, _SHA256[1:-1]), 'expected "sha256:" and 64 hexadecimal digits')
    ),
    AfterValidator(str.lower),
    Field(json_schema_extra={"pattern": _SHA256}),
]


@dataclass(frozen=True)
class Variant(Section):
    """One model that can answer a task; its accuracy is NaN where nothing says it."""

    name: Annotated[str, *UNWRITTEN] = ""
    model: Annotated[
        ModelUri | None,
        says(
            "The model: zoo://digits/tiny, file:///models/own.onnx, or "
            "a path relative to this file."
        ),
    ] = None
    digest: Annotated[
        Digest | None, says("SHA-256 of the model file, checked before it is loaded.")
    ] = None
    accuracy: Annotated[
        Ratio,
        says(
            "Share of requests answered rightly; from a profile if not given. Needed where the "
            "task has a target, or something else goes by accuracies."
        ),
    ] = field(default_factory=lambda: math.nan)
    size_bytes: Annotated[
        Bytes | None,
        says(
            "What one instance takes of its node's budget; the model's own size if not given.",
            "size",
        ),
    ] = None
    service: Annotated[
        ServiceTimes,
        says("Service time, or one per hardware; from a profile if not given."),
    ] = field(default_factory=dict)
    price: Annotated[
        Number | None,
        says("What one instance costs, in any unit that is the same for all variants."),
    ] = None
    energies: Annotated[
        Energies,
        says(
            "What one request takes on average, or that per hardware; needed where the task has an "
            "energy budget.",
            "energy",
        ),
    ] = field(default_factory=dict)
    threads: Annotated[FewCount, says("Cores that a run takes of a device with `cores`.")] = 1
    load_s: Annotated[
        Seconds | None,
        says(
            "How long it takes until a copy is ready on a device; from a profile if not given.",
            "load_time",
        ),
    ] = None
    batches: Annotated[
        BatchTables,
        says("Serve several requests at once: one table, or one per hardware.", "batch"),
    ] = field(default_factory=dict)
    remote: Annotated[
        UrlOrRemote | None,
        says("The model behind another server, instead of `model`: its URL, or more about it."),
    ] = None
    python: Annotated[
        ClassOrPython | None,
        says("A class of your own, instead of `model`: FILE.py:CLASS, or more about it."),
    ] = None
    providers: Annotated[
        StatedProviders,
        says(
            "ONNX Runtime's execution providers, as they are preferred, each a name or "
            "{NAME: {OPTION: VALUE}}; the processor if not given."
        ),
    ] = field(default_factory=tuple)

    confidence: Annotated[
        Annotated[str, Field(min_length=1)] | None,
        says(
            "Which number in an answer says how likely it is right: probability, margin, the name "
            "of an output, or ./FILE.py:FUNCTION; a profile calibrates it."
        ),
    ] = None
    confidence_bins: Annotated[ConfidenceBins | None, *UNWRITTEN] = None
    # By hardware: whose the service times are, and how long a profile says that a copy takes to
    # load, s.
    timed_by: Annotated[dict[str, str], *UNWRITTEN] = field(default_factory=dict)
    loads_s: Annotated[dict[str, float], *UNWRITTEN] = field(default_factory=dict)

    @property
    def runnable(self) -> bool:
        """Tell whether requests can be answered: by a model or a class here, or by a server."""
        return any(one is not None for one in (self.model, self.remote, self.python))

    @property
    def graded(self) -> bool:
        """Tell whether its accuracy is known."""
        return not math.isnan(self.accuracy)

    @property
    def identity(self) -> str:
        """Say which model it is, for a profile: its digest, or its server's URL; and its providers.

        Empty where that cannot be said, as of a file that cannot be read.
        """
        if self.remote is not None:
            return f"remote {self.remote.url}"
        model, python = self.model, self.python
        with suppress(OSError):  # whoever loads it says why
            if python is not None:
                return f"{python.target.name} of {python.digest}"
            if model is not None:
                digest = model.digest
                if digest is None and model.path is not None:
                    digest = file_digest(model.path)
                return " ".join([digest or model.uri, *map(str, self.providers)])
        return ""

    def service_on(self, hardware: str) -> ServiceTime:
        """Return the service time on `hardware`.

        Raises
        ------
        ValueError
            If neither the file nor a profile gives one; see `inferway.deployment.measured`.
        """
        time = self.service.get(hardware, self.service.get(ANY_HARDWARE))
        if time is None:
            known = ", ".join(self.service) or "none"
            raise ValueError(
                f"variant {self.name} has no service time on hardware {hardware} (known: {known})"
            )
        return time

    def untimed_on(self, *hardware: str, file: str) -> str:
        """Say that no service time on any of such hardware is known, and how to measure one."""
        sentence = (
            f"{self.name} has no service time on hardware {', '.join(hardware)}; it has one on "
            f"{', '.join(self.service)}"
        )
        if not self.runnable:
            return sentence
        return (
            f"{sentence}; write one in its `service`, or measure it on that hardware with "
            f"`inferway profile {file} --data TEST --hardware {hardware[0]} --write`"
        )

    def batch_on(self, hardware: str) -> Batch | None:
        """Return the batch table on `hardware`; None where requests are served one by one."""
        return self.batches.get(hardware, self.batches.get(ANY_HARDWARE))

    def energy_on(self, hardware: str) -> float | None:
        """Return what one request takes on `hardware` on average, J; None where nothing says it."""
        return self.energies.get(hardware, self.energies.get(ANY_HARDWARE))

    def load_on(self, hardware: str) -> float:
        """Return how long a copy takes to load on `hardware`, s; 0 where nothing says it."""
        if self.load_s is not None:
            return self.load_s
        return self.loads_s.get(hardware, self.loads_s.get(ANY_HARDWARE, 0.0))

    def origin_on(self, hardware: str) -> str:
        """Say whose the service time on `hardware` is: ``file``, ``profile`` or ``zoo``; or empty.

        Empty where there is none.
        """
        return self.timed_by.get(hardware, self.timed_by.get(ANY_HARDWARE, ""))

    def runs_on(self, hardware: str) -> bool:
        """Tell whether a service time on `hardware` is known."""
        return hardware in self.service or ANY_HARDWARE in self.service


@dataclass(frozen=True)
class PublishedCatalog(Section):
    """A published table that a task takes its variants from."""

    name: Annotated[
        Annotated[str, Field(min_length=1)] | None, says("A built-in table, such as paper/yolov4.")
    ] = None
    timm: Annotated[Folder | None, says("A folder that holds timm's results files.")] = None
    hardware: Annotated[
        Name | None, says("Which of timm's speed tables to read, such as rtx3090.")
    ] = None
    variants: Annotated[
        Literal["pareto", "all"] | tuple[Name, ...],
        says(
            "Which variants: those that no other beats in both accuracy and speed, all, or a list."
        ),
    ] = "pareto"

    @model_validator(mode="after")
    def _has_one_source(self) -> PublishedCatalog:
        own = "`hardware` chooses among timm's tables; a catalog by `name` has its own"
        refuse_where(
            ((self.name is None) == (self.timm is None), "a catalog needs either `name` or `timm`"),
            (self.timm is None and self.hardware is not None, own),
        )
        return self


@dataclass(frozen=True)
class Difficulty(Section):
    """Confidence of variants of which only numbers are known, by a normal model."""

    quality: Annotated[
        Ratio,
        says(
            "Correlation of a variant's confidence with how hard the request is for it: at 1 it "
            "knows when it is right, at 0 its confidence says nothing."
        ),
    ]
    common: Annotated[
        Ratio,
        says(
            "Correlation of how hard requests are for two variants: at 1 no variant is right where "
            "a more accurate one is wrong."
        ),
    ] = 0.8


@dataclass(frozen=True)
class Feedback(Section):
    """Answers are kept until somebody says how right they were."""

    keep_s: Annotated[
        PositiveSeconds,
        says("How long an answer waits for feedback, and is kept with it.", "keep"),
    ] = 86400.0
    limit: Annotated[Count, BeforeValidator(_whole), says("Most answers that are kept.")] = (
        1_000_000
    )


@dataclass(frozen=True)
class Shadow(Section):
    """A share of the answered requests is run on the best variant as well, to compare answers."""

    share: Annotated[Ratio, says("Share of the requests that other variants have answered.")] = 0.01
    against: Annotated[
        Literal["most-accurate"],
        says("Whose answers they are compared with: those of the variant of highest accuracy."),
    ] = "most-accurate"


@dataclass(frozen=True)
class Drift(Section):
    """Labels are watched for a change of a variant's accuracy; the twin rehearses one."""

    variant: Annotated[Name, says("Whose accuracy changes in the twin.")] = field(
        default_factory=str
    )
    at_s: Annotated[Seconds, says("From when on it does, from the beginning of the run.", "at")] = (
        field(default_factory=float)
    )
    accuracy: Annotated[
        RatioChange, says("By how much: -0.1, or -10 %, is ten points of a hundred less.")
    ] = field(default_factory=float)
    labels: Annotated[
        Ratio, says("Share of all answers that feedback comes for in the twin, at once.")
    ] = 0.05
    alarm: Annotated[
        Switch, says("Whether an alarm is raised where labels say that an accuracy has changed.")
    ] = True

    @property
    def falls(self) -> bool:
        """Tell whether the twin rehearses a change."""
        return bool(self.variant)

    @model_validator(mode="wrap")
    @classmethod
    def _whole(cls, value: Any, handler: Callable[[Any], Drift]) -> Drift:
        read = handler(value)
        needed = ("variant", "at", "accuracy")
        missing = [key for key in needed if key not in value]
        given = [key for key in (*needed, "labels") if key in value]
        refuse_where(
            (
                given and missing,
                f"{', '.join(f'`{key}`' for key in given)} {'are' if given[1:] else 'is'} of a "
                "change that the twin rehearses, which needs "
                f"{' and '.join(f'`{key}`' for key in missing)} as well",
            )
        )
        return read


@dataclass(frozen=True)
class Canary(Section):
    """A new variant gets a share of the requests until labels say what it is worth."""

    variant: Annotated[Name, says("The new one.")]
    at_least: Annotated[
        Ratio, says("Accuracy by labels from which on it is promoted; below, it is taken back.")
    ]
    share: Annotated[Ratio, says("Share of the requests that it gets, whatever the policy.")] = 0.02
    labels: Annotated[Count, says("Labels that decide.")] = 500


@dataclass(frozen=True)
class AccuracyTarget(Section):
    """Mean accuracy promised, and whose accuracies count."""

    mean: Annotated[Ratio, says("Mean accuracy promised.")]
    by: Annotated[
        Literal["profile", "measured"],
        says(
            "Whose accuracies the mean is of: those of profiles, or, as feedback comes, what that "
            "has measured."
        ),
    ] = "profile"


StatedTarget = Annotated[
    AccuracyTarget,
    ReadAs(
        Annotated[
            Annotated[Ratio, Tag("mean")] | Annotated[AccuracyTarget, Tag("section")],
            Discriminator(lambda value: "section" if isinstance(value, dict) else "mean"),
        ],
        lambda value: value if isinstance(value, AccuracyTarget) else AccuracyTarget(value),
    ),
]


@dataclass(frozen=True)
class Task(Section):
    """What a client asks for."""

    name: Annotated[str, *UNWRITTEN] = ""
    variants: Annotated[
        dict[Name, Variant], Field(min_length=1), says("The models that can answer, by name.")
    ] = field(default_factory=dict)
    catalog: Annotated[
        PublishedCatalog | None, says("A table to take the variants from, instead of `variants`.")
    ] = None
    target: Annotated[
        StatedTarget | None,
        says("Mean accuracy promised: a ratio, or more about it.", "accuracy_target"),
    ] = None
    energy_budget: Annotated[
        PositiveJoules | None, says("Most energy that a request may take on average.")
    ] = None
    deadline_s: Annotated[
        PositiveSeconds | None,
        says("Time by which each request is to be answered, from its arrival.", "deadline"),
    ] = None
    count: Annotated[
        Count, says("Number of identical tasks, NAME-0, NAME-1, ... when above 1.")
    ] = 1
    max_instances: Annotated[
        FewCount | None, says("Most instances of one variant on one node.")
    ] = None
    dispatch: Annotated[
        DispatchPolicy | None,
        says("Dispatch policy of this task, instead of the one at the top level."),
    ] = None
    difficulty: Annotated[
        Difficulty | None,
        says(
            "How sure variants without a model are of their answers, for `escalate`; a profile "
            "measures it of those with one."
        ),
    ] = None
    idempotent: Annotated[
        Switch,
        says("Whether a request may be run twice; yes unless said where no variant is a `remote`."),
    ] = field(default_factory=lambda: True)
    feedback: Annotated[
        Feedback | None,
        says("Keep answers, to be told how right they were; nothing is kept unless said."),
    ] = None
    shadow: Annotated[
        Shadow | None,
        says(
            "Run a share of the requests on the best variant as well while it is idle, to compare "
            "answers; none is unless said."
        ),
    ] = None
    drift: Annotated[
        Drift | None,
        says(
            "Raise an alarm where feedback says that a variant's accuracy has changed; the twin of "
            "a site rehearses such a change."
        ),
    ] = None
    canary: Annotated[
        Canary | None,
        says("A variant that gets a share of the requests until feedback decides on it."),
    ] = None
    pairs: Annotated[tuple[PairBins, ...], *UNWRITTEN] = ()

    _has_variants = model_validator(mode="after")(
        must(
            lambda task: bool(task.variants) == (task.catalog is None),
            "a task needs either `variants` or `catalog`",
        )
    )

    @property
    def accuracy_target(self) -> float | None:
        """Mean accuracy promised, 0..1; None where none is."""
        return None if self.target is None else self.target.mean

    @property
    def measured(self) -> bool:
        """Tell whether the promise is on what feedback measures."""
        return self.target is not None and self.target.by == "measured"

    @property
    def watched(self) -> bool:
        """Tell whether an alarm is raised where feedback says that an accuracy has changed."""
        return self.feedback is not None and self.drift is not None and self.drift.alarm

    @property
    def sure(self) -> bool:
        """Tell whether it is known of some variant how right it is where it is so sure."""
        measured = any(one.confidence_bins is not None for one in self.variants.values())
        return measured or self.difficulty is not None

    @property
    def names(self) -> list[str]:
        """Those that clients use: digits-0, digits-1, ... of a count."""
        if self.count == 1:
            return [self.name]
        return [f"{self.name}-{k}" for k in range(self.count)]
