"""What was measured of models, kept from one run to the next.

Service times per instance and size of batch, as running quantiles; and how much memory runs take,
by their rows.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from inferway.dispatch.dispatcher import Dispatcher
from inferway.runtime.growth import Growth
from inferway.site.view import SIZES
from inferway.unreadable import UNREADABLE

SCHEMA = 2
_READ = (1, 2)  # Schemas that are read; the first had no memory
_WRITING = Lock()  # Several sites of a process may keep their times at the same moment
# A remembered quantile counts as so many measurements: a changed machine is soon believed.
_FORGET = 50


def remember(dispatcher: Dispatcher, keys: Mapping[str, str], file: Path) -> None:
    """Write the dispatcher's measured service times to a JSON file, beside what it already holds.

    `keys` say by variant what the times are true of: the model and the hardware. Variants without
    one, and those that nothing was measured of, are left out. The file is replaced as a whole, so
    that a reader never sees half of it.
    """
    with _WRITING:
        services = _read(file) | _rows(dispatcher, keys)
        _write(file, services, _section(file, "memory"))


def remember_growth(file: Path, key: str, growth: Growth) -> None:
    """Write what runs of a model take to the file of `remember`, if that can be written."""
    entry = {"runtime": _runtime(), "peaks": growth.peaks}
    with _WRITING, suppress(OSError):
        _write(file, _section(file, "services"), _section(file, "memory") | {key: entry})


def recall_growth(file: Path, key: str, largest: int) -> Growth | None:
    """Recall what runs of a model take; None where this version's runtime has not been measured.

    Runs of a quarter of the largest number of rows at least must have been tried.
    """
    entry = _section(file, "memory").get(key)
    if not isinstance(entry, dict) or entry.get("runtime") != _runtime():
        return None
    try:
        growth = Growth.of_peaks(entry["peaks"])
    except (KeyError, TypeError, ValueError):
        return None
    return growth if 4 * growth.peaks[-1][0] >= largest else None


def _runtime() -> str:
    return f"onnxruntime {version('onnxruntime')}"


def _rows(dispatcher: Dispatcher, keys: Mapping[str, str]) -> dict[str, Any]:
    held: dict[str, Any] = {}
    site, first = dispatcher.site, dispatcher.fleet.first
    for k, variant in enumerate(dispatcher.fleet.variants):
        servers = slice(int(first[k]), int(first[k + 1]))
        counts = site.measured[servers]
        if variant not in keys or not counts.any():
            continue
        held[keys[variant]] = {
            "row_s": site.row_s[servers].tolist(),
            "slow_s": site.slow_s[servers].tolist(),
            "measured": counts.tolist(),
            "at": int(time.time()),
        }
    return held


def _write(file: Path, services: dict[str, Any], memory: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(f".{os.getpid()}.tmp")
    content = {"schema": SCHEMA, "services": services, "memory": memory}
    text = json.dumps(content, indent=1)
    beside.write_text(text, encoding="utf-8")
    beside.replace(file)


def recall(dispatcher: Dispatcher, keys: Mapping[str, str], file: Path) -> list[str]:
    """Start a dispatcher from the service times that a file remembers; of which variants it does.

    Instances are told apart by their place among those of their variant. One that has measured
    nothing begins with the mean of the others, weighted by how much they had measured. A file that
    is missing or damaged remembers none: the profiles stand.
    """
    return _begin(dispatcher, keys, _read(file))


def measured_at(keys: Iterable[str], file: Path) -> float:
    """When the last of some service times was measured that a file remembers, seconds since 1970.

    Earlier versions did not write that down: the file's own time stands for it then.
    """
    held = _section(file, "services")
    times_s = [
        row.get("at") for key in keys if isinstance(row := held.get(key), dict) and _sound(row)
    ]
    known = [one for one in times_s if isinstance(one, int | float)]
    return max(known) if known else file.stat().st_mtime


def carry_over(new: Dispatcher, old: Dispatcher, variants: Iterable[str]) -> list[str]:
    """Start a dispatcher from what another one of the same task has measured; of which variants.

    Their fleets may differ; service times are still true of these variants.
    """
    keys = {variant: variant for variant in variants}
    return _begin(new, keys, _rows(old, keys))


def _begin(dispatcher: Dispatcher, keys: Mapping[str, str], held: dict[str, Any]) -> list[str]:
    site, first = dispatcher.site, dispatcher.fleet.first
    found = []
    for k, variant in enumerate(dispatcher.fleet.variants):
        row = held.get(keys.get(variant, ""))
        if row is None:
            continue
        # A row per instance; earlier versions kept one for all.
        row_s, slow_s, counts = (
            np.atleast_2d(row[name]).astype(float) for name in ("row_s", "slow_s", "measured")
        )
        servers = np.arange(int(first[k]), int(first[k + 1]))
        known = np.flatnonzero(counts[: len(servers)].any(axis=1))
        weights = np.maximum(counts, 1e-9)
        for times_s, held_s in ((site.row_s, row_s), (site.slow_s, slow_s)):
            times_s[servers] = np.average(held_s, axis=0, weights=weights)
            times_s[servers[known]] = held_s[known]
        site.measured[servers] = np.minimum(counts.max(axis=0), _FORGET)
        site.measured[servers[known]] = np.minimum(counts[known], _FORGET)
        if counts[:, 0].any():
            site.rate[k] = 1.0 / float(np.mean(site.row_s[servers, 0]))
        found.append(variant)
    return found


def _read(file: Path) -> dict[str, Any]:
    return {key: row for key, row in _section(file, "services").items() if _sound(row)}


def _section(file: Path, name: str) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, *UNREADABLE):
        return {}
    if not isinstance(content, dict) or content.get("schema") not in _READ:
        return {}
    section = content.get(name, {})
    return section if isinstance(section, dict) else {}


def _sound(row: Any) -> bool:
    try:
        columns = [
            np.atleast_2d(np.asarray(row[name], float)) for name in ("row_s", "slow_s", "measured")
        ]
    except (KeyError, TypeError, ValueError):
        return False
    shape = columns[0].shape
    whole = all(column.shape == shape and np.isfinite(column).all() for column in columns)
    return whole and len(shape) == 2 and shape[1] == SIZES and bool((columns[0] > 0).all())
