"""One value in place of what a deployment file says: ``load``, ``policy``, any path into the file.

Values are set in the file's data before it is checked, so what a file may not say, a setting may
not either, and with the same words. `Deployment.with_`, ``--policy``, ``--sweep`` and what
`inferway.simulate` takes beside the file all come through here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Final

from inferway.deployment.policies import FILE_POLICY
from inferway.deployment.policy_object import policy_name
from inferway.spelling import closest

_NUMBER: Final = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(.*?)\s*")


class SettingError(ValueError):
    """A setting that makes no sense.

    Attributes
    ----------
    key, sentence
        Which, and why.
    """

    def __init__(self, key: str, sentence: str) -> None:
        super().__init__(key, sentence)
        self.key, self.sentence = key, sentence

    def __str__(self) -> str:
        return f"{self.key}: {self.sentence}"


@dataclass(frozen=True)
class Setting:
    """A value as written, and the number in it, with its unit, where there is one."""

    text: str
    number: float | None = None
    unit: str = ""
    data: Any = None
    """A list or a mapping as it stands, or a policy's file where `text` is its class."""

    @property
    def plain(self) -> Any:
        """As YAML would read it."""
        if self.data is not None:
            return self.data
        if self.number is None:
            return {"true": True, "false": False}.get(self.text, self.text)
        if self.unit:
            return self.text
        return int(self.number) if self.number == int(self.number) else self.number

    def quantity(self, unit: str) -> str:
        """With a unit, its own or else this one."""
        return self.text if self.unit or self.number is None else f"{self.text}{unit}"


def setting(value: Any) -> Setting:
    """Read a value: text as a command line has it, a number, a policy's class, plain data."""
    if isinstance(value, Setting):
        return value
    if isinstance(value, bool):
        return Setting(str(value).lower())
    if isinstance(value, Real):
        number = float(value)
        return Setting(f"{number:.15g}", number)
    if isinstance(value, type):
        return Setting(value.__name__, data=policy_name(value))
    if isinstance(value, str):
        found = _NUMBER.fullmatch(value)
        if found is None:
            return Setting(value.strip())
        return Setting(value.strip(), float(found[1]), found[2])
    return Setting(str(value), data=value)


def set_all(
    data: dict[str, Any],
    settings: Mapping[str, Setting],
    node: str | None,
    keys: Collection[str],
) -> None:
    """Set values in a file's data, which is changed.

    Parameters
    ----------
    data
        As `Source.data` has it.
    settings
        By key: ``policy``, ``scheduling``, ``placement``, ``rate``, ``load``, ``target``,
        ``deadline``, ``seed``, ``instances.TASK/VARIANT`` or a path into the file.
    node
        Whose instances are meant, where there are several nodes.
    keys
        Those at the top of a file, which paths begin with.

    Raises
    ------
    SettingError
        Where there is no such key, or the file has nothing that it could change.
    """
    if "rate" in settings and "load" in settings:
        raise SettingError("rate", "cannot be given with load: each says how fast requests arrive")
    for key, value in settings.items():
        if key.startswith("instances."):
            _set_instances(data, key.removeprefix("instances."), value, node)
        elif (change := _CHANGES.get(key)) is not None:
            change(data, value)
        else:
            _set_path(data, key, value, keys)


def _set_seed(data: dict[str, Any], value: Setting) -> None:
    whole = value.number is not None and value.number == int(value.number)
    if value.unit or not whole or value.plain < 0:
        raise SettingError("seed", f"a seed is a whole number from 0, not {value.text}")
    data["seed"] = value.plain


def _set_policy(data: dict[str, Any], value: Setting) -> None:
    for task in data.get("tasks", {}).values():
        task.pop("dispatch", None)
    data.pop("scheduling", None)
    name = value.text if value.data is None else str(value.data)
    data["dispatch"] = {"policy": _from_here(name)}


def _from_here(name: str) -> str:
    """Take a policy's file as file names on a command line are: from the current folder."""
    if not FILE_POLICY.fullmatch(name):
        return name
    file, _, of = name.rpartition(":")
    return f"{Path(file).resolve()}:{of}"


