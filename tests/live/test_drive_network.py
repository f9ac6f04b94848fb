"""A whole network's load against real servers, two of them as its entry nodes."""

from __future__ import annotations

import json

import numpy as np
import pytest

import inferway
from inferway import loadgen
from inferway.cli import main

_VARIANTS = "variants: {tiny: {model: zoo://digits/tiny}, large: {model: zoo://digits/large}}"
_NODE = f"""
tasks:
  digits-0: {{accuracy_target: 0.9, {_VARIANTS}}}
  digits-1: {{accuracy_target: 0.9, {_VARIANTS}}}
nodes:
  here:
    buffer: 16
    instances: {{digits-0/tiny: 1, digits-0/large: 1, digits-1/tiny: 1, digits-1/large: 1}}
"""
_NETWORK = f"""
tasks:
  digits: {{count: 2, {_VARIANTS}}}
nodes:
  edge-1: {{budget: 20 MB}}
  edge-2: {{budget: 20 MB}}
  cloud: {{repository: true}}
network:
  links:
    - {{between: [edge-1, cloud], rtt: 300 ms}}
    - {{between: [edge-2, cloud], rtt: 300 ms}}
placement: {{policy: infida, slot: 500 ms}}
workload:
  digits:
    arrivals: {{process: poisson, rate: 100/s}}
    popularity: {{zipf: 1, sliding: {{shift: 1, every: 500 ms}}}}
"""


@pytest.fixture
def network(tmp_path):
    path = tmp_path / "network.yaml"
    path.write_text(_NETWORK)
    return inferway.load(path)


@pytest.fixture
def nodes(start, tmp_path):
    path = tmp_path / "node.yaml"
    path.write_text(_NODE)
    return {name: start(deployment=inferway.load(path)) for name in ("edge-1", "edge-2")}


def test_every_request_is_answered_by_the_node_where_it_enters(network, nodes):
    addresses = {name: f"http://{one.url}" for name, one in nodes.items()}
    record = loadgen.drive_network(network, addresses, duration_s=1.5)
    assert record.answered.all()
    assert len(record) > 100
    for name, running in nodes.items():
        here = record.entry == record.nodes.index(name)
        for k, site in enumerate(running.server.served()):
            assert sum(site.stats.rows) == (here & (record.asked == k)).sum() > 5
    assert (record.label >= 0).all()
    found = loadgen.network_summary(record, network)
    assert found.whole.accuracy == pytest.approx(record.correct.mean())
    # Some 150 of the 4,200 images that the profiles' accuracies are from.
    assert found.whole.accuracy == pytest.approx(found.whole.profile_accuracy, abs=0.13)
    assert found.gain.offered.sum() == len(record)
    # By slot, with numbers of its own: what the cloud alone would take, less what it took.
    large = network.tasks["digits"].variants["large"]
    alone = 1e3 * (0.3 + large.service_on("cpu").mean_s)
    spent = 1e3 * record.latency_s - 100 * drive_accuracy(record, network)
    by_hand = alone - 100 * large.accuracy - spent
    slots = [by_hand[record.slot == slot].mean() for slot in range(3)]
    assert found.gain.ntag_ms == pytest.approx(np.mean(slots), abs=0.2)


def drive_accuracy(record: loadgen.NetworkRecord, network: inferway.Deployment) -> np.ndarray:
    """(n,) the profile's accuracy of who answered."""
    variants = network.tasks["digits"].variants
    return np.array([variants[name].accuracy for name in record.to_frame()["variant"]])


def test_a_node_that_stops_in_mid_load_loses_its_own_requests_with_a_reason(network, nodes):
    addresses = {name: f"http://{one.url}" for name, one in nodes.items()}
    seen = []

    def stop_one(_doing: str, part: float) -> None:
        if part > 0.4 and not seen:
            seen.append(nodes["edge-2"].begin(nodes["edge-2"].server.stop(grace_s=0.1)))

    record = loadgen.drive_network(network, addresses, duration_s=2.0, progress=stop_one)
    seen[0].result(20)
    found = loadgen.network_summary(record, network)
    assert found.entries["edge-1"].answered == found.entries["edge-1"].offered
    lost = found.entries["edge-2"]
    assert lost.offered > lost.answered > 0
    assert sum(lost.failures.values()) == lost.offered - lost.answered
    assert "no answer: no connection: connection refused" in lost.failures
    assert np.isfinite(found.gain.gain_ms).all()


def test_the_command_reads_addresses_from_a_file(network, nodes, tmp_path, capsys):
    told = tmp_path / "addresses.json"
    told.write_text(json.dumps({name: {"http": one.url} for name, one in nodes.items()}))
    command = ["drive", str(network.path), "--addresses", str(told), "--duration", "1", "--json"]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tasks"]["digits"]["accuracy"] > 0.5
    assert document["network"]["entries"].keys() == {"edge-1", "edge-2"}
    assert main(["drive", str(network.path), "--duration", "1"]) == 2
    assert "nothing says where that node listens" in capsys.readouterr().err
