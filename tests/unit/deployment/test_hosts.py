"""Where nodes are reached, and what their stores take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inferway.deployment import DeploymentError, load
from inferway.protocol.address import joined, split

Write = Callable[..., Path]

FILE = """\
tasks: {digits: {variants: {fast: {accuracy: 0.8, size: 1 GiB, service: {mean: 10 ms}}}}}
network: {links: [{between: [shop, cloud], rtt: 30 ms}]}
nodes:
  cloud: {repository: true}
  shop: %s
"""


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("edge-1.example.org", "edge-1.example.org", None),
        ("10.0.0.7:8000", "10.0.0.7", 8000),
        ("[fd00::7]:80", "fd00::7", 80),
        ("[fd00::7]", "fd00::7", None),
        ("{node}.local:1", "{node}.local", 1),
    ],
)
def test_addresses_are_split(address: str, host: str, port: int | None) -> None:
    assert split(address) == (host, port)
    if port is not None:
        assert joined(host, port) == address


@pytest.mark.parametrize(
    "body",
    [
        "{address: 'http://a:80'}",
        "{address: 8000}",
        "{address: 'fd00::7'}",
        "{peer: 'a:0'}",
        "{control: 'a:65536'}",
        "{address: ''}",
        "{address: '{name}'}",
        "{store: {limit: 20}}",
        "{store: {schemes: [http]}}",
        "{store: {schemes: []}}",
        "{store: {hosts: ['https://a.org']}}",
    ],
)
def test_what_is_no_address_or_store_is_refused_at_its_line(write: Write, body: str) -> None:
    key = body[1:].partition(":")[0]
    with pytest.raises(DeploymentError, match=rf":5: nodes\.shop\.{key}") as caught:
        load(write(FILE % body))
    assert len(caught.value.problems) == 1


def test_nodes_keep_what_the_file_says(write: Write) -> None:
    said = (
        "{address: shop.example.org, peer: '10.0.0.7:9000', "
        "store: {limit: 1 GB, hosts: ['*.Example.org:8443'], schemes: [https], private: true}}"
    )
    deployment = load(write(FILE % said))
    shop, cloud = deployment.nodes["shop"], deployment.nodes["cloud"]
    assert (shop.address, shop.peer, shop.control) == ("shop.example.org", "10.0.0.7:9000", None)
    assert shop.store.limit == 10**9
    assert shop.store.hosts == ("*.example.org:8443",)
    assert (shop.store.schemes, shop.store.private, shop.store.loopback) == (
        ("https",),
        True,
        False,
    )
    assert cloud.store.limit == 20 * 10**9
    assert (cloud.store.hosts, cloud.store.schemes) == (None, ("file", "https"))


def test_saturation_is_a_wait(write: Write) -> None:
    assert load(write(FILE % "{}")).network.max_wait == 0.1  # type: ignore[union-attr]
    text = (FILE % "{}").replace("network: {", "network: {max_wait: 2 s, ")
    assert load(write(text)).network.max_wait == 2.0  # type: ignore[union-attr]
    with pytest.raises(DeploymentError, match=r"network\.max_wait: 0 s is refused"):
        load(write(text.replace("2 s", "0 s")))


def test_the_nodes_of_a_tier_cannot_share_an_address(write: Write) -> None:
    tree = (
        "tasks: {t: {variants: {a: {accuracy: 0.8, service: {mean: 10 ms}}}}}\n"
        "network: {tree: [{tier: c, nodes: 1, repository: true, address: c.org}, "
        "{tier: b, nodes: 2, rtt: 1 ms, address: %s}]}\n"
    )
    load(write(tree % "'{node}.org'"))
    with pytest.raises(DeploymentError, match="tier b has 2 nodes, which cannot share one `addre"):
        load(write(tree % "b.org"))


def test_counted_tasks_have_names_of_their_own(write: Write) -> None:
    text = FILE % "{}"
    assert list(load(write(text)).named()) == ["digits"]
    several = load(write(text.replace("digits: {", "digits: {count: 3, ")))
    assert list(several.named()) == ["digits-0", "digits-1", "digits-2"]
    assert several.named()["digits-2"] is several.tasks["digits"]
