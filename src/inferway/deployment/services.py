"""How long a variant takes, as the file says it: ``{mean: 10.7 ms}``, ``{rate: 0.9/s}``."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from inferway.deployment.quantities import (
    Count,
    FewCount,
    PositiveNumber,
    PositiveRate,
    PositiveSeconds,
    refuse,
)
from inferway.deployment.section import File, Name, Section

DISTRIBUTIONS = (
    "deterministic",
    "exponential",
    "lognormal",
    "erlang",
    "hyperexponential",
    "empirical",
)


class WrittenService(Section):
    """A service time: its mean (or rate, one over it) and how it varies."""

    distribution: Literal[
        "deterministic", "exponential", "lognormal", "erlang", "hyperexponential", "empirical"
    ] = "deterministic"
    """How single service times spread around the mean."""
    mean: PositiveSeconds | None = None
    """Mean time that one request takes, at batch 1."""
    rate: PositiveRate | None = None
    """Requests that one instance serves per second when it is never idle; instead of `mean`."""
    cv: PositiveNumber | None = None
    """Coefficient of variation (standard deviation over mean): lognormal, hyperexponential."""
    stages: FewCount | None = None
    """Number of exponential stages in a row: erlang."""
    samples: tuple[PositiveSeconds, ...] | None = None
    """Measured service times: empirical."""
    file: File | None = None
    """One measured service time in seconds per line, instead of `samples`: empirical."""

    @model_validator(mode="after")
    def _fits_its_distribution(self) -> WrittenService:
        kind = self.distribution
        if self.mean is not None and self.rate is not None:
            raise refuse("both `mean` and `rate` are given; one says the other, so keep one")
        if self.mean is None and self.rate is None and kind != "empirical":
            raise refuse("a service time needs `mean` (such as 10.7 ms) or `rate` (such as 0.9/s)")
        takes = {
            "lognormal": ("cv",),
            "hyperexponential": ("cv",),
            "erlang": ("stages",),
            "empirical": ("samples", "file"),
        }.get(kind, ())
        for key in ("cv", "stages", "samples", "file"):
            if getattr(self, key) is not None and key not in takes:
                raise refuse(f"`{key}` means nothing where the distribution is {kind}")
        given = [key for key in takes if getattr(self, key) is not None]
        if takes and len(given) != 1:
            needs = " or ".join(f"`{key}`" for key in takes)
            raise refuse(f"the distribution {kind} needs {needs}")
        if kind == "hyperexponential" and self.cv is not None and self.cv <= 1:
            raise refuse(f"the distribution {kind} has a `cv` above 1, not {self.cv:g}")
        if self.samples is not None and not self.samples:
            raise refuse("`samples` is empty; give at least one service time")
        return self


def _service_kind(value: Any) -> str:
    """Tell one service time from a mapping of hardware to service times, by its keys."""
    if isinstance(value, dict) and value and not set(value) & set(WrittenService.model_fields):
        return "per hardware" if all(isinstance(v, dict) for v in value.values()) else "one"
    return "one"


WrittenServices = Annotated[
    Annotated[WrittenService, Tag("one")]
    | Annotated[dict[Name, WrittenService], Tag("per hardware")],
    Discriminator(_service_kind),
]


class WrittenBatch(Section):
    """Sizes at which a variant may serve several requests at once, and how long each takes."""

    sizes: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Batch sizes, increasing."""
    service: Annotated[tuple[PositiveSeconds, ...], Field(min_length=1)]
    """Service time of a whole batch, one per size."""
    min: Count | None = None
    """Smallest batch to start while more requests may come; the smallest size if not given."""
    max: Count | None = None
    """Largest batch; the largest size if not given."""

    @field_validator("sizes")
    @classmethod
    def _increase(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        for one, other in pairwise(sizes):
            if other <= one:
                raise refuse(f"batch sizes must increase, but {other} comes after {one}")
        return sizes

    @model_validator(mode="after")
    def _match(self) -> WrittenBatch:
        if len(self.sizes) != len(self.service):
            raise refuse(
                f"{len(self.sizes)} sizes but {len(self.service)} service times; give one per size"
            )
        for key in ("min", "max"):
            size = getattr(self, key)
            if size is not None and size not in self.sizes:
                raise refuse(f"`{key}` is {size}, which is not one of the sizes")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise refuse(f"`min` is {self.min}, above `max`, which is {self.max}")
        return self
