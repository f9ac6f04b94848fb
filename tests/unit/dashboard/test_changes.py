"""Another setting as a deployment file."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from lately import CONTENT, fleet

import inferway
from inferway.cli import main
from inferway.dashboard.changes import as_yaml, written
from inferway.dashboard.question import Question, WhatIfError

TOLD = {"file": "digits.yaml", "content": CONTENT, "left_out": []}


def text(deployment: Any = None, about: Any = None, **keys: Any) -> str:
    given = TOLD if deployment is None else deployment
    question = Question("http://here:8002", "digits", **keys)
    return written(given, fleet() if about is None else about, question, 100.0)


def test_it_is_a_file_that_check_accepts(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(text(target=0.4, policy="tad-op", instances={"big": 2, "tiny": 0}, rate=0.5))
    assert file.read_text().startswith(
        "# digits.yaml, as it was in force, with target 0.4, policy tad-op, 2 of big, 0 of tiny, "
        "50/s of digits\n"
    )
    assert main(["check", str(file)]) == 0, capsys.readouterr().err
    deployment = inferway.load(file)
    assert deployment.tasks["digits"].accuracy_target == 0.4
    assert deployment.policy_of("digits").policy == "tad-op"
    assert deployment.nodes["here"].instances == {("digits", "big"): 2}
    assert deployment.workload["digits"].arrivals.rate == 50.0  # type: ignore[union-attr]


def test_without_a_change_it_is_what_is_in_force(tmp_path: Path) -> None:
    file = tmp_path / "same.yaml"
    file.write_text(text())
    assert inferway.load(file).source.data == CONTENT
    assert "with" not in file.read_text().splitlines()[0]


def test_instances_that_the_file_leaves_out_are_written_down() -> None:
    content = {"tasks": CONTENT["tasks"]}
    found = text(TOLD | {"content": content}, instances={"big": 3})
    assert "digits/tiny: 1" in found
    assert "digits/big: 3" in found


def test_other_tasks_keep_what_they_have(tmp_path: Path) -> None:
    tasks = CONTENT["tasks"] | {"other": deepcopy(CONTENT["tasks"]["digits"])}
    nodes = {"here": {"instances": {"digits/tiny": 1, "digits/big": 1, "other/tiny": 1}}}
    file = tmp_path / "two.yaml"
    content = {"tasks": tasks, "nodes": nodes}
    file.write_text(text(TOLD | {"content": content}, target=0.4, policy="tad-op"))
    deployment = inferway.load(file)
    assert deployment.policy_of("other").policy == "priced"
    assert deployment.tasks["other"].accuracy_target == 0.8
    assert deployment.policy_of("digits").policy == "tad-op"


def test_what_is_secret_is_named_and_not_written() -> None:
    left = "tasks.digits.variants.own.python.environment.TOKEN"
    assert f"# Left out, since it may be secret: {left}\n" in text(TOLD | {"left_out": [left]})


@pytest.mark.parametrize(
    ("deployment", "about", "keys", "sentence"),
    [
        (TOLD | {"content": None}, None, {}, "no deployment file"),
        (None, None, {"lost": "cloud"}, "stands in no file"),
        (None, fleet(node="base"), {"instances": {"big": 2}}, "placement decides"),
        (None, None, {"instances": {"none": 2}}, "no such variant"),
    ],
)
def test_what_no_file_says_is_refused(
    deployment: Any, about: Any, keys: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(WhatIfError, match=sentence):
        text(deployment, about, **keys)


def test_words_that_look_like_something_else_stay_words(tmp_path: Path) -> None:
    data = {
        "a": "no",
        "b": "012",
        "c": "1.0",
        "d": "null",
        "e": "x: y # z",
        "f": ["~", 1, 2.5, True],
    }
    file = tmp_path / "x.yaml"
    file.write_text(as_yaml(data))
    from inferway.deployment.source import read

    assert read(file).data == data
