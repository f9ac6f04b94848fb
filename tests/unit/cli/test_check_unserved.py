"""What `check` notes of files that cannot be run live: by `serve`, or by a network's nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import inferway
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


SHARED = """\
tasks:
  words:
    variants:
      quick: {accuracy: 0.7, service: {mean: 8 ms}}
      exact: {accuracy: 0.8, service: {mean: 53 ms}}
nodes: {here: NODE}
workload: {words: {arrivals: {process: poisson, rate: 9/s}}}
"""


@pytest.mark.parametrize(
    ("node", "left_out"),
    [
        ("{}", True),
        ("{instances: {words/quick: 1}}", False),  # which shares with nobody
        ("{devices: {cpu: {cores: 2}}}", False),
    ],
)
def test_the_twin_of_a_node_without_devices_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], node: str, left_out: bool
) -> None:
    file = tmp_path / "words.yaml"
    file.write_text(SHARED.replace("NODE", node))
    sentence = (
        "nodes.here.devices: there are none, so in the twin its instances never wait for a core "
        "or an accelerator that they share"
    )
    assert main(["check", str(file), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["unsimulated"] == ([sentence] if left_out else [])
    assert said["warnings"] == []
    assert main(["check", str(file), "--strict"]) == 0
    assert (f"note: {sentence}" in capsys.readouterr().out) == left_out
    assert (sentence in str(inferway.check(inferway.load(file)))) == left_out


def test_what_a_simulation_has_to_know_of_exclusive_devices_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "words.yaml"
    text = SHARED.replace("NODE", "{devices: {cpu: {cores: 2, exclusive: true}}}")
    file.write_text(text.replace("{accuracy: 0.7", "{load_time: 1 s, accuracy: 0.7"))
    assert main(["check", str(file), "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)["unsimulated"]
    assert said.startswith("tasks.words.variants.exact.load_time: nodes.here.devices.cpu is `excl")
    with pytest.raises(ValueError, match="has to know how long it takes to change to exact"):
        inferway.simulate(inferway.load(file))
    file.write_text(text.replace("{accuracy", "{load_time: 1 s, accuracy"))
    assert main(["check", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unsimulated"] == []


def test_a_file_without_a_workload_has_no_twin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "words.yaml"
    file.write_text(SHARED.replace("NODE", "{}").partition("workload")[0])
    assert main(["check", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unsimulated"] == []
