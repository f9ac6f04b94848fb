"""The inference listener as an OpenAPI 3.1 document, made of the messages that it decodes.

`GET /v2/openapi.json` serves it; `python -m inferway.live.http` prints it for docs/.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec

from inferway.protocol.messages import (
    AnswerMessage,
    IndexEntry,
    IndexMessage,
    InferMessage,
    InputMessage,
    ServerMetadata,
    TaskMetadata,
)
from inferway.version import __version__

_REF: Final = "#/components/schemas/{name}"
_ERRORS: Final = {
    400: "Malformed, or it does not fit the task.",
    401: "The server has keys, and none of them came with the request.",
    404: "Unknown task, variant or request.",
    413: "Over a limit.",
    415: "A content encoding that is not offered.",
    429: "No room, or no answer in time is predicted; Retry-After says when to come back.",
    500: "The model failed.",
    501: "An extension that is not offered.",
    503: "Starting, stopping or not ready.",
    504: "The deadline passed while the request was queued.",
}
_TASK: Final = {"name": "task", "in": "path", "required": True, "schema": {"type": "string"}}
_VARIANT: Final = _TASK | {"name": "variant"}
_REQUEST: Final = _TASK | {"name": "request"}
_NAMES: Final = [
    {
        "name": name,
        "in": "header",
        "required": False,
        "description": text,
        "schema": {"type": "string"},
    }
    for name, text in (
        ("X-Request-Id", "Comes back with the answer; made where it is absent."),
        ("traceparent", "W3C Trace Context."),
        ("tracestate", "The same; only beside a traceparent."),
    )
]


@cache
def document() -> dict[str, Any]:
    """Make the document."""
    # Data that is decoded later has no schema of its own.
    many: Any = list
    given = _as_told(InputMessage, data=list[Any])
    asked = _as_told(InferMessage, inputs=many[given])
    kinds = (
        asked, AnswerMessage, ServerMetadata, TaskMetadata, IndexMessage, list[IndexEntry],
    )  # fmt: skip
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    infer, answer, server, task, wanted, listed = schemas
    for name in ("InferParameters", "TensorParameters"):  # what is unknown is ignored
        del components[name]["additionalProperties"]
    components["Error"] = {
        "type": "object",
        "properties": {"error": {"type": "string"}},
        "required": ["error"],
    }
    paths: dict[str, Any] = {
        "/v2": _read("Name, version and extensions of the server", server),
        "/v2/health/live": _health("Whether the process serves", []),
        "/v2/health/ready": _health("Whether all models are warm and the server stays", []),
        "/v2/openapi.json": _read("This document", {"type": "object"}),
        "/v2/repository/index": {"parameters": [], "post": _index(wanted, listed)},
        "/v2/models/{task}/explain/{request}": _read(
            "Why a request was answered as it was", {"type": "object"}, [_TASK, _REQUEST]
        ),
    }
    for base, parameters in (
        ("/v2/models/{task}", [_TASK]),
        ("/v2/models/{task}/versions/{variant}", [_TASK, _VARIANT]),
    ):
        paths[base] = _read("Inputs, outputs and variants", task, parameters)
        paths[f"{base}/ready"] = _health("Whether the task can be served", parameters)
        paths[f"{base}/infer"] = {"parameters": parameters, "post": _infer(infer, answer)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Inferway",
            "version": __version__,
            "description": "The Open Inference Protocol v2; the task is the model, the variant "
            "its version.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _as_told(kind: type[msgspec.Struct], **types: Any) -> Any:
    # The message with other types, and without the defaults of what they replace.
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        if field.name in types:
            told = types[field.name]
            fields.append((field.name, told) if field.required else (field.name, told | None, None))
        elif field.required:
            fields.append((field.name, field.type))
        else:
            fields.append((field.name, field.type, field.default))
    return msgspec.defstruct(kind.__name__, fields)


def _read(summary: str, schema: Any, parameters: list[Any] | None = None) -> dict[str, Any]:
    answers = {
        "200": {"description": "Found.", "content": {"application/json": {"schema": schema}}}
    }
    return {
        "parameters": parameters or [],
        "get": {"summary": summary, "responses": answers | _refusals(401, 404, 503)},
    }


def _health(summary: str, parameters: list[Any]) -> dict[str, Any]:
    answers = {"200": {"description": "Yes."}, "503": {"description": "No."}}
    if parameters:
        answers |= _refusals(401, 404)
    return {"parameters": parameters, "get": {"summary": summary, "responses": answers}}


def _index(wanted: Any, listed: Any) -> dict[str, Any]:
    found = {"description": "Listed.", "content": {"application/json": {"schema": listed}}}
    return {
        "summary": "Every task's variants, and whether they answer",
        "requestBody": {"required": False, "content": {"application/json": {"schema": wanted}}},
        "responses": {"200": found} | _refusals(400, 401, 413, 415, 503),
    }


def _infer(infer: Any, answer: Any) -> dict[str, Any]:
    raw = {"schema": {"type": "string", "format": "binary"}}
    length = {
        "name": "Inference-Header-Content-Length",
        "in": "header",
        "required": False,
        "description": "Length of the JSON part where raw tensors follow it.",
        "schema": {"type": "integer", "minimum": 0},
    }
    content = {"application/json": {"schema": infer}, "application/octet-stream": raw}
    found = {
        "description": "An answer.",
        "content": {"application/json": {"schema": answer}, "application/octet-stream": raw},
    }
    return {
        "summary": "Infer",
        "parameters": [*_NAMES, length],
        "requestBody": {"required": True, "content": content},
        "responses": {"200": found} | _refusals(*_ERRORS),
    }


def _refusals(*statuses: int) -> dict[str, Any]:
    schema = {"$ref": _REF.format(name="Error")}
    content = {"application/json": {"schema": schema}}
    return {str(one): {"description": _ERRORS[one], "content": content} for one in statuses}
