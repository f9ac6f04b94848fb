"""Whatever the file holds: a deployment, or a DeploymentError, and nothing else."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.deployment import Deployment, DeploymentError, check, load, schema
from inferway.deployment.source import read

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


def survives(text: str | bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "d.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        outcome = outcome_of(path)
        if isinstance(outcome, Deployment):
            check(outcome)
            outcome.unserved()
        else:
            lines = str(outcome).splitlines()
            assert lines
            assert all(line.startswith(str(path)) for line in lines)
            assert all(problem.sentence for problem in outcome.problems)


def outcome_of(path: Path) -> Deployment | DeploymentError:
    try:
        return load(path)
    except DeploymentError as error:
        return error


@given(st.binary(max_size=80))
def test_any_bytes(content: bytes) -> None:
    survives(content)


@given(st.text(alphabet="abt:{}[]-,&*!|>'\"#%@\n\t 0.\\?", max_size=60))
def test_any_punctuation(text: str) -> None:
    survives(text)


def words() -> st.SearchStrategy[str]:
    """Give the words of the schema, so that random files reach deep into the checks."""
    found: set[str] = {"t", "a", "t/a", "here", "zoo://digits/tiny", "./mine.py:X", "*", ""}

    def collect(node: Any) -> None:
        if isinstance(node, dict):
            found.update(node.get("properties", {}))
            found.update(str(word) for word in node.get("enum", []))
            found.update(str(word) for word in node.get("examples", []))
            if "const" in node:
                found.add(node["const"])
            for value in node.values():
                collect(value)
        elif isinstance(node, list):
            for value in node:
                collect(value)

    collect(schema())
    return st.sampled_from(sorted(found))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=True)
    | words()
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(words() | st.text(max_size=2), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=150)
@given(VALUES)
def test_any_values_under_any_keys(value: Any) -> None:
    survives(json.dumps({"tasks": {"t": {"variants": {"a": value}}}, "nodes": value}))
    survives(json.dumps(value))


@settings(max_examples=300)
@given(st.sampled_from(EXAMPLES), st.data())
def test_any_value_anywhere_in_a_good_file(path: Path, data: st.DataObject) -> None:
    whole = copy.deepcopy(read(path).data)
    at: Any = whole
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        inner = at[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        at = inner
    at[key] = data.draw(VALUES)
    survives(json.dumps(whole))
