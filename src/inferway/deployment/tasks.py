"""Tasks, variants and catalogs, as the file writes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from inferway.deployment.policies import DispatchPolicy
from inferway.deployment.quantities import (
    Bytes,
    Count,
    FewCount,
    Joules,
    Number,
    PositiveJoules,
    PositiveSeconds,
    Ratio,
    refuse,
)
from inferway.deployment.remote import WrittenRemotes
from inferway.deployment.section import Folder, Name, Section, Switch
from inferway.deployment.services import WrittenBatch, WrittenServices


class WrittenVariant(Section):
    """One model that can answer a task."""

    model: Annotated[str, Field(min_length=1)] | None = None
    """The model: zoo://digits/tiny, file:///models/own.onnx, or a path relative to this file."""
    digest: (
        Annotated[str, Field(json_schema_extra={"pattern": "^sha256:[0-9a-fA-F]{64}$"})] | None
    ) = None
    """SHA-256 of the model file, checked before it is loaded."""
    accuracy: Ratio | None = None
    """Share of requests answered rightly; from the zoo's profile if not given."""
    size: Bytes | None = None
    """What one instance takes of its node's budget; the model's own size if not given."""
    service: WrittenServices | None = None
    """Service time, or one per hardware; from the zoo's profile if not given."""
    price: Number | None = None
    """What one instance costs, in any unit that is the same for all variants."""
    energy: Joules | None = None
    """What one request takes on average; needed where the task has an energy budget."""
    batch: WrittenBatch | None = None
    """Serve several requests at once."""
    remote: WrittenRemotes | None = None
    """The model behind another server, instead of `model`: its URL, or more about it."""

    @field_validator("digest")
    @classmethod
    def _is_sha256(cls, digest: str) -> str:
        scheme, _, digits = digest.partition(":")
        if scheme != "sha256" or len(digits) != 64 or set(digits.lower()) - set("0123456789abcdef"):
            raise refuse('expected "sha256:" and 64 hexadecimal digits')
        return digest.lower()


class WrittenCatalog(Section):
    """A published table that a task takes its variants from."""

    name: Annotated[str, Field(min_length=1)] | None = None
    """A built-in table, such as paper/yolov4."""
    timm: Folder | None = None
    """A folder that holds timm's results files."""
    hardware: Name | None = None
    """Which of timm's speed tables to read, such as rtx3090."""
    variants: Literal["pareto", "all"] | tuple[Name, ...] = "pareto"
    """Which variants: those that no other beats in both accuracy and speed, all, or a list."""

    @model_validator(mode="after")
    def _has_one_source(self) -> WrittenCatalog:
        if (self.name is None) == (self.timm is None):
            raise refuse("a catalog needs either `name` or `timm`")
        if self.timm is None and self.hardware is not None:
            raise refuse("`hardware` chooses among timm's tables; a catalog by `name` has its own")
        return self


class WrittenTask(Section):
    """What a client asks for."""

    variants: Annotated[dict[Name, WrittenVariant], Field(min_length=1)] | None = None
    """The models that can answer, by name."""
    catalog: WrittenCatalog | None = None
    """A table to take the variants from, instead of `variants`."""
    accuracy_target: Ratio | None = None
    """Mean accuracy promised."""
    energy_budget: PositiveJoules | None = None
    """Most energy that a request may take on average."""
    deadline: PositiveSeconds | None = None
    """Time by which each request is to be answered, from its arrival."""
    count: Count = 1
    """Number of identical tasks, NAME-0, NAME-1, ... when above 1."""
    max_instances: FewCount | None = None
    """Most instances of one variant on one node."""
    dispatch: DispatchPolicy | None = None
    """Dispatch policy of this task, instead of the one at the top level."""
    idempotent: Switch | None = None
    """Whether a request may be run twice; yes unless said where no variant is a `remote`."""

    @model_validator(mode="after")
    def _has_variants(self) -> WrittenTask:
        if (self.variants is None) == (self.catalog is None):
            raise refuse("a task needs either `variants` or `catalog`")
        return self
