"""Another setting put to use: written as a deployment file, or applied to a server."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from io import StringIO
from typing import Any, Final

import msgspec

from inferway.dashboard.question import Question, WhatIfError
from inferway.dashboard.watched import WatchedServer
from inferway.deployment.deployment import KEYS
from inferway.deployment.setting import Setting, set_all, setting
from inferway.loadgen.access import Access, ask_whoever
from inferway.unreadable import UNREADABLE

_APPLY_S: Final = 300.0
"""Time that a server may take to load what is new."""
_NODE: Final = "here"


class ChangeError(Exception):
    """A change that is not made; the message is one sentence for whoever looks at the page.

    Attributes
    ----------
    status
        Of the answer, as HTTP has it.
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Change(msgspec.Struct, forbid_unknown_fields=True):
    """A change to what a server has in force.

    Attributes
    ----------
    server
        By the URL of its admin listener.
    with_
        ``policy`` and ``target``, as `Deployment.with_` has them.
    dry_run
        Tell the difference, and change nothing.
    """

    server: str
    with_: dict[str, str | float] = msgspec.field(name="with", default_factory=dict)
    dry_run: bool = True


def written(
    deployment: Mapping[str, Any], fleet: Mapping[str, Any], question: Question, rate_per_s: float
) -> str:
    """Write the deployment in force as a file, with what a question has in place of it.

    Parameters
    ----------
    deployment, fleet
        As ``/deployment`` and ``/deployment/TASK`` have them.
    question
        Whose target and policy go to its task, and to others none.
    rate_per_s
        At which the task's requests come now.

    Raises
    ------
    WhatIfError
        Where there is no file, or the question asks for what is none of it.
    """
    if not deployment["content"]:
        raise WhatIfError("the server was given no deployment file")
    if question.lost:
        raise WhatIfError("a node that is lost stands in no file")
    if fleet["node"] and question.instances:
        raise WhatIfError("how many instances run at a node of a network, placement decides")
    data: dict[str, Any] = deepcopy(deployment["content"])
    settings, words = dict[str, Setting](), []
    kind, alone = fleet["kind"], len(data["tasks"]) == 1
    if question.target is not None:
        settings[f"tasks.{kind}.accuracy_target"] = setting(question.target)
        words.append(f"target {question.target:g}")
    if question.policy is not None:
        if alone:
            settings["policy"] = setting(question.policy)
        else:
            spec = {"policy": question.policy}
            settings[f"tasks.{kind}.dispatch"] = Setting(question.policy, data=spec)
        words.append(f"policy {question.policy}")
    if question.instances:
        _listed(data)
        settings |= {
            f"instances.{kind}/{name}": setting(count) for name, count in question.instances.items()
        }
        words += [f"{count} of {name}" for name, count in question.instances.items()]
    try:
        set_all(data, settings, None, KEYS)
    except ValueError as error:
        raise WhatIfError(str(error)) from None
    if question.rate != 1.0:
        arrivals = {"process": "poisson", "rate": f"{rate_per_s * question.rate:.6g}/s"}
        data.setdefault("workload", {}).setdefault(kind, {})["arrivals"] = arrivals
        words.append(f"{arrivals['rate']} of {kind}")
    heading = [
        f"{deployment['file']}, as it was in force" + (f", with {', '.join(words)}" * bool(words)),
        f"Relative paths start from the folder of {deployment['file']}: put this file there.",
    ]
    if left_out := deployment["left_out"]:
        heading.append(f"Left out, since it may be secret: {', '.join(left_out)}")
    return "".join(f"# {line}\n" for line in heading) + as_yaml(data)


def _listed(data: dict[str, Any]) -> None:
    """Write down the instances that a file leaves out: one of each variant at its one node."""
    nodes = data.setdefault("nodes", {_NODE: {}})
    for node in nodes.values():
        every = {
            f"{task}/{name}": 1
            for task, about in data["tasks"].items()
            for name in about.get("variants", {})
        }
        node.setdefault("instances", every)


def as_yaml(data: Mapping[str, Any]) -> str:
    """Write plain data as YAML 1.2."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output = False, False  # type: ignore[assignment]
    yaml.width, out = 96, StringIO()
    yaml.dump(data, out)
    return out.getvalue()


def applied(source: WatchedServer, change: Change, key: str) -> dict[str, Any]:
    """Change what a server has in force, or tell the difference. Blocks.

    Parameters
    ----------
    source
        The server.
    change
        What is changed.
    key
        One with the role `admin`, of whoever asks; it is kept nowhere.

    Raises
    ------
    ChangeError
        When the server refuses, or nobody has shown such a key.
    DriveError
        When it cannot be asked.
    """
    if not key:
        raise ChangeError(403, "a change needs a key with the role admin")
    whoever = Access(None, source.access.authority)
    if ask_whoever(source.address, f"{source.address.prefix}/", whoever).status != 401:
        raise ChangeError(
            403,
            f"{source.url} has no keys, and from a page only a key with the role admin changes "
            "anything: start it with --keys FILE, or change it with `inferway apply`",
        )
    access = Access(key, source.access.authority)
    body = msgspec.json.encode({"with": change.with_, "dry_run": change.dry_run})
    answer = ask_whoever(
        source.address,
        f"{source.address.prefix}/apply",
        access,
        body=body,
        headers={"Content-Type": "application/json"},
        within_s=_APPLY_S,
    )
    try:
        found = msgspec.json.decode(answer.body, type=dict[str, Any])
    except UNREADABLE:
        found = {"error": f"{source.url} answers what is no JSON (status {answer.status})"}
    if answer.status == 401:
        raise ChangeError(403, f"{source.url} does not know this key")
    if answer.status != 200:
        sentence = access.hidden(str(found.get("error", f"status {answer.status}")))
        raise ChangeError(answer.status, sentence)
    return found
