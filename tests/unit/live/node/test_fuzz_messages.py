"""What nodes say to each other: whatever comes, a node goes on hearing its neighbors."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

import inferway
from fuzzing import FEW, Course, few_or_many
from inferway.live.control.peers import KINDS, MENU
from inferway.live.node.offer_table import OfferTable
from inferway.live.node.placement_messages import PlacementMessages
from inferway.live.request import NodeCondition
from inferway.network import deployed
from inferway.placement.layout import data_of
from inferway.placement.letters import Above, Below, Floor, Needed, Offers, Quiet, Worst
from inferway.placement.local import local_policy
from inferway.protocol import Signature, Tensor
from mutation import damaged, mutated

NETWORK = """
tasks:
  digits: {count: 2, variants: {tiny: {accuracy: 0.8, size: 1 MB, service: {mean: 1 ms}},
    wide: {accuracy: 0.9, size: 2 MB, service: {mean: 4 ms}}}}
network:
  tree:
    - {tier: cloud, nodes: 1, repository: true}
    - {tier: metro, nodes: 1, rtt: 20 ms, budget: 3 MB}
    - {tier: edge, nodes: 2, rtt: 6 ms, budget: 2 MB}
placement: {policy: infida, slot: 1 s}
workload: {digits: {arrivals: {process: poisson, rate: 60/s}}}
"""


class Links:
    """Links that forget what is said."""

    def __init__(self, *alive: str) -> None:
        self.alive = set(alive)

    def on_sample(self, _: object) -> None: ...

    def on_neighbor(self, _: object) -> None: ...

    def publish(self, _: str, __: str, ___: object) -> None: ...

    def put(self, _: str, __: str, ___: str, ____: bytes) -> None: ...

    def send(self, _: str, __: str, ___: bytes) -> None: ...


TAKES = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))
OFFERED: tuple[tuple[str, Any], ...] = (
    ("offers/0", ("digits-0", "wide", "cloud", 0.95, 0, 0.0, 0, ("cloud",), True, 0)),
    ("offers/1", ("digits-1", "tiny", "edge-0", 0.8, 0, 0.0, 0, ("edge-0",), False)),
    ("loads/0", (0.004, 50.0)),
    ("loads/1", (0.001, 100.0)),
    ("takes", ((TAKES, ("digits-0", "digits-1")),)),
    ("", b""),
)
PLACING = (
    Floor(0, 3.5),
    Needed(0, 1, 60.0, 3.0, ((1.0, 5.0), (2.0, 6.0))),
    Worst(0, 1, 7.5),
    Offers(1, ((1.0, 50.0), (4.0, 80.0))),
    Above(0, 1, ((0, 0, 20.0, 3.0, 5.0),)),
    Below(1, 1, 60.0, ((2, 0, 4.0, 9.0, 0.0), (2, 1, 1.0, 2.0, 1.0))),
    Quiet(0, True),
)
_pack = msgspec.msgpack.Encoder().encode


def said(choose: random.Random) -> tuple[str, str, str, bytes | None]:
    """A neighbor, a kind, a name, and the bytes."""
    menu = choose.random() < 0.5
    message: Any = choose.choice(PLACING)
    name, kind = "", type(message).__name__.lower()
    if menu:
        (name, message), kind = choose.choice(OFFERED), MENU
    content = msgspec.to_builtins(message)
    for _ in range(choose.randrange(4)):
        content = mutated(content, choose)
    try:
        data = _pack(content)
    except (OverflowError, ValueError):  # an integer that MessagePack has no room for
        data = _pack(msgspec.to_builtins(message))
    if choose.random() < 0.3:
        data = damaged(data, choose)
    if choose.random() < 0.02:
        data = data[:2] + b"\x91" * choose.choice([900, 1_100, 50_000]) + data[2:]
    if choose.random() < 0.03:
        data = choose.randbytes(choose.randrange(60))
    if choose.random() < 0.05:
        kind = choose.choice([*KINDS, "", "else"])
    if choose.random() < 0.05:
        name = choose.choice(["", "offers", "offers/", "loads/1/2", "takes/1", "**", "7"])
    gone = menu and choose.random() < 0.1
    return choose.choice(["cloud", "edge-0", "edge-1"]), kind, name, None if gone else data


@pytest.mark.parametrize("policy", ["infida", "exchange"])
@few_or_many
def test_messages(tmp_path: Path, count: int, policy: str) -> None:
    file = tmp_path / "network.yaml"
    file.write_text(NETWORK)
    network, _ = deployed(inferway.load(file))
    metro = network.nodes.index("metro")
    neighbors = ("cloud", "edge-0", "edge-1")
    (data,) = [one for one in data_of(network) if one.node == metro]
    changed: list[set[str]] = []

    async def main() -> None:
        links: Any = Links(*neighbors)
        agent: Any = local_policy(policy, network, metro, seed=1, data=data)
        post = PlacementMessages(agent, links, network.nodes)
        table = OfferTable(
            NodeCondition("metro"), links, links_s=dict.fromkeys(neighbors, 0.01), upstream="cloud",
            changed=changed.append,
        )  # fmt: skip
        post.open()
        fed = 0

        def feed(one: tuple[str, str, str, bytes | None]) -> None:
            nonlocal fed
            fed += 1
            if fed % 100 == 0:
                post.close_slot(fed // 100, {}, {})
            if fed % 100 == 50:
                post.step()
            if fed % 1_000 == 0:
                # Whatever was believed until now, who comes anew is heard.
                table._neighbor("cloud", False)
                table._neighbor("cloud", True)
                for name, value in OFFERED[:-1]:
                    table._sample("cloud", MENU, name, _pack(msgspec.to_builtins(value)))
                table._take_news()
                assert [offer.task for offer in table.all] == ["digits-0"]
                changed.clear()
            neighbor, kind, name, content = one
            post._sample(neighbor, kind, name, content)
            table._sample(neighbor, kind, name, content)
            table._take_news()

        Course("messages", said, count).run(feed)
        assert sum(post.refused.values()) + sum(table.refused.values()) > count // 4 or count < FEW

    asyncio.run(main())