def _set_scheduling(data: dict[str, Any], value: Setting) -> None:
    for task in data.get("tasks", {}).values():
        task.pop("dispatch", None)
    data["scheduling"] = _named(data.get("scheduling"), value)


def _set_placement(data: dict[str, Any], value: Setting) -> None:
    data["placement"] = _named(data.get("placement"), value)


def _named(before: Any, value: Setting) -> Any:
    """Return a policy by its name with the slot of the one before, or a section as it stands."""
    if isinstance(value.data, dict):
        return value.data
    slot = before.get("slot") if isinstance(before, dict) else None
    name = value.text if value.data is None else str(value.data)
    return {"policy": _from_here(name), **({} if slot is None else {"slot": slot})}


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
            raise SettingError(
                key,
                f"workload.{task} has arrivals of process {process}, which have no "
                f"{key}; it can be set with poisson, constant, sinusoidal and phases",
            )


def _scale(phases: Sequence[dict[str, Any]], key: str, value: Setting, task: str) -> None:
    """Scale the phases' rates, so that their mean is the value."""
    from inferway.deployment.units import RATE, TIME

    if any(key not in phase for phase in phases):
        other = "rate" if key == "load" else "load"
        raise SettingError(
            key, f"a phase of workload.{task} gives its {other}; set {other} instead"
        )
    lengths = [TIME.parse(phase["for"]) for phase in phases]
    levels = [RATE.parse(one["rate"]) if key == "rate" else float(one["load"]) for one in phases]
    mean = sum(map(float.__mul__, lengths, levels)) / sum(lengths)
    wanted = RATE.parse(value.quantity("/s")) if key == "rate" else value.number
    if wanted is None or mean <= 0:
        raise SettingError(key, f"{value.text} is not a number")
    for phase, level in zip(phases, levels, strict=True):
        scaled = level * wanted / mean
        phase[key] = f"{scaled!r}/s" if key == "rate" else scaled


def _set_instances(data: dict[str, Any], which: str, value: Setting, node: str | None) -> None:
    nodes = data.get("nodes", {})
    if node is None and len(nodes) != 1:
        raise SettingError(f"instances.{which}", f"name a node with --node, of {_list(nodes)}")
    name = node or next(iter(nodes))
    if name not in nodes:
        raise ValueError(f"unknown node {name!r}; the file has {_list(nodes)}")
    instances = nodes[name].setdefault("instances", {})
    task, slash, variant = which.partition("/")
    variants = data.get("tasks", {}).get(task, {}).get("variants", {})
    if not slash or variant not in variants:
        known = [f"{one}/{two}" for one, of in data["tasks"].items() for two in of["variants"]]
        raise SettingError(f"instances.{which}", f"no such variant; the file has {_list(known)}")
    instances[which] = value.plain
    if value.plain == 0:  # a file names those that run
        del instances[which]


_CHANGES: Final[dict[str, Callable[[dict[str, Any], Setting], None]]] = {
    "load": _set_load,
    "rate": _set_rate,
    "policy": _set_policy,
    "scheduling": _set_scheduling,
    "placement": _set_placement,
    "target": _set_target,
    "accuracy_target": _set_target,
    "deadline": _set_deadline,
    "seed": _set_seed,
}


def _set_path(data: dict[str, Any], key: str, value: Setting, keys: Collection[str]) -> None:
    """Set what a dotted path leads to: keys may hold dots, list entries are numbers from 0."""
    if key.partition(".")[0] not in keys or "." not in key:
        known = [*_CHANGES, "instances.TASK/VARIANT"]
        near = closest(key, known)
        raise SettingError(
            key,
            "no such key"
            + (f"; did you mean {near}?" if near else "")
            + (
                ""
                if near
                else f"; there are {_list(known)}, and paths into the file such as "
                "nodes.here.buffer"
            ),
        )
    at: Any = data
    left = key
    while True:
        step, left_after = _step(at, left)
        if step is None:
            raise SettingError(
                key, f"the file has nothing at {left!r}; there is {_list(_names(at))}"
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
