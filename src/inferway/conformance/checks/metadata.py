"""Health, readiness and metadata: how the server is, what it says of itself and of its models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from inferway.conformance.client import NotOfferedError, TargetAnswer, ViolationError, expect
from inferway.conformance.report import Check
from inferway.conformance.target import REPOSITORY, Target, answered
from inferway.conformance.tensors import packed

NOBODY: Final = "inferway-conformance-nobody"
"""A name that no model and no version has."""

CONFIGURATION: Final = "model_configuration"
STATISTICS: Final = "statistics"
DURATIONS: Final = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
"""What statistics tell as `{count, ns}`."""

# Servers may count a moment after they have answered.
_COUNTED_S: Final = 1.0
_STATED: Final = (
    "name, inference_count, execution_count, last_inference, batch_stats, and inference_stats with "
    f"count and ns of {', '.join(DURATIONS)}"
)
_BODY: Final = (
    'The Markdown gives the body {"live": true} or {"name", "ready"}, the OpenAPI file none, and '
    "servers in use send none: the status decides, and a body, if there is one, must agree."
)


def _healthy(answer: TargetAnswer, key: str) -> str:
    body = answer.good().plain
    if not body.strip():
        return "200, no body"
    found = answer.json
    expect(
        isinstance(found, dict) and found.get(key, True) is True,
        f"{answer}; expected no body, or {key!r} to be true",
    )
    return f"200, {body.decode('utf-8', 'replace')[:60]}"


def _health(side: str) -> Callable[[Target], str]:
    return lambda target: _healthy(target.get(f"/v2/health/{side}"), "live")


def _model_ready(target: Target) -> str:
    target.needs_unversioned()
    return _healthy(target.get(f"{target.unversioned}/ready"), "ready")


def _version_ready(target: Target) -> str:
    answers = [target.get(f"{target.versioned(one)}/ready") for one in target.offered_versions]
    for answer in answers:
        expect(answer.status in (200, 400, 503), f"{answer}; the metadata name this version")
    ready = [answer for answer in answers if answer.status == 200]
    expect(ready, f"{answers[0]}; expected one version at least to be ready")
    _healthy(ready[0], "ready")
    return f"{len(ready)} of {len(answers)} versions are ready"


def _nobody_ready(target: Target) -> str:
    answer = target.get(f"/v2/models/{NOBODY}/ready").refused("expected 404 or another 4xx")
    return f"status {answer.status}"


def _server(answer: TargetAnswer) -> str:
    match answer.good().json:
        case {"name": str(name), "version": str(number), "extensions": list(listed)} if all(
            isinstance(one, str) for one in listed
        ):
            return f"{name} {number}, extensions: {', '.join(listed) or 'none'}"
    raise ViolationError(f"{answer}; expected name, version and a list of extensions")


def _server_slash(target: Target) -> str:
    answer = target.get("/v2/")
    if answer.status in (301, 302, 307, 308):
        location = answer.headers.get("location", "")
        expect(location.rstrip("/").endswith("/v2"), f"/v2/ leads to {location!r}, expected /v2")
        return f"leads to {location}"
    if answer.status == 404:
        raise NotOfferedError("/v2/ answers 404; /v2 is what the Markdown names")
    _server(answer)
    expect(answer.json == target.get("/v2").json, "/v2/ and /v2 say different things")
    return "the same as /v2"


def _model(target: Target) -> str:
    target.needs_unversioned()
    _complete(target, target.metadata)
    return str(target.signature)


def _versions(target: Target) -> str:
    for one in target.offered_versions:
        answer = target.get(target.versioned(one))
        _complete(target, answer.good("the metadata name this version").json)
    return f"{len(target.versions)} versions: {', '.join(target.versions[:8])}"


def _complete(target: Target, metadata: Any) -> None:
    expect(isinstance(metadata, dict), "the model's metadata are no JSON object")
    name, platform = metadata.get("name"), metadata.get("platform")
    expect(name == target.task, f"the metadata's name is {name!r}, not {target.task!r}")
    expect(isinstance(platform, str), f"the metadata's platform is {platform!r}, not a text")
    listed = metadata.get("versions", [])
    expect(
        isinstance(listed, list) and all(isinstance(one, str) for one in listed),
        f"the metadata's versions are {listed!r}, not a list of texts",
    )
    for side in ("inputs", "outputs"):
        tensors = metadata.get(side)
        described = [
            (one.get("name"), one.get("datatype"), one.get("shape"))
            for one in (tensors if isinstance(tensors, list) else ())
            if isinstance(one, dict)
        ]
        expected = [
            (one.name, one.datatype, list(one.shape)) for one in getattr(target.signature, side)
        ]
        expect(described == expected, f"a version's {side} differ from the model's")


def _consistent(target: Target) -> str:
    outputs = answered(target, target.message()).outputs
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items())
    return f"answered {shapes} as the metadata say"


def _index(target: Target) -> str:
    answer = target.call("POST", "/v2/repository/index", *packed({"ready": True}))
    if answer.status in (404, 405, 501):
        target.needs(REPOSITORY)
    listed = answer.good().json
    expect(isinstance(listed, list), f"{answer}; expected a JSON array")
    for one in listed:
        match one:
            case {"name": str(name), "state": str(state)} if name == target.task:
                expect(state == "READY", f"the index calls {name!r} {state!r}, it answers requests")
                return f"{len(listed)} entries, {name!r} is {state}"
    raise ViolationError(f"the index lacks {target.task!r}, which answers requests")


def _list(target: Target) -> str:
    answer = target.get("/v2/models")
    if 400 <= answer.status < 500 or answer.status == 501:
        raise NotOfferedError(f"{answer}; no document asks for it")
    match answer.good().json:
        case {"models": list(listed)} if all(isinstance(one, str) for one in listed):
            expect(target.task in listed, f"the list lacks {target.task!r}, which answers requests")
            return f"{target.task!r} is listed"
    raise ViolationError(f'{answer}; expected {{"models": ["<name>", ...]}}')


def _configured(target: Target) -> str:
    target.needs(CONFIGURATION)
    bases = [target.base, *map(target.versioned, target.versions)]
    for base in bases:
        configures(target, target.get(f"{base}/config").good().json)
    refusal = _refused(target.get(f"/v2/models/{NOBODY}/config"))
    return f"{len(bases)} agree with the metadata; an unknown model: {refusal}"


def configures(target: Target, found: Any) -> None:
    """Hold a model's configuration to its metadata."""
    expect(isinstance(found, dict), "the configuration is no JSON object")
    expect(
        found.get("name") == target.task,
        f"the configuration's name is {found.get('name')!r}, not {target.task!r}",
    )
    most = found.get("max_batch_size", 0)
    expect(type(most) is int and most >= 0, f"max_batch_size is {most!r}, not a number from 0 on")
    for side in ("input", "output"):
        listed = found.get(side)
        expect(isinstance(listed, list), f"the configuration's {side} is {listed!r}, not a list")
        configured = {
            one.get("name"): (one.get("data_type"), one.get("dims"))
            for one in (listed or ())
            if isinstance(one, dict)
        }
        for tensor in getattr(target.signature, f"{side}s"):
            datatype = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
            wanted = f"TYPE_{datatype}", list(tensor.shape[1:] if most else tensor.shape)
            given = configured.get(tensor.name)
            expect(
                given == wanted,
                f"{side} {tensor.name!r} is configured as {given}, and {wanted} by the metadata",
            )


