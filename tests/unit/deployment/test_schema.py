from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import inferway.deployment as deployment
from inferway.deployment.deployment import KEYS


def test_the_published_schema_is_the_one_that_is_enforced(root: Path) -> None:
    published = json.loads((root / "docs" / "deployment.schema.json").read_text(encoding="utf-8"))
    assert published == deployment.schema(), (
        "write it again: python -m inferway.deployment > docs/deployment.schema.json"
    )


def test_the_schema_names_every_key_at_the_top() -> None:
    assert list(deployment.schema()["properties"]) == list(KEYS)
    assert deployment.schema()["required"] == ["tasks"]


def nodes_of(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [node for item in value for node in nodes_of(item)]
    if isinstance(value, dict):
        return [value, *(node for item in value.values() for node in nodes_of(item))]
    return []


def test_the_schema_uses_only_words_of_json_schema() -> None:
    known = {
        "$defs", "$ref", "$schema", "additionalProperties", "anyOf", "const", "default",
        "description", "enum", "examples", "exclusiveMaximum", "exclusiveMinimum", "items",
        "maxItems", "maximum", "minItems", "minLength", "minProperties", "minimum", "oneOf",
        "pattern", "prefixItems", "properties", "propertyNames", "required", "title", "type",
    }  # fmt: skip

    def words(schema: Any) -> set[str]:
        if not isinstance(schema, dict):
            return set()
        found = set(schema)
        for key in ("properties", "$defs"):
            for inner in schema.get(key, {}).values():
                found |= words(inner)
        for key in ("items", "additionalProperties"):
            found |= words(schema.get(key))
        for key in ("anyOf", "oneOf", "prefixItems"):
            for inner in schema.get(key, []):
                found |= words(inner)
        return found

    assert words(deployment.schema()) <= known


def test_patterns_and_their_examples_agree() -> None:
    patterns = [
        node for node in nodes_of(deployment.schema()) if isinstance(node.get("pattern"), str)
    ]
    assert len(patterns) > 20
    for node in patterns:
        for example in node.get("examples", []):
            assert re.search(node["pattern"], example)
        assert "(?P" not in node["pattern"], "editors use JavaScript's expressions"


def test_every_section_and_key_is_described() -> None:
    for name, section in deployment.schema()["$defs"].items():
        assert section["description"], name
        for key, value in section["properties"].items():
            if "const" not in value and key not in {"process", "policy"}:
                assert value.get("description"), f"{name}.{key}"


def test_the_module_prints_the_schema(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    import runpy

    runpy.run_module("inferway.deployment", run_name="__main__")
    printed = capsys.readouterr().out
    assert printed == (root / "docs" / "deployment.schema.json").read_text(encoding="utf-8")
