"""A whole network's load against several scripted servers."""

from __future__ import annotations

import json
import time

import numpy as np
import pandas as pd
import pytest

import inferway
from inferway.cli import main
from inferway.loadgen import (
    DriveError,
    NetworkRecord,
    addresses_of,
    drive_network,
    measured_ntag,
    network_summary,
)
from inferway.network import deployed
from inferway.network.demand import requests_of

_FILE = """
tasks:
  t:
    count: 3
    variants:
      even: {accuracy: 0.7, size: 1 MB, service: {mean: 1 ms}}
      odd: {accuracy: 0.9, size: 2 MB, service: {mean: 4 ms}}
nodes:
  edge-1: {budget: 2 MB}
  edge-2: {budget: 2 MB}
  cloud: {repository: true}
network:
  links:
    - {between: [edge-1, cloud], rtt: 20 ms}
    - {between: [edge-2, cloud], rtt: 30 ms}
placement: {policy: infida, slot: 500 ms}
cost: {alpha: 2}
workload:
  t: {arrivals: {process: constant, rate: 100/s}, popularity: {zipf: 1.0}}
"""


@pytest.fixture
def deployment(tmp_path):
    path = tmp_path / "network.yaml"
    path.write_text(_FILE)
    return inferway.load(path)


@pytest.fixture
def servers(serve):
    """Start a server for each entry node; it names itself and its path as a node does."""
    one, two = serve(), serve()
    for server, name in ((one, "edge-1"), (two, "edge-2")):
        server.tasks = ("t-0", "t-1", "t-2")
        server.headers = (
            f"inferway-node: cloud\r\nInferway-Path: {name},cloud\r\n".encode()
            if server is one
            else b"Inferway-Node: edge%2D2\r\nInferway-Path: edge-2\r\nInferway-Degraded: alone\r\n"
        )
    return {"edge-1": one, "edge-2": two}


def urls(servers) -> dict[str, str]:
    return {name: server.url for name, server in servers.items()}


def test_each_request_goes_to_its_entry_node_and_task(deployment, servers):
    record = drive_network(deployment, urls(servers), duration_s=1.0)
    trace = requests_of(*deployed(deployment), 1.0)
    np.testing.assert_array_equal(record.intended_s, trace.time_s)
    np.testing.assert_array_equal(record.asked, trace.task)
    np.testing.assert_array_equal(record.entry, trace.entry)
    assert record.answered.all()
    for name, server in servers.items():
        here = record.only(record.entry == record.nodes.index(name))
        assert len(server.requests) == len(here) > 20
        for k, task in enumerate(record.tasks):
            paths = [path for path, _ in server.requests]
            assert paths.count(f"/v2/models/{task}/infer") == (here.asked == k).sum()
    frame = pd.DataFrame(record.to_frame())
    first, second = (frame[frame["entry"] == name] for name in servers)
    assert set(first["node"]) == {"cloud"}
    assert set(first["path"]) == {"edge-1,cloud"}
    assert set(first["hops"]) == {1}
    assert set(first["degraded"]) == {""}
    assert set(second["node"]) == {"edge-2"}
    assert set(second["hops"]) == {0}
    assert set(second["degraded"]) == {"alone"}
    assert set(frame["slot"]) == {0, 1}
    assert set(frame["task"]) == {"t-0", "t-1", "t-2"}
    assert set(frame["kind"]) == {"t"}


def test_with_slots_it_begins_when_live_nodes_end_one(deployment, servers):
    record = drive_network(deployment, urls(servers), duration_s=0.2, with_slots=True)
    slots = record.began_s / 0.5
    assert slots == pytest.approx(round(slots), abs=1e-6)
    # That is the clock that the servers see.
    first = min(server.arrived_s[0] for server in servers.values())
    offset = time.time() - time.monotonic()
    late_s = first + offset - record.began_s - record.intended_s[0]
    assert -0.01 < late_s < 0.4  # by another clock, or slot, it would be half a second and more


def test_what_is_saved_is_what_is_loaded(deployment, servers, tmp_path):
    record = drive_network(deployment, urls(servers), duration_s=0.3)
    record.save(tmp_path / "r.npz")
    loaded = NetworkRecord.load(tmp_path / "r.npz")
    assert loaded.reasons == ()
    assert loaded.paths == record.paths
    assert loaded.slot_s == 0.5
    for name, column in record.to_frame().items():
        np.testing.assert_array_equal(loaded.to_frame()[name], column)


def test_the_gain_is_what_repositories_would_cost_less_what_was_measured(deployment, servers):
    record = drive_network(deployment, urls(servers), duration_s=1.0)
    found = measured_ntag(record, deployment)
    # Alone, the cloud serves each type by its cheaper variant: odd, 4 ms and 10 points.
    alone = np.where(record.entry == record.nodes.index("edge-1"), 24.0, 34.0) + 2 * 10
    even = np.array(record.variants)[record.variant] == "even"
    cost = 1e3 * record.latency_s + 2 * np.where(even, 30.0, 10.0)
    by_hand = [(alone - cost)[record.slot == slot].mean() for slot in (0, 1)]
    np.testing.assert_allclose(found.gain_ms, by_hand)
    assert found.ntag_ms == pytest.approx(np.mean(by_hand))
    assert found.offered.tolist() == found.answered.tolist() == [50, 50]
    assert found.unknown == 0


