"""What the server says of itself and of its models."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from inferway.conformance.answer import answered
from inferway.conformance.checks.health import NOBODY
from inferway.conformance.client import Answer
from inferway.conformance.errors import NotOfferedError, ViolationError
from inferway.conformance.message import packed
from inferway.conformance.outcome import Check
from inferway.conformance.target import REPOSITORY, Target

_REDIRECTS: Final = (301, 302, 307, 308)


def server(target: Target) -> str:
    """`/v2` gives name, version and extensions."""
    return _server(target.get("/v2"))


def server_slash(target: Target) -> str:
    """`/v2/` gives the same, or leads there."""
    answer = target.get("/v2/")
    if answer.status in _REDIRECTS:
        where = answer.headers.get("location", "")
        if not where.rstrip("/").endswith("/v2"):
            raise ViolationError(f"/v2/ leads to {where!r}, expected /v2")
        return f"leads to {where}"
    if answer.status == 404:
        raise NotOfferedError("/v2/ answers 404; /v2 is what the Markdown names")
    _server(answer)
    if answer.json != target.get("/v2").json:
        raise ViolationError("/v2/ and /v2 say different things")
    return "the same as /v2"


def model(target: Target) -> str:
    """The model's metadata are complete."""
    if target.base != target.unversioned:
        raise NotOfferedError(f"{target.get(target.unversioned)}; versions are asked for")
    _model(target, target.metadata)
    return str(target.signature)


def version(target: Target) -> str:
    """Every version that the metadata name has the same inputs and outputs."""
    if not target.versions:
        raise NotOfferedError("the model's metadata name no versions")
    for one in target.versions:
        answer = target.get(target.versioned(one))
        if answer.status != 200:
            raise ViolationError(f"{answer}; the metadata name this version")
        _model(target, answer.json)
    return f"{len(target.versions)} versions: {', '.join(target.versions[:8])}"


def consistent(target: Target) -> str:
    """An answer has the outputs that the metadata name, no more and no fewer."""
    outputs = answered(target, target.message()).outputs
    found = ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items())
    return f"answered {found} as the metadata say"


def index(target: Target) -> str:
    """The repository index lists the model as ready."""
    answer = target.call("POST", "/v2/repository/index", *packed({"ready": True}))
    if answer.status in (404, 405, 501):
        target.needs(REPOSITORY)
    if answer.status != 200:
        raise ViolationError(f"{answer}; expected 200")
    listed = answer.json
    if not isinstance(listed, list):
        raise ViolationError(f"{answer}; expected a JSON array")
    for one in listed:
        match one:
            case {"name": str(name), "state": str(state)} if name == target.task:
                if state != "READY":
                    raise ViolationError(f"the index calls {name!r} {state!r}, it answers requests")
                return f"{len(listed)} entries, {name!r} is {state}"
    raise ViolationError(f"the index lacks {target.task!r}, which answers requests")


def refused(answer: Answer) -> str:
    """Tell that an answer is a refusal in the protocol's form.

    Raises
    ------
    ViolationError
        When its status is not 4xx, or its body is not `{"error": "<why>"}`.
    """
    if not 400 <= answer.status < 500:
        raise ViolationError(f"{answer}; expected 4xx")
    found = answer.json
    if not isinstance(found, dict) or not isinstance(reason := found.get("error"), str):
        raise ViolationError(f'{answer}; expected {{"error": "<why>"}}')
    if not reason:
        raise ViolationError(f"{answer}; the error says nothing")
    return f"{answer.status}: {reason[:120]}"


def refusal(
    name: str, clause: str, send: Callable[[Target], Iterable[Answer]], reading: str = ""
) -> Check:
    """Make a check of requests that are all to be refused; the last one's answer is evidence."""

    def run(target: Target) -> str:
        evidence = ""
        for answer in send(target):
            evidence = refused(answer)
        return evidence

    return Check(name, clause, run, reading)


def _server(answer: Answer) -> str:
    if answer.status != 200:
        raise ViolationError(f"{answer}; expected 200")
    match answer.json:
        case {"name": str(name), "version": str(number), "extensions": list(listed)} if all(
            isinstance(one, str) for one in listed
        ):
            return f"{name} {number}, extensions: {', '.join(listed) or 'none'}"
    raise ViolationError(f"{answer}; expected name, version and a list of extensions")


def _model(target: Target, found: Any) -> None:
    if not isinstance(found, dict):
        raise ViolationError("the model's metadata are no JSON object")
    if found.get("name") != target.task:
        raise ViolationError(f"the metadata's name is {found.get('name')!r}, not {target.task!r}")
    if not isinstance(found.get("platform"), str):
        raise ViolationError(f"the metadata's platform is {found.get('platform')!r}, not a text")
    listed = found.get("versions", [])
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise ViolationError(f"the metadata's versions are {listed!r}, not a list of texts")
    own = target.signature
    for side, tensors in (("inputs", own.inputs), ("outputs", own.outputs)):
        said = found.get(side)
        kept = [
            {"name": one.name, "datatype": one.datatype, "shape": list(one.shape)}
            for one in tensors
        ]
        plain = [
            {key: one.get(key) for key in ("name", "datatype", "shape")}
            for one in (said if isinstance(said, list) else ())
            if isinstance(one, dict)
        ]
        if plain != kept:
            raise ViolationError(f"a version's {side} differ from the model's")


_PATHS: Final = (
    "The Markdown makes the version in a path optional, the OpenAPI file lists versioned paths "
    "only, and clients ask without one: the Markdown counts, and a server that refuses paths "
    "without a version is asked with one."
)
_TENSORS: Final = (
    "The OpenAPI file leaves inputs and outputs optional, the Markdown does not: without them no "
    "client can build a request."
)

CHECKS: Final = (
    Check("metadata: server", "inference_rest.md, Server Metadata", server),
    Check(
        "metadata: server, with a slash",
        "open_inference_rest.yaml, /v2/",
        server_slash,
        "The Markdown names v2, the OpenAPI file /v2/: the first is required, the second may "
        "answer the same, redirect, or be absent.",
    ),
    Check("metadata: model", "inference_rest.md, Model Metadata", model, f"{_PATHS} {_TENSORS}"),
    Check(
        "metadata: versions",
        "inference_rest.md, Model Metadata; open_inference_rest.yaml, .../versions/",
        version,
        "Versions are optional; those that the metadata name must answer.",
    ),
    refusal(
        "metadata: an unknown model is refused",
        "inference_rest.md, Model Metadata Response JSON Error Object",
        lambda target: [target.get(f"/v2/models/{NOBODY}")],
    ),
    refusal(
        "metadata: an unknown version is refused",
        "inference_rest.md, Model Metadata Response JSON Error Object",
        lambda target: [target.get(target.versioned(NOBODY))],
    ),
    Check(
        "metadata: answers have the outputs that are named",
        "inference_rest.md, Model Metadata and Inference Response JSON Object",
        consistent,
    ),
    Check(
        "metadata: repository index",
        "extension_model_repository.md, Index",
        index,
        "Asked for in any case: servers have it and do not name it among their extensions.",
    ),
)
