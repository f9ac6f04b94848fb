"""The profile of a deployment file: what `inferway profile --write` has measured, kept beside it.

It stands in ``FILE.profile.json`` for FILE, and what FILE says itself counts more.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from inferway.deployment.own_class import OWN_CLASS
from inferway.files import write_whole
from inferway.machine import machine_hash
from inferway.protocol import Signature, Tensor
from inferway.unreadable import UNREADABLE, fault

SCHEMA: Final = 1
SUFFIX: Final = ".profile.json"


class ProfileError(ValueError):
    """A profile that cannot be read, with one sentence that says why."""


class BatchTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Duration of one call at one batch size.

    Attributes
    ----------
    batch
        Rows in the call.
    mean_s, p50_s, p95_s, p99_s, spread_s
        Mean, percentiles and standard deviation of the wall time of a call, in seconds.
    steady_s
        Mean without the longest hundredth of the calls, in seconds: what something else on the
        machine has interrupted must not decide how a fleet is dispatched to.
    cpu_s
        Mean processor time of the calling thread, in seconds.
    calls
        How many were measured.
    """

    batch: int
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    spread_s: float
    steady_s: float
    cpu_s: float
    calls: int


class MachineTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a variant takes of one machine.

    Attributes
    ----------
    alone, busy
        Service times by ascending batch: one run at a time, and so many at once as `instances`.
    instances
        Runs at a time when cores are busy.
    memory_bytes, peak_bytes
        Resident memory of one instance, loaded and at its highest; None of a remote one.
    versions
        Of Python and the libraries.
    at
        When, in ISO 8601.
    """

    alone: tuple[BatchTime, ...]
    busy: tuple[BatchTime, ...]
    instances: int
    memory_bytes: int | None
    peak_bytes: int | None
    versions: dict[str, str]
    at: str

    @property
    def service_s(self) -> dict[int, float]:
        """Steady service time by batch, one run at a time, in seconds."""
        return {one.batch: one.steady_s for one in self.alone}


class ProfiledAccuracy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Accuracy on the rows that are for it, with its 95 % interval."""

    value: float
    interval: tuple[float, float]
    rows: int
    score: str


class ConfidenceBins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Accuracy by confidence.

    Attributes
    ----------
    kind
        As the variant's key `confidence`, or what stands for it.
    digest
        Hash of the user's file, where it is a function; None of anything else.
    softmax
        Whether the softmax of the outputs came first.
    edges
        Confidences at which the next bin begins, increasing.
    accuracy, mass
        In each bin, one more than edges: the accuracy, and the share of rows.
    observed
        Mean score in each bin of the rows that accuracies are from; None where there is none.
    error
        Expected calibration error on the rows that accuracies are from.
    """

    kind: str
    digest: str | None
    softmax: bool
    edges: tuple[float, ...]
    accuracy: tuple[float, ...]
    mass: tuple[float, ...]
    observed: tuple[float | None, ...]
    error: float


class PairBins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Accuracies of two variants by the confidence of the first one, in its bins."""

    first: str
    second: str
    first_accuracy: tuple[float, ...]
    second_accuracy: tuple[float, ...]


class ProfiledTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input or output of a model."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class ProfiledSignature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Inputs and outputs of a model."""

    inputs: tuple[ProfiledTensor, ...]
    outputs: tuple[ProfiledTensor, ...]

    @property
    def tensors(self) -> Signature:
        """The same in the protocol's words."""
        inputs, outputs = (
            tuple(Tensor(one.name, one.datatype, one.shape) for one in side)
            for side in (self.inputs, self.outputs)
        )
        return Signature(inputs, outputs)

    @classmethod
    def of(cls, signature: Signature) -> ProfiledSignature:
        """Write a signature down."""
        inputs, outputs = (
            tuple(ProfiledTensor(one.name, one.datatype, one.shape) for one in side)
            for side in (signature.inputs, signature.outputs)
        )
        return cls(inputs, outputs)


class VariantProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One variant as measured.

    Attributes
    ----------
    model
        What it was measured on: the model file's digest, or what else says which model it is.
    size_bytes
        The model file's size; None where there is no file here.
    signature
        Inputs and outputs.
    accuracy
        By labels.
    confidence
        None where the variant has no confidence.
    machines
        What it takes, by machine.
    """

    model: str
    size_bytes: int | None
    signature: ProfiledSignature
    accuracy: ProfiledAccuracy | None = None
    confidence: ConfidenceBins | None = None
    machines: dict[str, MachineTimes] = {}

    @property
    def times_here(self) -> dict[int, float]:
        """Steady service time by batch on this machine, in seconds; empty where none is known."""
        here = self.machines.get(machine_hash())
        return {} if here is None else here.service_s

    def confidence_as(self, kind: str | None, folder: Path) -> ConfidenceBins | None:
        """Return the bins of a confidence, if it is what was measured still.

        Parameters
        ----------
        kind
            As the variant's key `confidence`; None asks for what it was without one being named.
        folder
            Where the file of a function is named from.
        """
        bins = self.confidence
        if bins is None or kind not in (None, bins.kind):
            return None
        return bins if bins.digest == function_digest(kind, folder) else None


class ProfiledData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The labeled data, and how they were split and scored.

    Attributes
    ----------
    digest
        Of the file.
    rows, groups
        How many; None groups where each row stands alone.
    bins_rows, accuracy_rows
        Rows of the two halves: for confidence bins, and for accuracies.
    seed
        Of the split and of the resampling.
    score, score_digest
        How right answers are told from wrong ones; and the hash of the user's file, if it is one.
    output
        The output that it looks at, where one was named.
    group
        The array or column that was named to group.
    """

    digest: str
    rows: int
    groups: int | None
    bins_rows: int
    accuracy_rows: int
    seed: int
    score: str
    score_digest: str | None = None
    output: str | None = None
    group: str | None = None


class TaskProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The variants of a task, measured on the same data."""

    data: ProfiledData
    variants: dict[str, VariantProfile] = {}
    pairs: tuple[PairBins, ...] = ()


class DeploymentProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that was measured of a deployment file.

    Attributes
    ----------
    schema
        Of the file.
    machines
        Processor, cores and system, by their hash.
    tasks
        By name.
    """

    schema: int = SCHEMA
    machines: dict[str, dict[str, Any]] = {}
    tasks: dict[str, TaskProfile] = {}


def profile_path(file: Path) -> Path:
    """Name the profile of a deployment file; no two files share one."""
    named = file if file.name not in ("", "..") else file.resolve()
    return named.with_name(named.name + SUFFIX)


def read_profile(file: Path) -> DeploymentProfile | None:
    """Read the profile of a deployment file; None where there is none.

    Raises
    ------
    ProfileError
        When it cannot be read.
    """
    path = profile_path(file)
    try:
        status = path.stat()
        return _read(path, status.st_mtime_ns, status.st_size)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProfileError(f"{path}: cannot read the profile: {error.strerror}") from None


def write_profile(file: Path, profile: DeploymentProfile) -> Path:
    """Write the profile of a deployment file, whole; where it is."""
    path = profile_path(file)
    content = msgspec.json.format(msgspec.json.encode(profile), indent=1)
    write_whole(path, content + b"\n")
    return path


@lru_cache(maxsize=64)
def _read(path: Path, changed_ns: int, size: int) -> DeploymentProfile:
    """Read a profile once for as long as its file is not written anew."""
    anew = "measure anew with `inferway profile --write`, or remove it"
    try:
        content = path.read_bytes()
        schema = msgspec.json.decode(content, type=_Schema).schema
        if schema != SCHEMA:
            raise ProfileError(f"{path}: schema {schema} is not {SCHEMA}; {anew}")
        return msgspec.json.decode(content, type=DeploymentProfile)
    except ProfileError:
        raise
    except UNREADABLE as error:
        raise ProfileError(f"{path}: the profile is malformed ({fault(error)}); {anew}") from None


class _Schema(msgspec.Struct):
    schema: int


def file_digest(path: Path) -> str:
    """Hash a model's file, as ``sha256:`` and 64 hexadecimal digits; once while it is as it was."""
    status = path.stat()
    return _hashed(path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def function_digest(kind: str | None, folder: Path) -> str | None:
    """Hash the file of a function ``./FILE.py:FUNCTION``, which is not run.

    None for what is none; empty where the file cannot be read.
    """
    if kind is None or not re.match(OWN_CLASS, kind):
        return None
    try:
        return file_digest(folder / kind.rpartition(":")[0])
    except OSError:
        return ""


@lru_cache(maxsize=256)
def _hashed(path: Path, *version: int) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
