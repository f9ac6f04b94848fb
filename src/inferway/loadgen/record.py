"""Record of requests and answers, one row per request."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from inferway.dispatch.promise import Promise, promise_of
from inferway.loadgen.access import HOW_TO_GIVE, DriveError
from inferway.profiling.intervals import RESAMPLES, MeasuredAccuracy, macro_f1, mean_score
from inferway.profiling.score import DEFAULT

F1: Final = "f1"
_LATE_S: Final = 1e-3
_LATE_SHARE: Final = 0.1


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
    scored
        Name of the score that made answers right or wrong.
    score
        How right the answer is by its label, 0..1, NaN where that is not known; if not given, 1
        where it has the true class.
    expected
        Accuracy that the server expects of each answer, where it looks at its confidence; NaN where
        it does not say; all NaN if not given.
    group
        Requests of one number are alike, as those that sent the same input; the item if not given.
    served_s
        Time that each answer spent in the server by what that says, seconds; NaN where it does not
        say; all NaN if not given.
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
    scored: str = DEFAULT
    score: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    group: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    expected: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    served_s: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        if len(self.reason) != len(self):
            object.__setattr__(self, "reason", np.full(len(self), -1, np.int16))
        if len(self.score) != len(self):
            known = self.answered & (self.label >= 0)
            score = np.where(known, self.predicted_class == self.label, np.nan)
            object.__setattr__(self, "score", score)
        for name in ("expected", "served_s"):
            if len(getattr(self, name)) != len(self):
                object.__setattr__(self, name, np.full(len(self), np.nan))
        if len(self.group) != len(self):
            object.__setattr__(self, "group", self.item.astype(np.int64))

    def __len__(self) -> int:
        return len(self.intended_s)

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Mask of the requests that got an inference answer."""
        return np.asarray(self.status == 200)

    @property
    def rejected(self) -> NDArray[np.bool_]:
        """Mask of the requests that the server refused for want of capacity or time (429, 503,
        504).
        """
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
        """Delay with which the generator sent each request that was sent, seconds."""
        sent = np.isfinite(self.sent_s)
        return np.asarray((self.sent_s - self.intended_s)[sent])

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Mask of the requests whose answer is right as a whole, as one of the true class is."""
        return np.asarray(self.score == 1.0)

    def by_labels(self, *, resamples: int = RESAMPLES) -> MeasuredAccuracy | None:
        """Measure the accuracy of the answers by their labels; None without any.

        It is the mean score, of ``f1`` macro-F1, with its 95 % interval. Requests of a group are
        resampled together.
        """
        known = np.isfinite(self.score)
        if not known.any():
            return None
        given = self.group[known]
        groups = given if len(np.unique(given)) < len(given) else None
        if self.scored == F1:
            answered, true = self.predicted_class[known], self.label[known]
            return macro_f1(answered, true, groups, seed=1, resamples=resamples)
        return mean_score(self.score[known], groups, seed=1, resamples=resamples)

    def failures(self) -> dict[str, int]:
        """Count why requests have no inference answer, most frequent first.

        Each is written as the HTTP status (or `no answer`) and what the server or the generator
        said of it.
        """
        rows = ~self.answered
        pairs = np.column_stack([self.status[rows], self.reason[rows]])
        unique, counts = np.unique(pairs, axis=0, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return {
            (str(status) if status else "no answer")
            + (f": {self.reasons[reason]}" if reason >= 0 else ""): count
            for (status, reason), count in zip(
                unique[order].tolist(), counts[order].tolist(), strict=True
            )
        }

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
        content = {one.name: getattr(self, one.name) for one in fields(self)}
        # An empty tuple must still be one of names.
        columns: dict[str, Any] = {
            name: np.array(value, np.str_) if isinstance(value, tuple) else value
            for name, value in content.items()
        }
        with path.open("wb") as file:
            np.savez(file, **columns)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises
        ------
        DriveError
            When the file holds no record.
        """
        try:
            with np.load(path, allow_pickle=False) as data:
                return cls(**{name: _plain(data[name]) for name in data.files})
        except (TypeError, ValueError, zipfile.BadZipFile) as error:
            raise DriveError(f"{path} holds no record of a drive: {error}") from error

    def _columns(self) -> list[str]:
        """Name the fields with one entry per request."""
        return [f.name for f in fields(self) if isinstance(getattr(self, f.name), np.ndarray)]


def _plain(value: NDArray[Any]) -> Any:
    if value.ndim == 0:
        return value.item()
    return tuple(value.tolist()) if value.dtype.kind == "U" else value


def named(names: tuple[str, ...], index: NDArray[Any]) -> NDArray[np.str_]:
    """Write each index as its name; -1 is empty."""
    return np.asarray(np.array([*names, ""])[index])


