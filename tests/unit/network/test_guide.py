"""What docs/guides/describe-a-network.md shows works."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import inferway
from inferway.network import network_of


def blocks(root: Path, language: str) -> list[str]:
    text = (root / "docs" / "guides" / "describe-a-network.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("number", "nodes"), [(0, 33), (1, 3), (2, 11)])
def test_the_files(root: Path, tmp_path: Path, number: int, nodes: int) -> None:
    text = blocks(root, "yaml")[number]
    if "Abilene" in text:
        zoo = root.parent / "shared" / "data" / "topologies" / "Abilene.gml"
        if not zoo.is_file():
            pytest.skip(f"the Internet Topology Zoo's Abilene is not at {zoo}")
        shutil.copy(zoo, tmp_path)
    file = tmp_path / "d.yaml"
    file.write_text(text)
    network = network_of(inferway.load(file))
    assert len(network.nodes) == nodes
    assert network.options.repository.sum() == len(network.requests.task)


def test_the_code(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    _, print_options, another_cost = blocks(root, "python")
    names: dict[str, object] = {}
    exec(print_options, names)
    first = capsys.readouterr().out.splitlines()[0].split()
    assert first[0] == "detection-0/14.02pruned#0"
    assert first[1].startswith("base-")
    assert float(first[2]) == pytest.approx(1000 / 166 + 51)
    cheaper = names["network"]
    exec(another_cost, names)
    assert names["network"] is not cheaper
