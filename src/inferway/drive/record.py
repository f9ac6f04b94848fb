"""What was sent and what came back, one row per request."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.drive.address import DriveError


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

    def to_frame(self) -> dict[str, NDArray[Any]]:
        """Return the columns by name, ready for `pandas.DataFrame(...)`; variants as names."""
        names = np.array([*self.variants, ""])
        columns = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if isinstance(getattr(self, f.name), np.ndarray)
        }
        return columns | {"variant": names[self.variant], "latency_s": self.latency_s}

    def after(self, start_s: float) -> Record:
        """Return the requests due at `start_s` or later: the run without its warm-up."""
        return self._rows(self.intended_s >= start_s)

    def save(self, path: Path) -> None:
        """Write to a NumPy archive (.npz)."""
        with path.open("wb") as file:
            columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
            np.savez(file, **columns)

    @classmethod
    def load(cls, path: Path) -> Record:
        """Read what `save` wrote.

        Raises
        ------
        DriveError
            When the file holds no record.
        """
        try:
            with np.load(path, allow_pickle=False) as data:
                columns: dict[str, Any] = {f.name: data[f.name] for f in fields(cls)}
        except (KeyError, ValueError, zipfile.BadZipFile) as error:
            raise DriveError(f"{path} holds no record of a drive: {error}") from error
        columns["task"] = str(columns["task"])
        columns["variants"] = tuple(columns["variants"].tolist())
        columns["cpu_s"] = float(columns["cpu_s"])
        columns["generated"] = int(columns["generated"])
        columns["interrupted"] = bool(columns["interrupted"])
        return cls(**columns)

    def _rows(self, chosen: NDArray[np.bool_]) -> Record:
        columns = {
            f.name: getattr(self, f.name)[chosen]
            for f in fields(self)
            if isinstance(getattr(self, f.name), np.ndarray)
        }
        return replace(self, **columns)