@dataclass(frozen=True)
class Summary:
    """Summary of a task's requests; times in seconds, shares and accuracies in 0..1.

    Attributes
    ----------
    offered, answered, rejected, failed
        Numbers of requests: due, answered, refused by the server (429, 503, 504), and the rest
        (other errors, or no answer).
    rate_per_s
        Offered requests per second, first to last.
    mean_s, p50_s, p95_s, p99_s
        Latency of the answered ones from the intended send time; NaN without answers.
    shares
        Part of the answers that each variant gave.
    profile_accuracy
        Mean accuracy that the answers' variants have by their profiles; None if not known.
    accuracy
        Of the answers by their labels; None without labels.
    send_lag_p99_s
        How late the generator was at sending.
    cpu_per_request_s
        CPU time of the generator per request.
    waited
        Requests that waited for one of the allowed connections.
    warnings
        Sentences about what spoils the measurement.
    failures
        Why requests have no answer, with their numbers; see `Record.failures`.
    promise
        The verdict on the accuracy target by these answers; None without a target.
    accuracy_interval
        95 % interval of the accuracy by labels; None without labels, or where it was not asked for.
    """

    offered: int
    answered: int
    rejected: int
    failed: int
    rate_per_s: float
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    shares: dict[str, float]
    profile_accuracy: float | None
    accuracy: float | None
    send_lag_p99_s: float
    cpu_per_request_s: float
    waited: int
    warnings: tuple[str, ...]
    failures: dict[str, int] = field(default_factory=dict)
    promise: Promise | None = None
    accuracy_interval: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON: what is not a number there (no answers, hence no latency) is None."""
        named = {
            name: None if isinstance(value, float) and not np.isfinite(value) else value
            for name, value in asdict(self).items()
        }
        return named | {"promise": None if self.promise is None else self.promise.to_json()}

    def judged(self, target: float | None, *, overloaded: bool) -> Self:
        """Return the summary with the verdict on a target, where all accuracies are known."""
        if target is None or (self.answered and self.profile_accuracy is None):
            return self
        total = self.answered * (self.profile_accuracy or 0.0)
        promise = promise_of(target, self.answered, total, overloaded=overloaded)
        if promise is not None and self.accuracy is not None:
            labels = {"mean": self.accuracy, "interval": self.accuracy_interval}
            promise = promise._replace(labels=labels)
        return replace(self, promise=promise)


def summary(
    record: Record, accuracy: Mapping[str, float] | None = None, *, interval: bool = False
) -> Summary:
    """Summarize a record.

    Parameters
    ----------
    record
        Of one task.
    accuracy
        Profile accuracy by variant, for the mean profile accuracy of the answers.
    interval
        Whether the interval of the accuracy by labels is computed, for which requests are
        resampled.
    """
    answered = record.answered
    count = int(answered.sum())
    latency = record.latency_s[answered]
    p50, p95, p99 = np.percentile(latency, (50, 95, 99)).tolist() if count else (np.nan,) * 3
    number = np.bincount(record.variant[answered], minlength=len(record.variants))
    shares = {
        name: int(n) / count for name, n in zip(record.variants, number, strict=True) if n > 0
    }
    labeled = record.by_labels(resamples=RESAMPLES if interval else 1)
    span = float(np.ptp(record.intended_s)) if len(record) > 1 else 0.0
    rejected = int(record.rejected.sum())
    lag = float(np.percentile(record.lag_s, 99)) if record.lag_s.size else 0.0
    profiles = None
    if accuracy is not None and count > 0 and all(name in accuracy for name in shares):
        profiles = sum(share * accuracy[name] for name, share in shares.items())
        expected = record.expected[answered]
        if (told := np.isfinite(expected)).any():
            plain = np.array([accuracy.get(name, np.nan) for name in record.variants])
            each = np.where(told, expected, plain[record.variant[answered]])
            profiles = float(each.mean())
    return Summary(
        offered=len(record),
        answered=count,
        rejected=rejected,
        failed=len(record) - count - rejected,
        rate_per_s=(len(record) - 1) / span if span > 0 else float("nan"),
        mean_s=float(latency.mean()) if count else float("nan"),
        p50_s=p50,
        p95_s=p95,
        p99_s=p99,
        shares=shares,
        profile_accuracy=profiles,
        accuracy=None if labeled is None else labeled.value,
        send_lag_p99_s=lag,
        cpu_per_request_s=record.cpu_s / max(record.generated, 1),
        waited=int(record.waited.sum()),
        warnings=tuple(_warnings(record, lag, p50)),
        failures=record.failures(),
        accuracy_interval=None if labeled is None or not interval else labeled.interval,
    )


def _warnings(record: Record, lag_s: float, p50_s: float) -> list[str]:
    refused, waited = int((record.status == 401).sum()), int(record.waited.sum())
    late = lag_s > max(_LATE_S, _LATE_SHARE * (p50_s if np.isfinite(p50_s) else 0.0))
    found = (
        (
            refused,
            f"{refused} requests were refused for want of a valid key (401): give one "
            f"{HOW_TO_GIVE}",
        ),
        (
            waited,
            f"{waited} requests waited for a connection: all allowed ones were in use; "
            "their latency includes that wait (allow more connections)",
        ),
        (
            late and not waited,
            f"the generator was late: 1 request in 100 was sent {lag_s * 1e3:.1f} ms or more after "
            "its time, so latencies are partly its own (use a lower rate or a machine of its own)",
        ),
        (record.interrupted, "the run was stopped before its end"),
    )
    return [sentence for holds, sentence in found if holds]
