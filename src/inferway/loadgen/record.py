"""What was sent and what came back, one row per request."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from inferway.loadgen import archive
from inferway.loadgen.error import DriveError


@dataclass(frozen=True)
class Record:
    """A task's requests in the order of their intended times; arrays have one entry per request.

    Attributes
    ----------
    task
        The task's name.
    variants
        Names that `variant` indexes.
    intended_s
        When the request was due, seconds from the start of the run.
    sent_s
        When it was written to a connection; NaN if it never was.
    done_s
        When its whole answer was there; NaN if it never was.
    status
        HTTP status; 0 where no answer came (connection error, or none before the end).
    variant
        Index of the variant that answered, -1 where none did.
    predicted_class
        The answer's class, -1 where there is none.
    predicted_s
        Latency that the server predicted, seconds, NaN where it did not.
    item
        Which of the given inputs was sent.
    label
        The input's true class, -1 where it is unknown.
    waited
        Whether the request had to wait for a connection because all allowed ones were in use.
    cpu_s
        CPU time of the generator's process for the whole run, all tasks together.
    generated
        Requests of all tasks that this CPU time was for.
    interrupted
        Whether the run was stopped before its end; it then holds what was due until then.
    reasons
        Sentences that `reason` indexes: the first few of each status.
    reason
        Why there is no inference answer, -1 where there is one; all -1 if not given.
    """

    task: str
    variants: tuple[str, ...]
    intended_s: NDArray[np.float64]
    sent_s: NDArray[np.float64]
    done_s: NDArray[np.float64]
    status: NDArray[np.int16]
    variant: NDArray[np.int16]
    predicted_class: NDArray[np.int32]
    predicted_s: NDArray[np.float64]
    item: NDArray[np.int32]
    label: NDArray[np.int32]
    waited: NDArray[np.bool_]
    cpu_s: float
    generated: int
    interrupted: bool = False
    reasons: tuple[str, ...] = ()
    reason: NDArray[np.int16] = field(default_factory=lambda: np.empty(0, np.int16))

    def __post_init__(self) -> None:
        if len(self.reason) != len(self):
            object.__setattr__(self, "reason", np.full(len(self), -1, np.int16))

    def __len__(self) -> int:
        return len(self.intended_s)

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Which requests got an inference answer."""
        answered: NDArray[np.bool_] = self.status == 200
        return answered

    @property
    def rejected(self) -> NDArray[np.bool_]:
        """Which requests the server refused for want of capacity or time (429, 503, 504)."""
        return np.isin(self.status, (429, 503, 504))

    @property
    def latency_s(self) -> NDArray[np.float64]:
        """From the intended send time to the answer, seconds; NaN without one.

        Counted from the intended time, a stalled server cannot hide requests that it kept from
        being sent (coordinated omission).
        """
        return np.where(self.answered, self.done_s - self.intended_s, np.nan)

    @property
    def lag_s(self) -> NDArray[np.float64]:
        """How late the generator sent each request that was sent, seconds."""
        lag = self.sent_s - self.intended_s
        sent: NDArray[np.float64] = lag[np.isfinite(lag)]
        return sent

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Which requests were answered with their true class."""
        correct: NDArray[np.bool_] = self.predicted_class == self.label
        return self.answered & (self.label >= 0) & correct

    def failures(self) -> dict[str, int]:
        """Count why requests have no inference answer, most frequent first.

        Each is written as the HTTP status (or `no answer`) and what the server or the generator
        said of it.
        """
        rows = ~self.answered
        pairs = np.column_stack([self.status[rows], self.reason[rows]])
        unique, counts = np.unique(pairs, axis=0, return_counts=True)
        found: dict[str, int] = {}
        for place in np.argsort(-counts, kind="stable"):
            status, reason = unique[place].tolist()
            what = str(status) if status else "no answer"
            why = f": {self.reasons[reason]}" if reason >= 0 else ""
            found[what + why] = int(counts[place])
        return found

    def to_frame(self) -> dict[str, NDArray[Any]]:
        """Return the columns by name, ready for `pandas.DataFrame(...)`.

        Variants and reasons are names, and empty where there is none.
        """
        columns = {name: getattr(self, name) for name in self._columns()}
        return columns | {
            "variant": named(self.variants, self.variant),
            "reason": named(self.reasons, self.reason),
            "latency_s": self.latency_s,
        }

    def after(self, start_s: float) -> Self:
        """Return the requests due at `start_s` or later: the run without its warm-up."""
        return self.only(self.intended_s >= start_s)

    def only(self, chosen: NDArray[np.bool_]) -> Self:
        """Return some of the requests; `chosen` has one entry per request."""
        columns = {name: getattr(self, name)[chosen] for name in self._columns()}
        return replace(self, **columns)

    def save(self, path: Path) -> None:
        """Write to a NumPy archive (.npz)."""
        archive.write(path, {f.name: getattr(self, f.name) for f in fields(self)})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises
        ------
        DriveError
            When the file holds no record.
        """
        try:
            return cls(**archive.read(path))
        except (TypeError, ValueError, zipfile.BadZipFile) as error:
            raise DriveError(f"{path} holds no record of a drive: {error}") from error

    def _columns(self) -> list[str]:
        """Name the fields with one entry per request."""
        return [f.name for f in fields(self) if isinstance(getattr(self, f.name), np.ndarray)]


def named(names: tuple[str, ...], index: NDArray[Any]) -> NDArray[np.str_]:
    """Write each index as its name; -1 is empty."""
    found: NDArray[np.str_] = np.array([*names, ""])[index]
    return found
