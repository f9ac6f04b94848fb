"""Paths and who answers them, as the Open Inference Protocol v2 names them.

`document` describes them as OpenAPI 3.1, made of the messages that are decoded: it is served, and
`python -m inferway.live.http` prints it for docs/.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache, partial
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import msgspec

from inferway.live.explain import KEPT
from inferway.live.extensions import config_of, statistics_of
from inferway.live.feedback import FeedbackItem, Joined
from inferway.live.http.compression import unpacking
from inferway.live.http.exchange import ENCODING, RETRY, Exchange, Handler, Limits
from inferway.live.http.feedback import Deleted, FeedbackPages, TaskAccuracy
from inferway.live.http.inference import Infer
from inferway.live.intake import Intake
from inferway.live.intake import unknown as why_unknown
from inferway.live.security.keys import ANY_KEY, ANYBODY, Role
from inferway.live.site import TaskSite
from inferway.protocol import RefusalError, messages
from inferway.protocol.messages import encode
from inferway.protocol.tensors import finished
from inferway.protocol.triton import ModelConfig, StatisticsList
from inferway.unreadable import UNREADABLE, fault
from inferway.version import __version__

EXTENSIONS: Final = ["binary_tensor_data", "model_configuration", "statistics"]
# Bytes that a packed question for the repository's index may unpack to.
_LONGEST_INDEX: Final = 64 * 1024

_REF: Final = "#/components/schemas/{name}"
_ERRORS: Final = {
    400: "Malformed, or it does not fit the task.",
    401: "The server has keys, and none of them came with the request.",
    403: "The key is for something else, or the server has none.",
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


class Routes:
    """A table from paths to handlers by method.

    `unknown` says in a sentence why a path leads nowhere, which is told with the `status`.
    """

    def __init__(self, unknown: Callable[[str], str], status: int = 404) -> None:
        self._unknown, self._status = unknown, status
        self._paths: dict[bytes, dict[bytes, Handler]] = {}
        self._below: dict[bytes, tuple[Sequence[bytes], Callable[[Exchange, bytes], None]]] = {}
        self._roles: dict[bytes, int] = {}

    def read(self, path: str, handler: Handler, role: int) -> None:
        """Answer GET and HEAD of who has the role."""
        self._add(path, {b"GET": handler, b"HEAD": handler}, role)

    def post(self, path: str, handler: Handler, role: int) -> None:
        """Answer POST of who has the role."""
        self._add(path, {b"POST": handler}, role)

    def read_below(self, path: str, handler: Callable[[Exchange, bytes], None], role: int) -> None:
        """Answer GET and HEAD of whatever stands after the path and a slash."""
        start = f"{path}/".encode()
        self._below[start], self._roles[start] = ((b"GET", b"HEAD"), handler), role

    def delete_below(
        self, path: str, handler: Callable[[Exchange, bytes], None], role: int
    ) -> None:
        """Answer DELETE, of who has the role, of whatever stands after the path and a slash."""
        start = f"{path}/".encode()
        self._below[start], self._roles[start] = ((b"DELETE",), handler), role

    def clear(self, path: str) -> None:
        """Forget a path and all that is below it."""
        for start in {path.encode(), quote(path).encode()}:
            below = start + b"/"
            for table in (self._paths, self._below, self._roles):
                for target in [one for one in table if one == start or one.startswith(below)]:
                    del table[target]

    def role(self, target: bytes) -> int:
        """Tell which role a target asks for; what leads nowhere is told to any key."""
        # A path with a slash at its end may be the start of others, and none itself.
        for path in (target, plain_path(target)):
            if path in self._paths:
                return self._roles[path]
        start = self._start_of(path)
        return ANY_KEY if start is None else self._roles[start]

    def find(self, method: bytes, target: bytes) -> Handler:
        """Find who answers; whoever does not know the path or the method says so."""
        methods = self._paths.get(target)
        if methods is None:
            methods = self._paths.get(path := plain_path(target))
            if methods is None:
                start = self._start_of(path)
                if start is None:
                    status, extra = self._status, RETRY if self._status == 503 else b""
                    reason = self._unknown(path.decode("utf-8", "replace")[:256])
                    return lambda exchange: exchange.refuse(status, reason, extra)
                (taken, below), rest = self._below[start], path[len(start) :]
                methods = dict.fromkeys(taken, lambda exchange: below(exchange, rest))
        handler = methods.get(method)
        if handler is not None:
            return handler
        allowed = b", ".join(methods)
        reason = f"{method.decode('latin-1')} is not answered here; use {allowed.decode()}"
        return lambda exchange: exchange.refuse(405, reason, b"Allow: %s\r\n" % allowed)

    def _start_of(self, path: bytes) -> bytes | None:
        return next((at for at in self._below if path.startswith(at) and path != at), None)

    def _add(self, path: str, handlers: Mapping[bytes, Handler], role: int) -> None:
        for written in {path.encode(), quote(path).encode()}:
            self._paths.setdefault(written, {}).update(handlers)
            # A key is looked at before the method is of interest.
            assert self._roles.setdefault(written, role) == role, f"{path} has two roles"


def plain_path(target: bytes) -> bytes:
    """Reduce a request target to its path: no scheme, host, query or percent signs."""
    path = target.partition(b"?")[0]
    if not path.startswith(b"/"):
        _, scheme, rest = path.partition(b"://")
        path = b"/" + rest.partition(b"/")[2] if scheme else path
    return unquote_to_bytes(path)


def inference_routes(
    sites: Mapping[str, TaskSite], ready: Callable[[], bool], limits: Limits
) -> Routes:
    """Lay out the protocol's paths for the tasks of sites.

    `ready` tells whether the server as a whole is.
    """

    def served() -> list[TaskSite]:
        return [site for site in sites.values() if site.present is not None]

    def unknown(path: str) -> str:
        parts = path.split("/")
        if parts[:3] == ["", "v2", "models"] and len(parts) > 3:
            named = parts[5] if len(parts) > 5 and parts[4] == "versions" else None
            site = sites.get(parts[3])
            if site is None or site.present is None or (named and named not in site.pool.versions):
                return why_unknown(served(), parts[3], named)
        return f"there is nothing at {path}"

    def entry(site: TaskSite, variant: str, all_ready: bool) -> messages.IndexEntry:
        reason = "" if site.serves(variant) else "no instance of it is healthy"
        reason = reason if all_ready else "the server is not ready"
        return messages.IndexEntry(site.task, variant, "UNAVAILABLE" if reason else "READY", reason)

    def index(exchange: Exchange) -> None:
        """Answer with an entry for each variant of each task, or for what is ready."""
        body: bytes | bytearray = exchange.body
        try:
            if (encoding := exchange.headers.get(ENCODING)) is not None:
                limit = min(_LONGEST_INDEX, limits.body_bytes)
                body = finished(unpacking(exchange.body, encoding, limit))
            # Clients of Triton send no body at all where they want everything.
            only_ready = bool(body) and messages.decode_index(body).ready
        except RefusalError as refusal:
            exchange.refuse(refusal.status, refusal.reason)
        except UNREADABLE as error:
            exchange.refuse(400, f"the request is not valid: {fault(error)}")
        else:
            all_ready = ready()
            entries = (
                entry(site, one, all_ready) for site in served() for one in site.pool.versions
            )
            listed = [one for one in entries if not only_ready or one.state == "READY"]
            exchange.respond(200, encode(listed))

    def list_tasks(exchange: Exchange) -> None:
        exchange.respond(200, encode(messages.TaskList([site.task for site in served()])))

    routes = Routes(unknown)
    metadata = encode(messages.ServerMetadata("inferway", __version__, EXTENSIONS))
    for path in ("/v2", "/v2/"):
        routes.read(path, _constant(metadata), Role.INFER)
    routes.read("/v2/openapi.json", _constant(encode(document())), Role.INFER)
    routes.read("/v2/health/live", _constant(b""), ANYBODY)
    routes.read("/v2/health/ready", _health(ready), ANYBODY)
    routes.post("/v2/repository/index", index, Role.INFER)
    routes.read("/v2/models", list_tasks, Role.INFER)
    # A task of this name takes the path over.
    routes.read("/v2/models/stats", _statistics(served), Role.READ)
    for site in sites.values():
        lay_out(routes, site, ready, limits)
    return routes


def lay_out(
    routes: Routes,
    site: TaskSite,
    ready: Callable[[], bool],
    limits: Limits,
    before: Set[str] | None = None,
) -> None:
    """Lay out a task's paths, for the fleet that answers now, or for none.

    Where paths are laid out for the variants of the fleet `before`, only those change that do: what
    is said on the others is of whichever fleet answers then.
    """
    own, variants = f"/v2/models/{site.task}", site.versions
    if before is None or variants is None:
        routes.clear(own)
    pages = FeedbackPages(site, limits)

    def lay_out_feedback() -> None:
        routes.post(f"{own}/feedback", pages.take, Role.FEEDBACK)
        routes.delete_below(f"{own}/feedback", pages.delete, Role.FEEDBACK)
        routes.read(f"{own}/accuracy", pages.tell, Role.READ)

    if variants is None:
        lay_out_feedback()  # on the answers of before
        reason = site.unready

        def refuse(exchange: Exchange) -> None:
            exchange.refuse(503, reason, RETRY)

        def refuse_request(exchange: Exchange) -> None:
            site.entered += 1  # whoever decides on copies is to know
            refuse(exchange)

        routes.post(f"{own}/infer", refuse_request, Role.INFER)
        routes.read(f"{own}/ready", refuse, Role.INFER)
        return

    def lay_out_below(base: str, variant: str | None) -> None:
        routes.read(base, partial(_describe, site), Role.INFER)
        routes.read(f"{base}/ready", _health(ready, partial(site.serves, variant)), Role.INFER)
        routes.post(f"{base}/infer", Infer(Intake(site, variant, limits)), Role.INFER)
        routes.read(f"{base}/config", partial(_configure, site, variant), Role.INFER)
        routes.read(f"{base}/stats", _statistics(lambda: [site], variant), Role.READ)

    def explain(exchange: Exchange, identity: bytes) -> None:
        explanation = site.log.explain(identity)
        if explanation is not None:
            exchange.respond(200, encode(explanation))
            return
        shown = identity.decode("utf-8", "replace")[:128]
        exchange.refuse(404, f"no request {shown!r} among the last {KEPT} of task {site.task!r}")

    if before is None:
        before = frozenset()
        lay_out_below(own, None)
        routes.read_below(f"{own}/explain", explain, Role.READ)
        lay_out_feedback()
    for variant in before - variants:
        routes.clear(f"{own}/versions/{variant}")
    for variant in variants - before:
        lay_out_below(f"{own}/versions/{variant}", variant)


def _describe(site: TaskSite, exchange: Exchange) -> None:
    pool = site.pool
    sides = (
        [messages.TensorMetadata(tensor.name, tensor.datatype, tensor.shape) for tensor in side]
        for side in (pool.signature.inputs, pool.signature.outputs)
    )
    said = messages.TaskMetadata(site.task, list(pool.versions), "inferway", *sides)
    exchange.respond(200, encode(said))


def _configure(site: TaskSite, variant: str | None, exchange: Exchange) -> None:
    exchange.respond(200, encode(config_of(site, variant)))


def _constant(body: bytes) -> Handler:
    return lambda exchange: exchange.respond(200, body)


def _statistics(sites: Callable[[], Sequence[TaskSite]], variant: str | None = None) -> Handler:
    def tell(exchange: Exchange) -> None:
        exchange.respond(200, encode(StatisticsList(statistics_of(sites(), variant))))

    return tell


def _health(*checks: Callable[[], bool]) -> Handler:
    return lambda exchange: exchange.respond(200 if all(check() for check in checks) else 503)


@cache
def document() -> dict[str, Any]:
    """Make the document."""
    # Data that is decoded later has no schema of its own.
    many: Any = list
    given = _with(messages.InputMessage, data=list[Any] | None)
    asked = _with(messages.InferMessage, inputs=many[given])
    kinds = (
        asked, messages.AnswerMessage, messages.ServerMetadata, messages.TaskMetadata,
        messages.IndexMessage, list[messages.IndexEntry], messages.TaskList, ModelConfig,
        StatisticsList, list[FeedbackItem] | FeedbackItem, Joined, Deleted, TaskAccuracy,
    )  # fmt: skip
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    infer, answer, server, task, wanted, listed, names, config, statistics, *more = schemas
    feedback, joined, deleted, accuracy = more
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
        "responses": _responses(
            "An answer.", _json(answer) | raw, *(one for one in _ERRORS if one != 403)
        ),
    }
    paths: dict[str, Any] = {
        "/v2": _described("Name, version and extensions of the server", server),
        "/v2/health/live": _asked("Whether the process serves", []),
        "/v2/health/ready": _asked("Whether all models are warm and the server stays", []),
        "/v2/openapi.json": _described("This document", {"type": "object"}),
        "/v2/repository/index": {"parameters": [], "post": index},
        "/v2/models": _described("Every task's name", names),
        "/v2/models/stats": _described("What every task's variants have done", statistics),
        "/v2/models/{task}/explain/{request}": _described(
            "Why a request was answered as it was", {"type": "object"}, _TASK, _REQUEST
        ),
    }
    refusals = (400, 401, 403, 404, 413, 415, 503)
    paths["/v2/models/{task}/feedback"] = {
        "parameters": [_TASK],
        "post": {
            "summary": "Say how right answers were",
            "requestBody": {"required": True, "content": _json(feedback)},
            "responses": _responses("Taken.", _json(joined), *refusals),
        },
    }
    paths["/v2/models/{task}/feedback/{request}"] = {
        "parameters": [_TASK, _REQUEST],
        "delete": {
            "summary": "Delete an answer and its feedback",
            "responses": _responses("Deleted.", _json(deleted), 401, 403, 404, 503),
        },
    }
    paths["/v2/models/{task}/accuracy"] = _described(
        "Accuracy of every variant by profile and by feedback", accuracy, _TASK
    )
    for base, parameters in (
        ("/v2/models/{task}", [_TASK]),
        ("/v2/models/{task}/versions/{variant}", [_TASK, _VARIANT]),
    ):
        paths[base] = _described("Inputs, outputs and variants", task, *parameters)
        paths[f"{base}/ready"] = _asked("Whether the task can be served", parameters)
        paths[f"{base}/config"] = _described("Triton's configuration", config, *parameters)
        paths[f"{base}/stats"] = _described("What variants have done", statistics, *parameters)
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
    fields: list[Any] = [
        (one.name, types.get(one.name, one.type))
        if one.required
        else (one.name, types.get(one.name, one.type), None if one.name in types else one.default)
        for one in msgspec.structs.fields(kind)
    ]
    return msgspec.defstruct(kind.__name__, fields)


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _responses(said: str, content: Any, *statuses: int) -> dict[str, Any]:
    refusal = _json({"$ref": _REF.format(name="Error")})
    answers = {str(one): {"description": _ERRORS[one], "content": refusal} for one in statuses}
    return {"200": {"description": said} | ({"content": content} if content else {})} | answers


def _described(summary: str, schema: Any, *parameters: Any) -> dict[str, Any]:
    responses = _responses("Found.", _json(schema), 401, 404, 503)
    return {"parameters": [*parameters], "get": {"summary": summary, "responses": responses}}


def _asked(summary: str, parameters: list[Any]) -> dict[str, Any]:
    responses = _responses("Yes.", None) | {"503": {"description": "No."}}
    if parameters:
        responses |= _responses("Yes.", None, 401, 404)
    return {"parameters": parameters, "get": {"summary": summary, "responses": responses}}