def _statistics(target: Target) -> str:
    target.needs(STATISTICS)
    everything = target.get("/v2/models/stats")
    if everything.status in (401, 403):
        raise NotOfferedError(f"{everything}; the key does not open them")
    counted(everything.good().json, target.task)
    for one in target.versions:
        counted(target.get(f"{target.versioned(one)}/stats").good().json, target.task, one)
    expect(
        target.get(f"/v2/models/{NOBODY}/stats").status >= 400,
        "statistics are told of a model that does not exist",
    )
    return grows(target, lambda: target.get(f"{target.base}/stats").good().json)


def grows(target: Target, tell: Callable[[], Any]) -> str:
    """Hold statistics to a request that is answered between them."""
    before = counted(tell(), target.task)
    answered(target, target.message())
    until_s = time.monotonic() + _COUNTED_S
    while (after := counted(tell(), target.task)) == before and time.monotonic() < until_s:
        pass
    expect(
        all(later > earlier for earlier, later in zip(before, after, strict=True)),
        f"inferences and successes are {after} after a request and {before} before",
    )
    return f"{after[0] - before[0]} inferences more after a request"


def counted(document: Any, task: str, version: str | None = None) -> tuple[int, int]:
    """Read statistics: rows and requests answered by all versions that are told of.

    ViolationError when they are not of the extension's form, or are of another model or version.
    """
    listed = document.get("model_stats") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ViolationError(f"the statistics are {str(document)[:80]}, expected model_stats")
    rows = requests = 0
    names = []
    for one in listed:
        match one:
            case {
                "name": str(name),
                "inference_count": int(inferences),
                "execution_count": int(),
                "last_inference": int(),
                "inference_stats": dict(stats),
                "batch_stats": list(),
            } if all(_is_duration(stats.get(part)) for part in DURATIONS):
                names.append((name, one.get("version")))
                if name == task:
                    rows += inferences
                    requests += stats["success"]["count"]
            case _:
                raise ViolationError(f"statistics are {str(one)[:160]}; expected {_STATED}")
    expect(task in (name for name, _ in names), f"the statistics lack {task!r}")
    if version is not None:
        expect(names == [(task, version)], f"statistics of version {version!r} are told of {names}")
    return rows, requests


