from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from inferway.deployment import Deployment, load
from inferway.live import ServeError
from inferway.live.node.addresses import Addresses, addresses_of, read, write
from inferway.network import topology_of

Load = Callable[[str], Deployment]

TREE = """\
tasks: {t: {variants: {a: {accuracy: 0.8, service: {mean: 10 ms}}}}}
network:
  tree:
    - {tier: cloud, nodes: 1, repository: true, address: "[fd00::1]:81", control: "10.0.0.1:1"}
    - {tier: edge, nodes: 2, rtt: 1 ms, address: "{node}.example.org", peer: "{node}.lan"}
"""
LINKS = """\
tasks: {t: {variants: {a: {accuracy: 0.8, service: {mean: 10 ms}}}}}
nodes: {cloud: {repository: true, address: c.org}}
network:
  links: [{between: [shop, cloud], rtt: 3 ms}, {between: [bar, cloud], rtt: 3 ms}]
  others: {%s}
"""


@pytest.fixture
def loaded(tmp_path: Path) -> Load:
    def loader(text: str) -> Deployment:
        path = tmp_path / "d.yaml"
        path.write_text(text, encoding="utf-8")
        return load(path)

    return loader


def test_what_the_file_leaves_out_has_defaults(loaded: Load) -> None:
    deployment = loaded(TREE)
    assert addresses_of(deployment, topology_of(deployment)) == {
        "cloud": Addresses("[fd00::1]:81", "[fd00::1]:8003", "10.0.0.1:1", "127.0.0.1:8002"),
        "edge-0": Addresses(
            "edge-0.example.org:8000", "edge-0.lan:8003", "edge-0.example.org:7447"
        ),
        "edge-1": Addresses(
            "edge-1.example.org:8000", "edge-1.lan:8003", "edge-1.example.org:7447"
        ),
    }


def test_nodes_without_an_address_are_left_out(loaded: Load) -> None:
    deployment = loaded(LINKS % "budget: 1 GB")
    assert list(addresses_of(deployment, topology_of(deployment))) == ["cloud"]


def test_two_nodes_in_one_place_are_refused(loaded: Load) -> None:
    deployment = loaded(LINKS % "address: c.org")
    with pytest.raises(ServeError, match=r"nodes .* \(http\) and .* \(http\) have one address"):
        addresses_of(deployment, topology_of(deployment))


def test_a_file_of_addresses_comes_back_as_written(loaded: Load, tmp_path: Path) -> None:
    deployment = loaded(LINKS % "budget: 1 GB")
    topology = topology_of(deployment)
    wanted = {
        name: Addresses(f"127.0.0.1:{k}1", f"127.0.0.1:{k}2", f"127.0.0.1:{k}3", f"127.0.0.1:{k}4")
        for k, name in enumerate(topology.nodes, 5)
    }
    path = tmp_path / "addresses.json"
    write(path, wanted)
    assert read(path) == wanted
    assert addresses_of(deployment, topology, path) == wanted
    assert json.loads(path.read_text())["cloud"]["http"] == wanted["cloud"].http
    write(path, {"cloud": wanted["cloud"]})
    with pytest.raises(ServeError, match=r"there is no address of node (shop|bar)"):
        addresses_of(deployment, topology, path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "is no file of addresses: "),
        ('{"a": {"http": "h:1"}}', "is no file of addresses: .*peer"),
        ('{"a": {"http": "h:1", "peer": "h:2", "control": "h:3", "x": "h:4"}}', "unknown field"),
        ('{"a": {"http": "h", "peer": "h:2", "control": "h:3"}}', r"a\.http: h lacks a port"),
        ('{"a": {"http": "h:1", "peer": "h:99999", "control": "h:3"}}', r"a\.peer: .* 65535"),
    ],
)
def test_a_file_that_is_none_of_addresses(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "addresses.json"
    path.write_text(text)
    with pytest.raises(ServeError, match=said):
        read(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="No such file"):
        read(tmp_path / "none.json")
