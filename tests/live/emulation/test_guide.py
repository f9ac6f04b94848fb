"""What docs/guides/emulate-a-network.md shows works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import inferway
from inferway.lab import Emulation
from inferway.network import topology_of


def test_the_guide(
    network: Emulation, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(root)
    guide = (root / "docs/guides/emulate-a-network.md").read_text()
    whole, from_elsewhere = re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    exec(whole, {})
    assert "'cloud': '10.77.0.1'" in capsys.readouterr().out
    topology = topology_of(inferway.load("examples/topology-2.yaml"))
    with Emulation(topology, name="mine") as mine:
        exec(from_elsewhere, {})
        sender = mine.open_socket("base-0")
        with sender:
            sender.settimeout(0.3)
            with pytest.raises(TimeoutError):
                sender.connect((mine.addresses["office"], 80))
