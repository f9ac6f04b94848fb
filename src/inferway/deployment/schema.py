"""The deployment file's JSON Schema, with which editors complete and check while one types."""

from __future__ import annotations

import copy
import functools
from typing import Any

from inferway.deployment.document import Document

__all__ = ["outline", "schema"]


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that ``docs/deployment.schema.json`` publishes."""
    return copy.deepcopy(outline())


@functools.cache
def outline() -> dict[str, Any]:
    """Return the schema itself, made once, for those who only read it."""
    tidy: dict[str, Any] = _tidy(Document.model_json_schema(by_alias=True))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Inferway deployment",
        **tidy,
    }


# Limits that pydantic leaves under its own names where a validator of ours comes first.
_KEYWORDS = {"ge": "minimum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}


def _says(key: str, node: dict[str, Any]) -> bool:
    """Whether a keyword tells an editor anything: titles and nulls do not, nor 60.0 for 60 s."""
    value = node[key]
    match key:
        case "title":
            return not isinstance(value, str)
        case "discriminator":
            return "oneOf" not in node
        case "default":
            return value is not None and not ("pattern" in node and isinstance(value, float))
        case _:
            return True


def _tidy(node: Any) -> Any:
    """Drop what pydantic adds for its own use: titles, and null for keys that are left out."""
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {
        _KEYWORDS.get(key, key): _tidy(value) for key, value in node.items() if _says(key, node)
    }
    members = [member for member in kept.get("anyOf", ()) if member != {"type": "null"}]
    if len(members) == 1:
        del kept["anyOf"]
        # What is said at the key itself (its description) wins over what its type says.
        return {**members[0], **kept}
    if members:
        kept["anyOf"] = members
    return kept
