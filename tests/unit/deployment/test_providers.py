"""Execution providers of a variant: how they are written, and where they are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import inferway
from inferway.deployment import DeploymentError, load, measured
from inferway.live.headroom import identity

Write = Callable[..., Path]
LACKS = "the installed ONNX Runtime has no CUDAExecutionProvider; it has"


def one(providers: str, more: str = "") -> str:
    return (
        "tasks:\n  t:\n    variants:\n      a:\n        model: zoo://digits/tiny\n"
        f"        providers: {providers}\n{more}"
    )


def test_names_and_options_keep_their_order(write: Write) -> None:
    text = one("[CUDAExecutionProvider, {CPUExecutionProvider: {use_arena: false, n: 2, x: .5}}]")
    first, second = load(write(text)).tasks["t"].variants["a"].providers
    assert (first.name, first.options) == ("CUDAExecutionProvider", ())
    assert (second.name, dict(second.options)) == (
        "CPUExecutionProvider",
        {"use_arena": "False", "n": "2", "x": "0.5"},
    )
    assert str(second) == "CPUExecutionProvider {use_arena: False, n: 2, x: 0.5}"


@pytest.mark.parametrize(
    ("providers", "sentence"),
    [
        ("[]", "providers: needs at least 1, and has 0"),
        ("CPUExecutionProvider", "providers: expected a list, got 'CPUExecutionProvider'"),
        ("[1]", "providers[0]: expected a word, got 1"),
        (
            "[{A: {}, B: {}}]",
            "providers[0]: expected one execution provider, {NAME: {OPTION: VALUE}}, got "
            "{'A': {}, 'B': {}}",
        ),
        ("[{A: 1}]", "providers[0].A: expected keys, got 1"),
        (
            "[{A: {b: [1]}}]",
            "providers[0].A.b: expected a word, a number, true or false, got a list",
        ),
        ("[A, {A: {b: 1}}]", "providers: A is given twice"),
    ],
)
def test_what_is_no_list_of_providers_is_refused(
    write: Write, providers: str, sentence: str
) -> None:
    with pytest.raises(DeploymentError) as caught:
        load(write(one(providers)))
    (line,) = str(caught.value).splitlines()
    assert f"tasks.t.variants.a.{sentence}" in line


def test_providers_belong_to_a_model(write: Write) -> None:
    text = "tasks: {t: {variants: {a: {service: {mean: 1 s}, providers: [CPUExecutionProvider]}}}}"
    with pytest.raises(DeploymentError, match="execution providers run a `model`, and none is"):
        load(write(text))


def test_a_profile_s_times_are_of_the_processor(write: Write) -> None:
    variant = load(write(one("[CPUExecutionProvider]"))).tasks["t"].variants["a"]
    assert (variant.service, variant.graded) == ({}, True)
    assert variant.size_bytes


def test_what_is_measured_is_true_of_its_providers_alone(write: Write) -> None:
    found = set()
    for number, providers in enumerate(("[A]", "[A, B]", "[{A: {x: 1}}]", "[{A: {x: 2}}]")):
        variant = load(write(one(providers), f"{number}.yaml")).tasks["t"].variants["a"]
        assert variant.model is not None
        assert variant.model.path is not None
        found.add(identity(variant, variant.model.path))
    assert len(found) == 4


def test_check_refuses_what_the_build_has_not(write: Write) -> None:
    path = write(one("[CUDAExecutionProvider, CPUExecutionProvider]"))
    result = inferway.check(load(path))
    (problem,) = result.refused
    assert (problem.kind, problem.line) == ("no-provider", 6)
    assert problem.field == "tasks.t.variants.a.providers"
    assert problem.message.startswith(LACKS)
    assert inferway.check(load(write(one("[CPUExecutionProvider]"), "e.yaml"))).refused == ()


def test_nothing_is_measured_before_it_is_refused(write: Write) -> None:
    path = write(one("[CUDAExecutionProvider]"))
    with pytest.raises(DeploymentError) as caught:
        measured(load(path))
    assert str(caught.value).startswith(f"{path}:6: tasks.t.variants.a.providers: {LACKS}")
    timed = load(write(one("[CUDAExecutionProvider]", "        service: {mean: 1 ms}\n"), "t.yaml"))
    assert measured(timed) == timed


def test_a_model_is_measured_once_for_each_list_of_providers(write: Write) -> None:
    text = one("[AzureExecutionProvider]") + "      b: {model: zoo://digits/tiny}\n"
    variants = measured(load(write(text)), seconds=0.01).tasks["t"].variants
    assert all(variant.service for variant in variants.values())
    assert variants["a"].service != variants["b"].service
