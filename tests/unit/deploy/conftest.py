"""The chart's objects; what renders it lies beside."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

sys.path.insert(0, str(Path(__file__).parent))

from charts import CASES, rendered


@pytest.fixture(scope="session")
def told() -> dict[str, Any]:
    """What Helm makes of the chart, as of `rendered`."""
    if find_spec("helm_python") is None:
        pytest.skip("Helm's library, helm-python-sdk, is not installed: it has no wheel for here")
    return rendered()


@pytest.fixture(scope="session")
def cases(told: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The objects of each case, which no test changes."""
    reader = YAML(typ="safe")
    return {name: [reader.load(text) for text in texts] for name, texts in told["cases"].items()}


@pytest.fixture(params=CASES)
def objects(request: pytest.FixtureRequest, cases: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects of a case."""
    found: list[dict[str, Any]] = cases[request.param]
    return found


@pytest.fixture
def case(request: pytest.FixtureRequest, cases: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects of the case that a test names."""
    found: list[dict[str, Any]] = cases[request.param]
    return found