def _is_duration(found: Any) -> bool:
    match found:
        case {"count": int(count), "ns": int(spent)}:
            return count >= 0 and spent >= 0
    return False


def _refused(answer: TargetAnswer) -> str:
    """Hold an answer to the protocol's form of a refusal: 4xx, and `{"error": "<why>"}`."""
    match answer.refused().json:
        case {"error": str(reason)}:
            expect(reason, f"{answer}; the error says nothing")
            return f"{answer.status}: {reason[:120]}"
    raise ViolationError(f'{answer}; expected {{"error": "<why>"}}')


def refusal(
    name: str, clause: str, send: Callable[[Target], Iterable[TargetAnswer]], reading: str = ""
) -> Check:
    """Make a check of requests that are all to be refused; the last one's answer is evidence."""
    return Check(
        name, clause, lambda target: [_refused(answer) for answer in send(target)][-1], reading
    )


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
    Check("health: live", "inference_rest.md, Server Live", _health("live"), _BODY),
    Check("health: ready", "inference_rest.md, Server Ready", _health("ready"), _BODY),
    Check("health: model ready", "inference_rest.md, Model Ready", _model_ready, _BODY),
    Check(
        "health: versions ready",
        "inference_rest.md, Model Ready; open_inference_rest.yaml, .../ready",
        _version_ready,
        _BODY,
    ),
    Check(
        "health: an unknown model is not ready",
        "inference_rest.md, Model Ready",
        _nobody_ready,
        "Neither document says how a model that does not exist answers; RFC 9110 has 404 for it, "
        "and any 4xx passes.",
    ),
    Check(
        "metadata: server",
        "inference_rest.md, Server Metadata",
        lambda target: _server(target.get("/v2")),
    ),
    Check(
        "metadata: server, with a slash",
        "open_inference_rest.yaml, /v2/",
        _server_slash,
        "The Markdown names v2, the OpenAPI file /v2/: the first is required, the second may "
        "answer the same, redirect, or be absent.",
    ),
    Check("metadata: model", "inference_rest.md, Model Metadata", _model, f"{_PATHS} {_TENSORS}"),
    Check(
        "metadata: versions",
        "inference_rest.md, Model Metadata; open_inference_rest.yaml, .../versions/",
        _versions,
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
        _consistent,
    ),
    Check(
        "metadata: repository index",
        "extension_model_repository.md, Index",
        _index,
        "Asked for in any case: servers have it and do not name it among their extensions.",
    ),
    Check(
        "metadata: list of models",
        "no document; GET /v2/models as KServe's own servers answer it",
        _list,
        "Not asked for by the protocol: any 4xx is not offered.",
    ),
    Check(
        "metadata: model configuration",
        "extension_model_configuration.md",
        _configured,
        "Without the batch axis where max_batch_size is above 0, as model_configuration.md says.",
    ),
    Check(
        "metadata: statistics",
        "extension_statistics.md",
        _statistics,
        "Counts may follow the answer a moment later.",
    ),
)
