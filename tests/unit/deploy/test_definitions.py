"""Objects of kinds that others define, held to models that were generated of the definitions.

    pip install cloudcoil-models-cert-manager cloudcoil-models-prometheus-operator kserve

Where they are not installed, these tests are skipped: they want much for four kinds.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

MODELS = {
    "Certificate": "cloudcoil.models.cert_manager.v1",
    "ServiceMonitor": "cloudcoil.models.prometheus_operator.v1",
    "PrometheusRule": "cloudcoil.models.prometheus_operator.v1",
}


def differences(given: Any, kept: Any, path: str) -> list[str]:
    """Find what a model has not kept of an object: fields that it does not know, other values."""
    if isinstance(given, dict) and isinstance(kept, dict):
        inner = [(f"{path}.{key}", value, kept.get(key)) for key, value in given.items()]
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        inner = [(path, *pair) for pair in zip(given, kept, strict=True)]
    else:
        return [] if given == kept else [f"{path}: {given!r}"]
    return [one for place, *pair in inner for one in differences(*pair, place)]


Cases = dict[str, list[dict[str, Any]]]


@pytest.mark.parametrize("kind", MODELS)
def test_its_definition_knows_every_field(cases: Cases, kind: str) -> None:
    pytest.importorskip(MODELS[kind].rpartition(".")[0])
    model = getattr(importlib.import_module(MODELS[kind]), kind)
    objects = [one for case in cases.values() for one in case if one["kind"] == kind]
    assert objects
    for one in objects:
        text = model.model_validate(one).model_dump_json(by_alias=True, exclude_none=True)
        assert differences(one, json.loads(text), kind) == []


def test_kserve_knows_every_field_of_its_runtime(cases: Cases) -> None:
    kserve = pytest.importorskip("kserve")
    (runtime,) = cases["kserve"]
    assert runtime["spec"].keys() <= {*kserve.V1alpha1ServingRuntimeSpec.attribute_map.values()}
    for one in runtime["spec"]["supportedModelFormats"]:
        assert one.keys() <= {*kserve.V1alpha1SupportedModelFormat.attribute_map.values()}