def test_a_repository_that_is_full_costs_what_its_next_variant_does(tmp_path, servers):
    """The reference is served as the twin serves it, not by each type's cheapest option."""
    path = tmp_path / "full.yaml"
    pinned = "cloud: {repository: true, pinned: {t/even: 4, t/odd: 1}}"
    path.write_text(
        _FILE.replace("cloud: {repository: true}", pinned)
        .replace("mean: 4 ms", "mean: 100 ms")
        .replace("alpha: 2", "alpha: 20")
    )
    deployment = inferway.load(path)
    record = drive_network(deployment, urls(servers), duration_s=1.0)
    found = measured_ntag(record, deployment)
    # Each task's single copy of odd serves 5 requests of a slot; the rest are left to even.
    even = np.array(record.variants)[record.variant] == "even"
    rtt_ms = np.where(record.entry == record.nodes.index("edge-1"), 20.0, 30.0)
    cost = 1e3 * record.latency_s + 20 * np.where(even, 30.0, 10.0)
    for slot in (0, 1):
        here = record.slot == slot
        asked = np.bincount(record.asked[here], minlength=3)
        odd = np.minimum(asked, 5).sum() / here.sum()
        alone = rtt_ms[here].mean() + odd * (100 + 200) + (1 - odd) * (1 + 600)
        assert found.gain_ms[slot] == pytest.approx(alone - cost[here].mean(), rel=0.02)


def test_what_fails_is_stated_apart_with_its_reason(deployment, servers):
    async def behave(number: int) -> int:
        return (200, 503, 0, 200)[number % 4]

    servers["edge-1"].behave = behave
    record = drive_network(deployment, urls(servers), duration_s=1.0)
    found = network_summary(record, deployment)
    here = found.entries["edge-1"]
    assert found.whole.failures == {
        "503: no": here.rejected,
        "no answer: the connection ended before the answer": here.failed,
    }
    assert min(here.rejected, here.failed) > 5
    assert found.entries["edge-2"].failures == {}
    assert found.gain.rejected.sum() == here.rejected
    assert found.gain.failed.sum() == here.failed
    assert np.isfinite(found.gain.gain_ms).all()
    assert sum(found.whole.failures.values()) + found.whole.answered == found.whole.offered == 100


def test_shares_by_node_and_variant_make_one(deployment, servers):
    found = network_summary(drive_network(deployment, urls(servers), duration_s=1.0), deployment)
    assert set(found.served) == {"cloud", "edge-2"}
    assert set(found.served["cloud"]) == {"t/even", "t/odd"}
    total = sum(sum(parts.values()) for parts in found.served.values())
    assert total == pytest.approx(1.0)
    assert found.hops == {0: found.entries["edge-2"].answered, 1: found.entries["edge-1"].answered}
    assert found.degraded == {"alone": found.entries["edge-2"].answered}
    shares = found.whole.shares
    assert found.whole.profile_accuracy == pytest.approx(0.7 * shares["even"] + 0.9 * shares["odd"])


def test_answers_that_name_nothing_are_counted_as_such(deployment, servers):
    for server in servers.values():
        server.headers = b""
    record = drive_network(deployment, urls(servers), duration_s=0.5)
    assert set(record.node) == set(record.path) == set(record.hops) == {-1}
    found = network_summary(record, deployment)
    assert list(found.served) == ["not named"]
    assert found.hops == {}


def test_addresses_come_from_the_file_or_a_document(deployment, servers, tmp_path):
    assert addresses_of(deployment) == {}
    path = tmp_path / "told.yaml"
    path.write_text(_FILE.replace("edge-1: {", "edge-1: {address: '10.0.0.7', "))
    told = inferway.load(path)
    assert addresses_of(told) == {"edge-1": "http://10.0.0.7:8000"}
    document = tmp_path / "addresses.json"
    document.write_text('{"edge-1": {"http": "127.0.0.1:1", "peer": "127.0.0.1:2"}}')
    assert addresses_of(told, document) == {"edge-1": "http://127.0.0.1:1"}
    for text, message in (("[]", "holds no addresses"), ('{"a": {"http": "ftp://b"}}', "address")):
        document.write_text(text)
        with pytest.raises(DriveError, match=message):
            addresses_of(told, document)
    with pytest.raises(DriveError, match="cannot be read"):
        addresses_of(told, tmp_path / "none.json")
    with pytest.raises(DriveError, match="requests enter at edge-2, and nothing says where"):
        drive_network(deployment, {"edge-1": servers["edge-1"].url}, duration_s=1.0)


def test_the_command_writes_every_request_and_one_document(
    deployment, servers, tmp_path, capsys, monkeypatch
):
    addresses = tmp_path / "addresses.json"
    told = {name: {"http": f"127.0.0.1:{server.port}"} for name, server in servers.items()}
    addresses.write_text(json.dumps(told))
    out = tmp_path / "out"
    command = ["drive", str(deployment.path), "--addresses", str(addresses), "--duration", "0.6"]
    assert main([*command, "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert document["tasks"]["t"]["answered"] == 60
    network = document["network"]
    assert network["slots"] == 2
    assert network["ntag_ms"] is not None
    assert network["series"]["offered"] == [50, 10]
    assert set(network["entries"]) == {"edge-1", "edge-2"}
    frame = pd.read_parquet(out / "requests.parquet")
    assert len(frame) == 60
    assert {"entry", "node", "path", "hops", "degraded", "slot", "reason"} <= set(frame)
    assert (out / "latency.png").stat().st_size > 10_000
    assert main(command) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("from edge-1", "Gain per request (NTAG)", "degraded"))


def test_one_server_can_stand_for_all_nodes(deployment, servers, capsys):
    url = servers["edge-1"].url
    assert main(["drive", str(deployment.path), "--url", url, "--duration", "0.3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["network"]["answered"] == 30
    assert len(servers["edge-1"].requests) == 30
