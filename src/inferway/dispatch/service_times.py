"""Measured service times of models, kept from one run to the next.

Service times per instance and size of batch, as running quantiles; how much memory runs take, by
their rows; how long it takes to load the models of exclusive devices; and what a request takes of
a server besides its model.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

import msgspec
import numpy as np

from inferway.deployment.overhead import SCHEMA
from inferway.dispatch.dispatcher import Dispatcher
from inferway.runtime.growth import Growth
from inferway.site.chances import TRIED, next_chance
from inferway.site.view import SIZES
from inferway.unreadable import UNREADABLE

_WRITING = Lock()  # Several sites of a process may keep their times at the same moment
# A remembered quantile counts as so many measurements: a changed machine is soon believed.
_FORGET = 50

_Sizes = msgspec.Meta(min_length=SIZES, max_length=SIZES)
_Rows = list[Annotated[list[Annotated[float, msgspec.Meta(ge=0, le=1e300)]], _Sizes]]
_Times = list[Annotated[list[Annotated[float, msgspec.Meta(gt=0, le=1e300)]], _Sizes]]


class _Services(msgspec.Struct):
    """Measurements by the instances of a variant, a row each."""

    row_s: _Times
    slow_s: _Times
    measured: _Rows
    at: float  # When the last was written, s since 1970


class _File(msgspec.Struct):
    schema: int = 0
    services: dict[str, Any] = {}
    memory: dict[str, Any] = {}
    loads: dict[str, Any] = {}
    overheads: dict[str, Any] = {}  # As `inferway.deployment.overhead` recalls them


def remember(dispatcher: Dispatcher, keys: Mapping[str, str], file: Path) -> None:
    """Write the dispatcher's measured service times to a JSON file, beside what it already holds.

    `keys` say by variant what the times are true of: the model and the hardware. Variants without
    one, and those that nothing was measured of, are left out. The file is replaced as a whole, so
    that a reader never sees half of it.
    """
    with _WRITING:
        kept = _read(file)
        services = {key: row for key, row in kept.services.items() if _sound(row)}
        of = _measured(dispatcher, keys)
        new = {key: msgspec.to_builtins(row) for key, row in of.items()}
        kept.services = services | new
        _write(file, kept)


def remember_growth(file: Path, key: str, growth: Growth) -> None:
    """Write what runs of a model take to the file of `remember`, if that can be written."""
    entry = {"runtime": _runtime(), "peaks": growth.peaks}
    with _WRITING, suppress(OSError):
        kept = _read(file)
        kept.memory[key] = entry
        _write(file, kept)


def remember_loads(file: Path, load_s: Mapping[str, float]) -> None:
    """Write how long models take to load to the file of `remember`, by key, s.

    OSError where it cannot be written.
    """
    with _WRITING:
        kept = _read(file)
        kept.loads |= load_s
        _write(file, kept)


def remember_overhead(file: Path, key: str, seconds: float, beyond_s: float) -> None:
    """Write what a request takes besides its model to the file of `remember`, by key, s.

    `beyond_s` has what its model takes beyond the profile as well. OSError where it cannot be
    written.
    """
    with _WRITING:
        kept = _read(file)
        kept.overheads[key] = {
            "seconds": seconds,
            "beyond_profile_s": beyond_s,
            "at": int(time.time()),
        }
        _write(file, kept)


def recall_loads(file: Path, keys: Mapping[str, str]) -> dict[str, float]:
    """Recall how long the models of these variants take to load, s; those that are remembered."""
    kept = _read(file).loads
    pairs = ((variant, kept.get(key)) for variant, key in keys.items())
    return {
        variant: float(load_s)
        for variant, load_s in pairs
        if isinstance(load_s, int | float) and 0.0 < load_s < 1e9
    }


def recall_growth(file: Path, key: str, largest: int) -> Growth | None:
    """Recall what runs of a model take; None where this version's runtime has not been measured.

    Runs of a quarter of the largest number of rows at least must have been tried.
    """
    entry = _read(file).memory.get(key)
    if not isinstance(entry, dict) or entry.get("runtime") != _runtime():
        return None
    try:
        growth = Growth.of_peaks(entry["peaks"])
    except (KeyError, TypeError, ValueError):
        return None
    return growth if 4 * growth.peaks[-1][0] >= largest else None


def recall(dispatcher: Dispatcher, keys: Mapping[str, str], file: Path) -> list[str]:
    """Start a dispatcher from the service times that a file remembers; of which variants it does.

    Instances are told apart by their place among those of their variant. One that has measured
    nothing begins with the mean of the others, weighted by how much they had measured. A file that
    is missing or damaged remembers none: the profiles stand.
    """
    rows = {key: _sound(row) for key, row in _read(file).services.items()}
    return _begin(dispatcher, keys, {key: row for key, row in rows.items() if row is not None})


def measured_at(keys: Iterable[str], file: Path) -> float:
    """When the last of some service times was measured that a file remembers, seconds since 1970.

    The file's own time stands for it where it remembers none of them.
    """
    services = _read(file).services
    rows = [row for key in keys if (row := _sound(services.get(key))) is not None]
    return max((row.at for row in rows), default=file.stat().st_mtime)


def carry_over(new: Dispatcher, old: Dispatcher, variants: Iterable[str]) -> list[str]:
    """Start a dispatcher from what another one of the same task has measured; of which variants.

    Their fleets may differ; service times are still true of these variants.
    """
    keys = {variant: variant for variant in variants}
    _carry_chances(new, old, keys)
    return _begin(new, keys, _measured(old, keys))


def _carry_chances(new: Dispatcher, old: Dispatcher, variants: Collection[str]) -> None:
    """Let servers have their next chances when they would have had them, and none start anew."""
    old_places = {name: k for k, name in enumerate(old.fleet.variants)}
    new.site.asked[:] = old.site.asked
    for k, variant in enumerate(new.fleet.variants):
        if variant not in variants or variant not in old_places:
            continue
        mine, theirs = new.fleet.first[k : k + 2], old.fleet.first[old_places[variant] :][:2]
        for server, same in zip(range(*mine), range(*theirs), strict=False):
            again, chances = int(old.site.again[same]), int(old.site.chances[same])
            goes_on = again != TRIED  # else its run is measured by the old fleet alone
            new.site.again[server] = again if goes_on else next_chance(new.site, chances)
            new.site.chances[server] = chances


def _measured(dispatcher: Dispatcher, keys: Mapping[str, str]) -> dict[str, _Services]:
    site, first, now_s = dispatcher.site, dispatcher.fleet.first, int(time.time())
    rows = {}
    for k, variant in enumerate(dispatcher.fleet.variants):
        own = slice(int(first[k]), int(first[k + 1]))
        if variant in keys and site.measured[own].any():
            rows[keys[variant]] = _Services(
                row_s=site.row_s[own].tolist(),
                slow_s=site.slow_s[own].tolist(),
                measured=site.measured[own].tolist(),
                at=now_s,
            )
    return rows


def _begin(
    dispatcher: Dispatcher, keys: Mapping[str, str], rows: Mapping[str, _Services]
) -> list[str]:
    site, first = dispatcher.site, dispatcher.fleet.first
    begun = []
    for k, variant in enumerate(dispatcher.fleet.variants):
        row = rows.get(keys.get(variant, ""))
        if row is None:
            continue
        counts = np.array(row.measured)
        servers = np.arange(int(first[k]), int(first[k + 1]))
        known = np.flatnonzero(counts[: len(servers)].any(axis=1))
        for times_s, of in ((site.row_s, np.array(row.row_s)), (site.slow_s, np.array(row.slow_s))):
            times_s[servers] = np.average(of, axis=0, weights=np.maximum(counts, 1e-9))
            times_s[servers[known]] = of[known]
        site.measured[servers] = np.minimum(counts.max(axis=0), _FORGET)
        site.measured[servers[known]] = np.minimum(counts[known], _FORGET)
        if counts[:, 0].any():
            site.rate[k] = 1.0 / float(np.mean(site.row_s[servers, 0]))
        begun.append(variant)
    return begun


def _runtime() -> str:
    return f"onnxruntime {version('onnxruntime')}"


def _read(file: Path) -> _File:
    """Read a file; nothing where it is missing, damaged or of another schema."""
    with suppress(OSError, *UNREADABLE):
        kept = msgspec.json.decode(file.read_bytes(), type=_File)
        if kept.schema == SCHEMA:
            return kept
    return _File()


def _write(file: Path, kept: _File) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(f".{os.getpid()}.tmp")
    content = {"schema": SCHEMA, "services": kept.services, "memory": kept.memory}
    if kept.loads:
        content["loads"] = kept.loads
    if kept.overheads:
        content["overheads"] = kept.overheads
    beside.write_text(json.dumps(content, indent=1), encoding="utf-8")
    beside.replace(file)


def _sound(row: Any) -> _Services | None:
    """A row as it is kept; None where it is none."""
    with suppress(msgspec.ValidationError):
        kept = msgspec.convert(row, _Services)
        if len(kept.row_s) == len(kept.slow_s) == len(kept.measured) > 0:
            return kept
    return None
