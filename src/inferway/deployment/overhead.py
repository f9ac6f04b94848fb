"""What a server has measured on this machine that a request takes besides its model."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from inferway.files import home_folder
from inferway.machine import machine_hash
from inferway.unreadable import UNREADABLE

if TYPE_CHECKING:
    from inferway.deployment.tasks import Task

SCHEMA: Final = 2  # Of the file, as `inferway.dispatch.service_times` writes it


class MeasuredOverhead(NamedTuple):
    """CPU time per request of a server itself, as it was measured.

    Attributes
    ----------
    seconds
        Of each request, besides its model's time by the profile: what the server takes, and what
        the model takes longer between other work. Simulations and bounds count this.
    at
        When, s since 1970.
    file
        Where it is kept.
    own_s
        Besides its model's time as it was: what servers count, which measure that time.
    """

    seconds: float
    at: float
    file: Path
    own_s: float

    @property
    def said(self) -> str:
        """Number, origin and day in words."""
        day = datetime.fromtimestamp(self.at).isoformat(" ", "minutes")
        return (
            f"{self.seconds * 1e6:.0f} us, which a server of these models took besides their "
            f"profiled times on this machine on {day}, by {self.file}"
        )


class _File(msgspec.Struct):
    schema: int = 0
    overheads: dict[str, Any] = {}


def times_file() -> Path:
    """File of what servers measure, kept from one run to the next.

    RuntimeError where the user has no home.
    """
    return home_folder("state") / "service-times.json"


def overhead_key(tasks: Mapping[str, Task]) -> str:
    """Name what an overhead is true of: this kind of machine, these tasks, their models and times.

    The last word is of the times that the file, a profile or a zoo says, which what models take
    beyond them is measured against; those that are measured at a start are the server's own.
    """
    models = {
        name: sorted({variant.identity for variant in task.variants.values()})
        for name, task in tasks.items()
    }
    times_s = {
        name: {
            key: [
                {kind: one.service[kind].mean_s for kind in one.timed_by},
                {kind: (batch.sizes, batch.service_s) for kind, batch in one.batches.items()},
            ]
            for key, one in task.variants.items()
        }
        for name, task in tasks.items()
    }
    return f"{machine_hash()} {' '.join(sorted(tasks))} {_digest(models)} {_digest(times_s)}"


def _digest(told: Any) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def recall_overhead(tasks: Mapping[str, Task], file: Path | None = None) -> MeasuredOverhead | None:
    """Recall what a request of these tasks takes of a server besides its model, on this machine.

    Where the models' times are others than they were then, as after `inferway profile`, what models
    took beyond those is left out. None where no server has measured it, or the file is damaged.
    """
    with suppress(OSError, RuntimeError, TypeError, KeyError, OverflowError, *UNREADABLE):
        file = times_file() if file is None else file
        kept = msgspec.json.decode(file.read_bytes(), type=_File)
        found = kept.overheads if kept.schema == SCHEMA else {}
        key = overhead_key(tasks) if found else ""  # models are not read in vain
        entry = found.get(key) or _of_other_times(found, key)
        if entry is not None:
            own_s, at = float(entry["seconds"]), float(entry["at"])
            seconds = float(entry.get("beyond_profile_s", own_s))
            if 0.0 <= own_s <= seconds < 1.0 and math.isfinite(at):
                datetime.fromtimestamp(at)
                return MeasuredOverhead(seconds, at, file, own_s)
    return None


def _of_other_times(found: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """What was kept last of the same models with other times, without what is beyond those."""
    models = key.rpartition(" ")[0]
    alike = [one for of, one in found.items() if of.rpartition(" ")[0] == models]
    if not models or not alike:
        return None
    last = max(alike, key=lambda one: float(one["at"]))
    return {name: last[name] for name in ("seconds", "at")}
