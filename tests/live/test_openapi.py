"""The server's own description, held to what it does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ONE = {
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}]
}
HONEST = ["2xx", "429", "504"]
"""What answers a request that fits: no room and no time are true answers."""
REFUSED = ["400", "403", "404", "413", "501"]
"""What fits the document need not fit the task, nor be offered; feedback needs a key."""
PUBLISHED = Path(__file__).parents[2] / "docs" / "openapi.json"
BINARY = Path(__file__).parent / "binary_bodies.py"
HEAD_BYTES = 512
"""The JSON of every binary body, filled up with spaces: its length is in a header."""


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def published() -> Any:
    """Read the description that the documentation has."""
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


def schemathesis(
    url: str,
    described: str,
    folder: Path,
    *options: str,
    accepted: list[str],
    variant: str = "tiny",
    hooks: Path | None = None,
) -> None:
    """Have schemathesis hold a server to a description, by every check that it has.

    Parameters
    ----------
    url
        Of the server.
    described
        Address or path of the description.
    folder
        For its settings.
    *options
        Of its command line.
    accepted
        Statuses that may answer data that fit the description.
    variant
        Fills the paths' `variant`; `task` is always digits.
    hooks
        A Python file that adds to what it generates.
    """
    settings = folder / "schemathesis.toml"
    settings.write_text(
        ("" if hooks is None else f"hooks = '{hooks}'\n")
        + f"[parameters]\ntask = 'digits'\nvariant = '{variant}'\n"
        f"[checks.positive_data_acceptance]\nexpected-statuses = {accepted}\n"
        "[checks.not_a_server_error]\nexpected-statuses = ['2xx', '4xx', '501', '504']\n"
    )
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(settings), "run"]
    command += [described, "--url", url, "--generation-deterministic", "--warnings=off"]
    ended = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def narrowed(binary: bool) -> dict[str, Any]:
    """The description of infer, with only what the task `digits` takes: all of it is answered."""
    told = published()
    given = {"image": "name", "FP32": "datatype"}
    rows = [
        {
            "properties": {key: {"const": value} for value, key in given.items()}
            | {
                "shape": {"const": [count, 4]},
                "data": {
                    "type": "array",
                    "items": {"type": "number", "minimum": -1e30, "maximum": 1e30},
                    "minItems": 4 * count,
                    "maxItems": 4 * count,
                },
            },
            "required": [*given.values(), "shape", "data"],
        }
        for count in (1, 2, 3)
    ]
    wanted = {
        "type": "object",
        "properties": {
            "name": {"const": "scores"},
            "parameters": {
                "type": "object",
                "properties": {"binary_data": {"type": "boolean"}},
                "additionalProperties": False,
            },
        },
        "required": ["name"],
    }
    asked = {
        "accuracy": {"type": "number", "minimum": 0, "maximum": 0.7},
        "deadline_ms": {"type": "number", "minimum": 1000},
        # Enumerated: to JSON Schema 1.0 is an integer too, and the server takes whole ones only.
        "timeout": {"enum": [0, 10**6, 2**53]},
        "priority": {"enum": [0, 1, 2, 32767]},
        "binary_data_output": {"type": "boolean"},
    }
    fitting = {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "inputs": {"type": "array", "items": {"oneOf": rows}, "minItems": 1, "maxItems": 1},
            "outputs": {"type": "array", "items": wanted, "maxItems": 1},
            "parameters": {"type": "object", "properties": asked, "additionalProperties": False},
        },
        "required": ["inputs"],
    }
    told["paths"] = {path: one for path, one in told["paths"].items() if path.endswith("/infer")}
    for one in told["paths"].values():
        length = one["post"]["parameters"].pop()
        content = one["post"]["requestBody"]["content"]
        if binary:
            del content["application/json"]
            length |= {"required": True, "schema": {"const": str(HEAD_BYTES)}}
            one["post"]["parameters"].append(length)
        else:
            del content["application/octet-stream"]
            content["application/json"]["schema"] = fitting
    return told


def test_what_is_published_is_what_is_served(digits: Any) -> None:
    command = [sys.executable, "-m", "inferway.live.http"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True)
    served = digits.get("/v2/openapi.json").json
    assert served == published() == json.loads(printed.stdout), (
        "write it again: python -m inferway.live.http > docs/openapi.json"
    )


def test_every_reference_leads_somewhere() -> None:
    told = published()
    for reference in references(told):
        place: Any = told
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]
        assert place


# The paths of feedback need a task that keeps answers: `test_feedback.py` holds them to theirs.
@pytest.mark.parametrize(
    "path", [one for one in published()["paths"] if not re.search("/(feedback|accuracy)", one)]
)
def test_every_path_is_answered_as_it_says(digits: Any, path: str) -> None:
    identity = digits.infer(ONE).headers["x-request-id"]
    names = {"task": "digits", "variant": "tiny", "request": identity}
    told = published()["paths"][path]
    assert {one["name"] for one in told["parameters"]} == {
        part[1:-1] for part in path.split("/") if part.startswith("{")
    }
    here = path.format(**names)
    if "post" in told:
        assert digits.infer(ONE, path=here).status == 200
        assert str(digits.infer({}, path=here).status) in told["post"]["responses"]
        assert digits.get(here).status == 405
    else:
        assert digits.get(here).status == 200
        assert digits.infer({}, path=here).status == 405
    if names.keys() & {part[1:-1] for part in path.split("/")}:
        elsewhere = path.format(task="nothing", variant="nothing", request="nothing")
        missing = digits.infer({}, path=elsewhere) if "post" in told else digits.get(elsewhere)
        method = told.get("post") or told["get"]
        assert missing.status == 404
        assert "404" in method["responses"]


def test_the_description_holds(digits: Any, tmp_path: Path) -> None:
    url = f"http://{digits.url}"
    schemathesis(
        url,
        f"{url}/v2/openapi.json",
        tmp_path,
        "--phases=coverage,fuzzing",
        "--max-examples=10",
        accepted=HONEST + REFUSED,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "options"),
    # What is not served has no methods either.
    [("tiny", ()), ("none such", ("--exclude-checks=unsupported_method",))],
)
def test_the_description_holds_for_long(
    digits: Any, tmp_path: Path, variant: str, options: tuple[str, ...]
) -> None:
    url = f"http://{digits.url}"
    schemathesis(
        url,
        f"{url}/v2/openapi.json",
        tmp_path,
        *options,
        "--max-examples=100",
        accepted=HONEST + REFUSED,
        variant=variant,
    )


@pytest.mark.slow
@pytest.mark.parametrize("hooks", [None, BINARY], ids=["json", "binary"])
def test_what_fits_the_task_is_answered(digits: Any, tmp_path: Path, hooks: Path | None) -> None:
    described = tmp_path / "described.json"
    described.write_text(json.dumps(narrowed(binary=hooks is not None)))
    schemathesis(
        f"http://{digits.url}",
        str(described),
        tmp_path,
        *("--mode=positive", "--phases=coverage,fuzzing", "--max-examples=200"),
        accepted=HONEST,
        hooks=hooks,
    )
