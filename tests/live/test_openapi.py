"""The server's own description, held to what it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferway.live.http.openapi import document

ONE = {
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}]
}


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_what_is_published_is_what_is_served(digits: Any, root: Path) -> None:
    served = digits.get("/v2/openapi.json").json
    published = json.loads((root / "docs" / "openapi.json").read_text(encoding="utf-8"))
    assert served == published == json.loads(json.dumps(document())), (
        "write it again: python -m inferway.live.http > docs/openapi.json"
    )


def test_every_reference_leads_somewhere() -> None:
    told = document()
    for reference in references(told):
        place: Any = told
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]
        assert place


@pytest.mark.parametrize("path", document()["paths"])
def test_every_path_is_answered_as_it_says(digits: Any, path: str) -> None:
    identity = digits.infer(ONE).headers["x-request-id"]
    names = {"task": "digits", "variant": "tiny", "request": identity}
    told = document()["paths"][path]
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
