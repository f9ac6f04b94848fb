"""``inferway place``, and that what it prints can be pasted back."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import inferway
from inferway.cli import main
from inferway.network import network_of

ROOT = Path(__file__).parents[3]
TREE = ROOT / "examples" / "topology-1.yaml"
SHARED = """
tasks:
  spot:
    max_instances: 2
    variants:
      quick: {accuracy: 0.6, size: 1 GiB, service: {mean: 10 ms}}
      exact: {accuracy: 0.9, size: 2 GiB, service: {mean: 40 ms}}
  read:
    count: 2
    variants: {only: {accuracy: 0.8, size: 1 GiB, service: {mean: 20 ms}}}
network:
  tree:
    - {tier: cloud, nodes: 1, repository: true}
    - tier: edge
      nodes: 4
      rtt: 30 ms
      budget: [{share: 50 %, size: 2 GiB}, {share: 50 %, size: 4096 MiB}]
nodes:
  edge-1: {budget: 3 GiB, pinned: {read-1/only: 1}, buffer: 7}
placement: {policy: static-greedy}
seed: 3
workload:
  spot: {arrivals: {process: poisson, rate: 90/s}}
  read: {arrivals: {process: poisson, rate: 60/s}, popularity: {zipf: 1}}
"""


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    path = tmp_path / "shared.yaml"
    path.write_text(SHARED)
    return path


def document(capsys, *arguments):
    assert main([*map(str, arguments), "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return json.loads(output.out)


def pasted(file: Path, section: str) -> Path:
    """Put a printed section in the place of the file's own, and take `placement` out."""
    text = re.sub(r"^nodes:\n(  .*\n)+", "", file.read_text(), flags=re.MULTILINE)
    text = re.sub(r"^placement: .*\n", "", text, flags=re.MULTILINE)
    path = file.with_name("pasted.yaml")
    path.write_text(f"{text}\n{section}")
    return path


def test_what_is_printed_can_be_pasted_back(shared: Path, capsys) -> None:
    found = inferway.place(inferway.load(shared))
    assert found.policy == "static-greedy"
    assert found.nodes["edge-1"]["read-1/only"] == 1
    assert main(["place", str(shared)]) == 0
    words = capsys.readouterr().out
    assert "gain per request" in words
    file = pasted(shared, words[words.index("nodes:\n") :])
    assert document(capsys, "check", file)["errors"] == []
    again = inferway.load(file)
    assert again.nodes["edge-1"].buffer == 7
    assert {n.budget_bytes for n in again.nodes.values()} == {2 << 30, 3 << 30, 4 << 30}
    copies = {
        name: {"/".join(key): count for key, count in node.instances.items()}
        for name, node in again.nodes.items()
    }
    assert copies == found.nodes
    network = network_of(again)
    assert network.budget.tolist() == network_of(inferway.load(shared)).budget.tolist()
    # The twin runs what the file lists: all of it, and nothing moves.
    ran = inferway.simulate(again, slots=2000).network
    assert ran is not None
    assert ran.policy == "written"
    assert ran.mu_bytes_per_slot == 0
    assert np.array_equal(ran.presence > 0, (found.allocation > 0) | (network.pairs.pinned > 0))
    assert ran.ntag_ms == pytest.approx(found.gain_ms, rel=0.01)


def test_instances_beyond_a_budget_are_not_simulated(shared: Path, tmp_path: Path) -> None:
    file = tmp_path / "over.yaml"
    asked = "pinned: {read-1/only: 1}, buffer: 7"
    text = SHARED.replace(asked, "instances: {spot/exact: 1, read/only: 1}")
    file.write_text(text.replace("placement: {policy: static-greedy}\n", ""))
    with pytest.raises(ValueError, match=r"node edge-1: its instances take 4 GiB.* 3 GiB"):
        inferway.simulate(inferway.load(file), slots=1)


def test_exact_is_proven_and_bounds_the_others(capsys, shared: Path) -> None:
    best = document(capsys, "place", shared, "--policy", "exact")["network"]
    assert best["proven"] is True
    assert best["gap"] == pytest.approx(0, abs=1e-4)
    for policy in ("infida", "static-greedy", "olag", "greedy", "repository-only"):
        other = document(capsys, "place", shared, "--policy", policy, "--bound")["network"]
        assert other["ntag_ms"] <= best["bound_ms"] * (1 + 1e-9) <= other["bound_ms"] * (1 + 1e-6)
        assert other["proven"] is None
        assert 0 <= other["gap"] <= 1


def test_budgets_hold(capsys) -> None:
    found = inferway.place(inferway.load(TREE))
    assert found.policy == "infida-offline"
    assert found.gain_ms > 59
    network = found.network
    used = np.bincount(
        network.pairs.node, found.allocation * network.pairs.size, len(network.nodes)
    )
    hosts = ~network.repository
    assert (used <= network.budget)[hosts].all()
    assert sum(tier.share for tier in found.tiers.values()) == pytest.approx(1)
    assert found.tiers["cloud"].copies == {}


def test_files_are_written(shared: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    found = document(capsys, "place", shared, "--out", out)
    assert found["files"] == [
        str(out / name) for name in ("allocation.png", "map.png", "nodes.yaml")
    ]
    assert (out / "nodes.yaml").read_text() == inferway.place(inferway.load(shared)).yaml
    assert (out / "map.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--policy", "exakt"], "did you mean 'exact'?"),
        (["--policy", "written"], "no placement policy 'written'"),
        (["--time-limit", "5"], "no unit"),
    ],
)
def test_what_makes_no_sense_is_said(capsys, shared: Path, options, words) -> None:
    assert main(["place", str(shared), *options]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert words in output.err


def test_a_file_without_a_network_is_refused(capsys) -> None:
    assert main(["place", str(ROOT / "examples" / "paper-fleet.yaml")]) == 2
    assert "no `network`" in capsys.readouterr().err
    with pytest.raises(ValueError, match="one slot or more, not 0"):
        inferway.place(inferway.load(TREE), slots=0)
