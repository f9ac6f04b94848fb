"""Letters between nodes: whatever comes, a node goes on hearing its neighbors."""

from __future__ import annotations

import asyncio
import random
import sys
import zlib
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parents[3]))

import inferway
from fuzzing import FEW, Course, few_or_many
from inferway.dispatch.offers import Offer
from inferway.live.control.control import LETTERS
from inferway.live.node.listing import Change
from inferway.live.node.menu import MENU, Menu
from inferway.live.node.post import Post
from inferway.live.node.telling import Ask, Same, Tell, packed
from inferway.network import deployed
from inferway.placement.agent import Agent
from inferway.placement.crossing import data_of
from inferway.placement.messages import Floor, Needed, Offers, Worst
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


class Plane:
    """A control plane that keeps what is sent, and forgets it."""

    limit_bytes = 1 << 20

    def __init__(self, *alive: str) -> None:
        self.alive = set(alive)
        self.sent = 0

    def on_letter(self, _: object) -> None: ...

    def on_neighbor(self, _: object) -> None: ...

    def send(self, _: str, __: str, data: bytes) -> bool:
        self.sent += 1
        return len(data) <= self.limit_bytes


OFFERS = (
    Offer("digits-0", "wide", "cloud", 0.95, 0.004, 0.01, 50.0, ("metro", "cloud"), True),
    Offer("digits-1", "tiny", "metro", 0.8, 0.001, 0.0, 100.0, ("metro",), False),
)
TAKES = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))
MENUS = (
    Tell(9, 0, 5, 0, 1, Change(offers=OFFERS, takes=((TAKES, ("digits-0", "digits-1")),))),
    Tell(9, 5, 6, 0, 1, Change(gone=(0,), rates=((1, 50.0),))),
    Tell(9, 0, 5, 0, 2, Change(offers=OFFERS)),
    Same(9, 5),
    Ask(),
)
PLACING = (
    Floor(0, 3.5),
    Needed(0, 1, 60.0, 3.0, ((1.0, 5.0), (2.0, 6.0))),
    Worst(0, 1, 7.5),
    Offers(1, ((1.0, 50.0), (4.0, 80.0))),
)
_pack = msgspec.msgpack.Encoder().encode


def letter(choose: random.Random) -> tuple[str, str, bytes]:
    """A neighbor, a kind and the bytes."""
    menu = choose.random() < 0.5
    message: Any = choose.choice(MENUS if menu else PLACING)
    kind = MENU if menu else type(message).__name__.lower()
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
    if menu:
        data = zlib.compress(data, 1)
        data = damaged(data, choose) if choose.random() < 0.2 else data
    if choose.random() < 0.03:
        data = choose.randbytes(choose.randrange(60))
    if choose.random() < 0.05:
        kind = choose.choice([*LETTERS, MENU, "", "else"])
    return choose.choice(["cloud", "edge-0", "edge-1"]), kind, data


@few_or_many
def test_letters(tmp_path: Path, count: int) -> None:
    file = tmp_path / "network.yaml"
    file.write_text(NETWORK)
    network, _ = deployed(inferway.load(file))
    metro = network.nodes.index("metro")
    neighbors = ("cloud", "edge-0", "edge-1")
    (data,) = [one for one in data_of(network) if one.node == metro]
    changed: list[set[str]] = []

    async def main() -> None:
        plane: Any = Plane(*neighbors)
        post = Post(Agent(data, seed=1), plane, network.nodes)
        menu = Menu(
            "metro", plane, links_s=dict.fromkeys(neighbors, 0.01), upstream="cloud",
            changed=changed.append,
        )  # fmt: skip
        post.open()
        fed = 0

        def feed(one: tuple[str, str, bytes]) -> None:
            nonlocal fed
            fed += 1
            if fed % 100 == 0:
                post.close_slot(fed // 100, {}, {})
            if fed % 100 == 50:
                post.step()
            if fed % 1_000 == 0:
                # Whatever was believed until now, who comes anew is heard.
                menu._neighbor("cloud", False)
                menu._neighbor("cloud", True)
                menu._letter("cloud", MENU, packed(MENUS[0]))
                assert menu._heard["cloud"].listing is not None
                changed.clear()
            post._letter(*one)
            menu._letter(*one)

        Course("letters", letter, count).run(feed)
        assert sum(post.refused.values()) + sum(menu.refused.values()) > count // 4 or count < FEW

    asyncio.run(main())
