"""What is known of a variant by measurement: accuracy, size, service time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ServiceProfile:
    """How long one call takes on one core, at one batch size.

    Attributes
    ----------
    batch
        Rows in the call.
    mean_s, p50_s, p99_s
        Mean and percentiles of the wall time of a call, in seconds.
    cpu_s
        Mean processor time of the calling thread, in seconds: what the call takes when nothing
        else wants the core. Far below `mean_s` means that the machine was busy.
    """

    batch: int
    mean_s: float
    p50_s: float
    p99_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Profile:
    """One variant as measured.

    Attributes
    ----------
    name
        The variant.
    file
        Its model file's name, beside the profiles.
    digest
        The file's hash, as ``sha256:`` and 64 hexadecimal digits.
    accuracy
        Share of right answers on the test set, 0..1.
    accuracy_interval
        Its 95 % interval, lower and upper end.
    size_bytes
        The file's size.
    memory_bytes
        Resident memory that one loaded instance adds to a process.
    parameters
        Number of trained weights.
    service
        Service times, by ascending batch; the first is batch 1.
    peaks
        Memory that a run takes beyond that of the loaded instance: pairs of rows and bytes. Empty
        in profiles that were measured before there were any.
    """

    name: str
    file: str
    digest: str
    accuracy: float
    accuracy_interval: tuple[float, float]
    size_bytes: int
    memory_bytes: int
    parameters: int
    service: tuple[ServiceProfile, ...]
    peaks: tuple[tuple[int, int], ...] = ()

    @property
    def mean_s(self) -> float:
        """Mean service time at batch 1, in seconds."""
        return self.service[0].mean_s

    def to_json(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Profile:
        """Rebuild from `to_json`.

        Raises
        ------
        TypeError, KeyError, ValueError
            When a field is missing, unknown or malformed.
        """
        low, high = data["accuracy_interval"]
        service = tuple(ServiceProfile(**entry) for entry in data["service"])
        peaks = tuple((int(rows), int(size)) for rows, size in data.get("peaks", ()))
        known = {**data, "accuracy_interval": (low, high), "service": service, "peaks": peaks}
        return cls(**known)
