"""Is the server there, and is it ready: `/v2/health` and the models' `/ready`."""

from __future__ import annotations

from typing import Final

from inferway.conformance.client import Answer
from inferway.conformance.errors import NotOfferedError, ViolationError
from inferway.conformance.outcome import Check
from inferway.conformance.target import Target

NOBODY: Final = "inferway-conformance-nobody"
"""A name that no model and no version has."""

_BODY: Final = (
    'The Markdown gives the body {"live": true} or {"name", "ready"}, the OpenAPI file none, and '
    "servers in use send none: the status decides, and a body, if there is one, must agree."
)


def live(target: Target) -> str:
    """Liveness answers 200."""
    return _healthy(target.get("/v2/health/live"), "live")


def ready(target: Target) -> str:
    """Readiness answers 200 on a server that serves a model."""
    return _healthy(target.get("/v2/health/ready"), "live")


def model_ready(target: Target) -> str:
    """The model is ready under the path without a version."""
    if target.base != target.unversioned:
        raise NotOfferedError(f"{target.get(target.unversioned)}; versions are asked for")
    return _healthy(target.get(f"{target.unversioned}/ready"), "ready")


def version_ready(target: Target) -> str:
    """Every version that the metadata name answers, and one at least is ready."""
    if not target.versions:
        raise NotOfferedError("the model's metadata name no versions")
    answers = [target.get(f"{target.versioned(one)}/ready") for one in target.versions]
    for answer in answers:
        if answer.status not in (200, 400, 503):
            raise ViolationError(f"{answer}; the metadata name this version")
    good = [answer for answer in answers if answer.status == 200]
    if not good:
        raise ViolationError(f"{answers[0]}; expected one version at least to be ready")
    _healthy(good[0], "ready")
    return f"{len(good)} of {len(answers)} versions are ready"


def nobody_ready(target: Target) -> str:
    """A model that does not exist is not ready."""
    answer = target.get(f"/v2/models/{NOBODY}/ready")
    if not 400 <= answer.status < 500:
        raise ViolationError(f"{answer}; expected 404 or another 4xx")
    return f"status {answer.status}"


def _healthy(answer: Answer, key: str) -> str:
    if answer.status != 200:
        raise ViolationError(f"{answer}; expected 200")
    if not answer.plain.strip():
        return "200, no body"
    found = answer.json
    if not isinstance(found, dict) or found.get(key, True) is not True:
        raise ViolationError(f"{answer}; expected no body, or {key!r} to be true")
    return f"200, {answer.plain.decode('utf-8', 'replace')[:60]}"


CHECKS: Final = (
    Check("health: live", "inference_rest.md, Server Live", live, _BODY),
    Check("health: ready", "inference_rest.md, Server Ready", ready, _BODY),
    Check("health: model ready", "inference_rest.md, Model Ready", model_ready, _BODY),
    Check(
        "health: versions ready",
        "inference_rest.md, Model Ready; open_inference_rest.yaml, .../ready",
        version_ready,
        _BODY,
    ),
    Check(
        "health: an unknown model is not ready",
        "inference_rest.md, Model Ready",
        nobody_ready,
        "Neither document says how a model that does not exist answers; RFC 9110 has 404 for it, "
        "and any 4xx passes.",
    ),
)
