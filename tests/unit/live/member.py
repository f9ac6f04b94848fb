"""One node as a process: an agent over the control plane, told on standard input what to do.

python member.py SETTINGS NODE, with SETTINGS a JSON file of {file, addresses, certs, seed, slot_s}.
Each line in is a command, each line out an answer or an event with the time of the clock that all
processes share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import inferway
from inferway.live.control.peers import Peers
from inferway.live.control.session import neighbors_of
from inferway.live.node.placement import SlotClock
from inferway.live.node.placement_messages import PlacementMessages
from inferway.live.security.tls import Credentials
from inferway.network import network_of, topology_of
from inferway.placement.agent import Agent
from inferway.placement.layout import data_of


class Member:
    def __init__(self, settings: dict[str, Any], name: str) -> None:
        deployment = inferway.load(settings["file"])
        topology, network = topology_of(deployment), network_of(deployment)
        self.node = network.nodes.index(name)
        certs = settings["certs"]
        self.peers = Peers(
            name,
            network="test",
            listen=settings["addresses"][name],
            neighbors=neighbors_of(topology, name, settings["addresses"]),
            credentials=None if certs is None else Credentials.of(name, Path(certs)),
        )
        self.agent = Agent(data_of(network)[self.node], seed=settings["seed"])
        self.post = PlacementMessages(self.agent, self.peers, network.nodes)
        self.slot_s = settings["slot_s"]
        self.peers.on_neighbor(lambda who, alive: self.say(event=who, alive=alive))
        # Of all slots so far, as counts are cut once a slot.
        self.sent: dict[str, list[int]] = {}
        self.received: dict[str, list[int]] = {}

    def say(self, **what: Any) -> None:
        print(json.dumps({"at": time.monotonic(), **what}), flush=True)

    def close(self, slot: int, arrived: dict[str, float], load: dict[str, list[float]]) -> None:
        self.post.close_slot(
            slot,
            {int(rho): count for rho, count in arrived.items()},
            {int(rho): np.array(served) for rho, served in load.items()},
        )

    async def run_slots(self, count: int, arrived: Any, load: Any) -> None:
        """Run slots by the clock, without anybody's help."""
        clock = SlotClock(self.slot_s)
        numbers, lags = [], []
        for _ in range(count):
            slot = await clock.ended()
            lags.append(time.time() - slot.number * self.slot_s)
            numbers.append(slot.number)
            self.close(slot.number, arrived, load)
            await clock.letters()
            self.post.step()
        self.say(slots=numbers, lags=lags)

    def counts(self) -> None:
        traffic = self.peers.cut()
        for total, new in ((self.sent, traffic.sent), (self.received, traffic.received)):
            for (_, kind), (letters, size) in new.items():
                count = total.setdefault(kind, [0, 0])
                count[0] += letters
                count[1] += size
        refused = {f"{who} {why}": n for (who, why), n in self.post.refused.items()}
        self.say(
            sent=self.sent, received=self.received, refused=refused, waiting=len(self.post._asked)
        )

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=1 << 24)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        began = time.monotonic()
        await self.peers.open()
        self.post.open()
        self.say(opening=began)
        background: set[asyncio.Task[None]] = set()
        while line := await reader.readline():
            command = json.loads(line)
            match command.pop("do"):
                case "close":
                    self.close(**command)
                    self.say(done="close")
                case "step":
                    self.post.step()
                    self.say(done="step")
                case "run":
                    background.add(asyncio.create_task(self.run_slots(**command)))
                case "counts":
                    self.counts()
                case "state":
                    state = self.agent.state
                    self.say(
                        x=state.x.tolist(),
                        y=state.y.tobytes().hex(),
                        steps=int(state.slot[0]),
                        alive=sorted(self.peers.alive),
                    )
        await self.peers.close()


if __name__ == "__main__":
    asyncio.run(Member(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2]).run())
