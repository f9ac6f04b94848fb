"""One value in place of what a deployment file says: ``load``, ``policy``, any path into the file.

Values are set in the file's data before it is checked, so what a file may not say, a setting may
not either, and with the same words. `Deployment.with_`, ``--policy``, ``--sweep`` and what
`inferway.simulate` takes beside the file all come through here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Final

from inferway.deployment.policies import FILE_POLICY, policy_name
from inferway.deployment.units import RATE, TIME
from inferway.spelling import closest

Data = dict[str, Any]

_NUMBER: Final = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(.*?)\s*")
_KEYS: Final = (
    "load", "rate", "policy", "scheduling", "placement", "target", "accuracy_target", "deadline",
    "seed", "instances.TASK/VARIANT",
)  # fmt: skip


class SettingError(ValueError):
    """A setting that makes no sense.

    Attributes
    ----------
    key
        The setting, as a caller names it.
    sentence
        Why it makes no sense.
    """

    def __init__(self, key: str, sentence: str) -> None:
        super().__init__(key, sentence)
        self.key, self.sentence = key, sentence

    def __str__(self) -> str:
        return f"{self.key}: {self.sentence}"


@dataclass(frozen=True)
class Setting:
    """A value as written, and the number in it, with its unit, where there is one.

    `data` is a list or a mapping as it stands, or a policy's file where `text` is its class.
    """

    text: str
    number: float | None = None
    unit: str = ""
    data: Any = None

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
    match value:
        case Setting():
            return value
        case bool():
            return Setting(str(value).lower())
        case Real():
            return Setting(f"{float(value):.15g}", float(value))
        case type():
            return Setting(value.__name__, data=policy_name(value))
        case str():
            found = _NUMBER.fullmatch(value)
            number = (float(found[1]), found[2]) if found else ()
            return Setting(value.strip(), *number)
    return Setting(str(value), data=value)


def set_all(
    data: Data, settings: Mapping[str, Setting], node: str | None, keys: Collection[str]
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
        The node whose instances are meant, where there are several.
    keys
        Those at the top of a file, which paths begin with.

    Raises
    ------
    SettingError
        Where there is no such key, or the file has nothing that it could change.
    """
    if "rate" in settings and "load" in settings:
        raise SettingError("rate", "cannot be given with load: each says how fast requests arrive")
    tasks = data.get("tasks", {}).values()
    for key, value in settings.items():
        match key:
            case "load" | "rate":
                _set_arrivals(data, key, value)
            case "policy" | "scheduling" | "placement":
                _set_policy(data, key, value)
            case "target" | "accuracy_target":
                for task in tasks:
                    before = task.get("accuracy_target")
                    more = isinstance(before, dict)
                    task["accuracy_target"] = (
                        {**before, "mean": value.plain} if more else value.plain
                    )
            case "deadline":
                for task in tasks:
                    task["deadline"] = value.quantity(" s")
            case "seed":
                whole = value.number is not None and isinstance(value.plain, int)
                if not whole or value.plain < 0:
                    sentence = f"a seed is a whole number from 0, not {value.text}"
                    raise SettingError("seed", sentence)
                data["seed"] = value.plain
            case _ if key.startswith("instances."):
                _set_instances(data, key, value, node)
            case _:
                _set_path(data, key, value, keys)


def _set_policy(data: Data, key: str, value: Setting) -> None:
    """Name a policy, with the slot of the one before; or set a section as it stands.

    A policy's file is taken as file names on a command line are: from the current folder.
    """
    name = value.text if value.data is None else str(value.data)
    if FILE_POLICY.fullmatch(name):
        file, _, attribute = name.rpartition(":")
        name = f"{Path(file).resolve()}:{attribute}"
    section: dict[str, Any] = {"policy": name}
    for task in data.get("tasks", {}).values() if key != "placement" else ():
        task.pop("dispatch", None)
    if key == "policy":
        data.pop("scheduling", None)
        data["dispatch"] = section
        return
    before = data.get(key)
    if isinstance(before, dict) and "slot" in before:
        section["slot"] = before["slot"]
    data[key] = value.data if isinstance(value.data, dict) else section


def _set_arrivals(data: Data, key: str, value: Setting) -> None:
    written = value.plain if key == "load" else value.quantity("/s")
    for task, workload in data.get("workload", {}).items():
        arrivals = workload.get("arrivals", {})
        process = arrivals.get("process")
        if process == "phases":
            _scale(arrivals.get("phases", []), key, value, task)
        elif process in ("poisson", "constant", "sinusoidal"):
            kept = {name: one for name, one in arrivals.items() if name not in ("load", "rate")}
            workload["arrivals"] = {**kept, key: written}
        else:
            raise SettingError(
                key,
                f"workload.{task} has arrivals of process {process}, which have no "
                f"{key}; it can be set with poisson, constant, sinusoidal and phases",
            )


def _scale(phases: Sequence[dict[str, Any]], key: str, value: Setting, task: str) -> None:
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


def _set_instances(data: Data, key: str, value: Setting, node: str | None) -> None:
    nodes = data.get("nodes", {})
    if node is None and len(nodes) != 1:
        raise SettingError(key, f"name a node with --node, of {_list(nodes)}")
    name = node or next(iter(nodes))
    if name not in nodes:
        raise ValueError(f"unknown node {name!r}; the file has {_list(nodes)}")
    which = key.removeprefix("instances.")
    known = [f"{one}/{two}" for one, of in data["tasks"].items() for two in of.get("variants", {})]
    if which not in known:
        raise SettingError(key, f"no such variant; the file has {_list(known)}")
    instances = nodes[name].setdefault("instances", {})
    instances[which] = value.plain
    if value.plain == 0:  # a file names those that run
        del instances[which]


def _set_path(data: Data, key: str, value: Setting, keys: Collection[str]) -> None:
    """Set what a dotted path leads to: keys may hold dots, list entries are numbers from 0."""
    if key.partition(".")[0] not in keys or "." not in key:
        near = closest(key, _KEYS)
        paths = f"there are {_list(_KEYS)}, and paths into the file such as nodes.here.buffer"
        raise SettingError(key, f"no such key; {f'did you mean {near}?' if near else paths}")
    at: Any = data
    left = key
    while left:
        names = range(len(at)) if isinstance(at, list) else at if isinstance(at, dict) else ()
        # The longest key that the path begins with; the last may be new in a mapping.
        fits = [name for name in map(str, names) if f"{left}.".startswith(f"{name}.")]
        if not fits and (not isinstance(at, dict) or "." in left):
            raise SettingError(key, f"the file has nothing at {left!r}; there is {_list(names)}")
        name = max(fits, key=len, default=left)
        step, left = int(name) if isinstance(at, list) else name, left[len(name) + 1 :]
        if not left:
            at[step] = value.plain
        at = at[step]


def _list(names: Iterable[Any]) -> str:
    return ", ".join(map(str, names)) or "nothing"
