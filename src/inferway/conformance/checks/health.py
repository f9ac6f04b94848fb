"""Is the server there, and is it ready: `/v2/health` and the models' `/ready`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from inferway.conformance.client import Answer, expect
from inferway.conformance.report import Check
from inferway.conformance.target import Target

NOBODY: Final = "inferway-conformance-nobody"
"""A name that no model and no version has."""

_BODY: Final = (
    'The Markdown gives the body {"live": true} or {"name", "ready"}, the OpenAPI file none, and '
    "servers in use send none: the status decides, and a body, if there is one, must agree."
)


def _healthy(answer: Answer, key: str) -> str:
    body = answer.good().plain
    if not body.strip():
        return "200, no body"
    found = answer.json
    expect(
        isinstance(found, dict) and found.get(key, True) is True,
        f"{answer}; expected no body, or {key!r} to be true",
    )
    return f"200, {body.decode('utf-8', 'replace')[:60]}"


def _server(side: str) -> Callable[[Target], str]:
    return lambda target: _healthy(target.get(f"/v2/health/{side}"), "live")


def _model_ready(target: Target) -> str:
    """The model is ready under the path without a version."""
    target.needs_unversioned()
    return _healthy(target.get(f"{target.unversioned}/ready"), "ready")


def _version_ready(target: Target) -> str:
    """Every version that the metadata name answers, and one at least is ready."""
    answers = [target.get(f"{target.versioned(one)}/ready") for one in target.offered_versions]
    for answer in answers:
        expect(answer.status in (200, 400, 503), f"{answer}; the metadata name this version")
    ready = [answer for answer in answers if answer.status == 200]
    expect(ready, f"{answers[0]}; expected one version at least to be ready")
    _healthy(ready[0], "ready")
    return f"{len(ready)} of {len(answers)} versions are ready"


def _nobody_ready(target: Target) -> str:
    """A model that does not exist is not ready."""
    answer = target.get(f"/v2/models/{NOBODY}/ready").refused("expected 404 or another 4xx")
    return f"status {answer.status}"


CHECKS: Final = (
    Check("health: live", "inference_rest.md, Server Live", _server("live"), _BODY),
    Check("health: ready", "inference_rest.md, Server Ready", _server("ready"), _BODY),
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
)
