"""What `check` notes of files that cannot be run live: by `serve`, or by a network's nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferway.cli.app import main


def test_a_network_that_nodes_run_has_nothing_to_note(
    examples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(examples / "delivery-network.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unserved"] == []


def test_a_network_without_models_is_for_the_twin(
    examples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(examples / "topology-2.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unserved"] == [
        "tasks.detection.catalog: catalogs have no models to serve; list `variants`"
    ]
