"""One value in place of what a deployment file says: ``load``, ``policy``, any path into the file.

Values are set in the file's data before it is checked, so what a file may not say, a setting may
not either, and with the same words.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from inferway.deployment.document import Document
from inferway.deployment.source import Source
from inferway.dispatch.table import POLICIES

_PATHS: Final = frozenset(Document.model_fields)


@dataclass(frozen=True)
class Setting:
    """A value as written, and the number in it, with its unit, where there is one."""

    text: str
    number: float | None = None
    unit: str = ""

    @property
    def plain(self) -> Any:
        """As YAML would read it."""
        if self.number is None:
            return {"true": True, "false": False}.get(self.text, self.text)
        if self.unit:
            return self.text
        return int(self.number) if self.number == int(self.number) else self.number

    def quantity(self, unit: str) -> str:
        """With a unit, its own or else this one."""
        return self.text if self.unit or self.number is None else f"{self.text}{unit}"


def with_settings(
    source: Source, keys: Sequence[str], values: Sequence[Setting], node: str | None
) -> int | None:
    """Set values in a file's data.

    Parameters
    ----------
    source
        Its data is changed.
    keys, values
        What is set to what.
    node
        Whose instances are meant, where there are several nodes.

    Returns
    -------
    int or None
        The seed, if it is among them.

    Raises
    ------
    ValueError
        Where there is no such key, or the file has nothing that it could change.
    """
    seed = None
    for key, value in zip(keys, values, strict=True):
        if key == "seed":
            if (
                value.unit
                or value.number is None
                or value.number != int(value.number)
                or (value.number < 0)
            ):
                raise ValueError(f"--sweep seed: a seed is a whole number from 0, not {value.text}")
            seed = int(value.number)
        elif key.startswith("instances."):
            _set_instances(source.data, key.removeprefix("instances."), value, node)
        elif (change := _CHANGES.get(key)) is not None:
            change(source.data, value)
        else:
            _set_path(source.data, key, value)
    return seed


def _set_policy(data: dict[str, Any], value: Setting) -> None:
    for task in data.get("tasks", {}).values():
        task.pop("dispatch", None)
    name = value.text
    file, colon, of = name.rpartition(":")
    if name not in POLICIES and colon:
        # As file names on a command line: from the current folder, not from the file's.
        name = f"{Path(file).resolve()}:{of}"
    data["dispatch"] = {"policy": name}


def _set_target(data: dict[str, Any], value: Setting) -> None:
    for task in data.get("tasks", {}).values():
        task["accuracy_target"] = value.plain


def _set_deadline(data: dict[str, Any], value: Setting) -> None:
    for task in data.get("tasks", {}).values():
        task["deadline"] = value.quantity(" s")


def _set_load(data: dict[str, Any], value: Setting) -> None:
    _set_arrivals(data, "load", value, value.plain)


def _set_rate(data: dict[str, Any], value: Setting) -> None:
    _set_arrivals(data, "rate", value, value.quantity("/s"))


def _set_arrivals(data: dict[str, Any], key: str, value: Setting, written: Any) -> None:
    for task, workload in data.get("workload", {}).items():
        arrivals = workload.get("arrivals", {})
        process = arrivals.get("process")
        if process == "phases":
            _scale(arrivals.get("phases", []), key, value, task)
        elif process in ("poisson", "constant", "sinusoidal"):
            arrivals.pop("load", None)
            arrivals.pop("rate", None)
            arrivals[key] = written
        else:
            raise ValueError(
                f"--sweep {key}: workload.{task} has arrivals of process {process}, which have no "
                f"{key}; it can be swept with poisson, constant, sinusoidal and phases"
            )


def _scale(phases: Sequence[dict[str, Any]], key: str, value: Setting, task: str) -> None:
    """Scale the phases' rates, so that their mean is the value."""
    from inferway.deployment.quantities import RATE, TIME

    if any(key not in phase for phase in phases):
        other = "rate" if key == "load" else "load"
        raise ValueError(
            f"--sweep {key}: a phase of workload.{task} gives its {other}; sweep {other} instead"
        )
    lengths = [TIME.parse(phase["for"]) for phase in phases]
    levels = [RATE.parse(one["rate"]) if key == "rate" else float(one["load"]) for one in phases]
    mean = sum(map(float.__mul__, lengths, levels)) / sum(lengths)
    wanted = RATE.parse(value.quantity("/s")) if key == "rate" else value.number
    if wanted is None or mean <= 0:
        raise ValueError(f"--sweep {key}: {value.text} is not a number")
    for phase, level in zip(phases, levels, strict=True):
        scaled = level * wanted / mean
        phase[key] = f"{scaled!r}/s" if key == "rate" else scaled


def _set_instances(data: dict[str, Any], which: str, value: Setting, node: str | None) -> None:
    nodes = data.get("nodes", {})
    if node is None and len(nodes) != 1:
        raise ValueError(f"--sweep instances.{which}: name a node with --node, of {_list(nodes)}")
    name = node or next(iter(nodes))
    if name not in nodes:
        raise ValueError(f"unknown node {name!r}; the file has {_list(nodes)}")
    instances = nodes[name].setdefault("instances", {})
    task, slash, variant = which.partition("/")
    variants = data.get("tasks", {}).get(task, {}).get("variants", {})
    if not slash or variant not in variants:
        known = [f"{one}/{two}" for one, of in data["tasks"].items() for two in of["variants"]]
        raise ValueError(f"--sweep instances.{which}: no such variant; the file has {_list(known)}")
    instances[which] = value.plain
    if value.plain == 0:  # a file names those that run
        del instances[which]


_CHANGES: Final[dict[str, Callable[[dict[str, Any], Setting], None]]] = {
    "load": _set_load,
    "rate": _set_rate,
    "policy": _set_policy,
    "accuracy_target": _set_target,
    "deadline": _set_deadline,
}


def _set_path(data: dict[str, Any], key: str, value: Setting) -> None:
    """Set what a dotted path leads to: keys may hold dots, list entries are numbers from 0."""
    if key.partition(".")[0] not in _PATHS or "." not in key:
        known = [*_CHANGES, "seed", "instances.TASK/VARIANT"]
        near = difflib.get_close_matches(key, known, n=1)
        raise ValueError(
            f"--sweep {key}: no such key"
            + (f"; did you mean {near[0]}?" if near else "")
            + (
                ""
                if near
                else f"; there are {_list(known)}, and paths into the file such as "
                "nodes.here.buffer"
            )
        )
    at: Any = data
    left = key
    while True:
        step, left_after = _step(at, left)
        if step is None:
            raise ValueError(
                f"--sweep {key}: the file has nothing at {left!r}; there is {_list(_names(at))}"
            )
        if not left_after:
            at[step] = value.plain
            return
        at, left = at[step], left_after


def _step(at: Any, path: str) -> tuple[Any, str]:
    """The longest known key that a path begins with; the last may be new in a mapping."""
    if isinstance(at, list):
        first, _, rest = path.partition(".")
        known = first.isdecimal() and int(first) < len(at)
        return (int(first), rest) if known else (None, path)
    if not isinstance(at, dict):
        return None, path
    for name in sorted(at, key=len, reverse=True):
        if path == name or path.startswith(f"{name}."):
            return name, path[len(name) + 1 :]
    return (path, "") if "." not in path else (None, path)


def _names(at: Any) -> list[str]:
    if isinstance(at, list):
        return [str(i) for i in range(len(at))]
    return list(at) if isinstance(at, dict) else []


def _list(names: Any) -> str:
    return ", ".join(map(str, names)) or "nothing"
