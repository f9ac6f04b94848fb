"""The inference listener as an OpenAPI 3.1 document, made of the messages that it decodes.

`GET /v2/openapi.json` serves it; `python -m inferway.live.http` prints it for docs/.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec

from inferway.protocol import messages
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
_STRING: Final = {"schema": {"type": "string"}}
_TASK, _VARIANT, _REQUEST = (
    {"name": name, "in": "path", "required": True, **_STRING}
    for name in ("task", "variant", "request")
)
_HEADERS: Final = [
    {"name": name, "in": "header", "required": False, "description": text, **schema}
    for name, text, schema in (
        ("X-Request-Id", "Comes back with the answer; made where it is absent.", _STRING),
        ("traceparent", "W3C Trace Context.", _STRING),
        ("tracestate", "The same; only beside a traceparent.", _STRING),
        (
            "Inference-Header-Content-Length",
            "Length of the JSON part where raw tensors follow it.",
            {"schema": {"type": "integer", "minimum": 0}},
        ),
    )
]


@cache
def document() -> dict[str, Any]:
    """Make the document."""
    # Data that is decoded later has no schema of its own.
    many: Any = list
    given = _with(messages.InputMessage, data=list[Any])
    asked = _with(messages.InferMessage, inputs=many[given])
    kinds = (
        asked, messages.AnswerMessage, messages.ServerMetadata, messages.TaskMetadata,
        messages.IndexMessage, list[messages.IndexEntry],
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
    raw = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    index = {
        "summary": "Every task's variants, and whether they answer",
        "requestBody": {"required": False, "content": _json(wanted)},
        "responses": _responses("Listed.", _json(listed), 400, 401, 413, 415, 503),
    }
    run = {
        "summary": "Infer",
        "parameters": _HEADERS,
        "requestBody": {"required": True, "content": _json(infer) | raw},
        "responses": _responses("An answer.", _json(answer) | raw, *_ERRORS),
    }
    thing = {"type": "object"}
    paths: dict[str, Any] = {
        "/v2": _read("Name, version and extensions of the server", server),
        "/v2/health/live": _health("Whether the process serves", []),
        "/v2/health/ready": _health("Whether all models are warm and the server stays", []),
        "/v2/openapi.json": _read("This document", thing),
        "/v2/repository/index": {"parameters": [], "post": index},
        "/v2/models/{task}/explain/{request}": _read(
            "Why a request was answered as it was", thing, _TASK, _REQUEST
        ),
    }
    for base, parameters in (
        ("/v2/models/{task}", [_TASK]),
        ("/v2/models/{task}/versions/{variant}", [_TASK, _VARIANT]),
    ):
        paths[base] = _read("Inputs, outputs and variants", task, *parameters)
        paths[f"{base}/ready"] = _health("Whether the task can be served", parameters)
        paths[f"{base}/infer"] = {"parameters": parameters, "post": run}
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


def _with(kind: type[msgspec.Struct], **types: Any) -> Any:
    """Make the message with other types, and without the defaults of what they replace."""
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        given = types.get(field.name, field.type)
        if field.required:
            fields.append((field.name, given))
        elif field.name in types:
            fields.append((field.name, given | None, None))
        else:
            fields.append((field.name, given, field.default))
    return msgspec.defstruct(kind.__name__, fields)


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _responses(said: str, content: Any, *statuses: int) -> dict[str, Any]:
    refusal = _json({"$ref": _REF.format(name="Error")})
    answers = {str(one): {"description": _ERRORS[one], "content": refusal} for one in statuses}
    return {"200": {"description": said} | ({"content": content} if content else {})} | answers


def _read(summary: str, schema: Any, *parameters: Any) -> dict[str, Any]:
    responses = _responses("Found.", _json(schema), 401, 404, 503)
    return {"parameters": [*parameters], "get": {"summary": summary, "responses": responses}}


def _health(summary: str, parameters: list[Any]) -> dict[str, Any]:
    responses = _responses("Yes.", None) | {"503": {"description": "No."}}
    if parameters:
        responses |= _responses("Yes.", None, 401, 404)
    return {"parameters": parameters, "get": {"summary": summary, "responses": responses}}
