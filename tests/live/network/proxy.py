"""What stands before a node's peer port, in its namespace, and does as a test says.

The node lives, and so does its control plane; whoever sends it requests meets this instead. Run as
a program it takes where it listens and the node's own address, and from its standard input a fault
in each line.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

sys.path.insert(0, str(Path(__file__).parents[1] / "node"))

from wire import ENDLESS, Wire, announced, replaced, swallowed

if TYPE_CHECKING:
    from ring import Ring

PORT: Final = 9003
QUEUED: Final = 100
"""Connections that may wait for it."""
ERROR: Final = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"


class Proxy:
    """Stands before a node, for one of its neighbors, which is started anew.

    Parameters
    ----------
    ring
        The nodes.
    node
        Before which it stands.
    neighbor
        Whose requests it gets.
    folder
        For a file of addresses.
    """

    def __init__(self, ring: Ring, node: str, neighbor: str, folder: Path) -> None:
        host = ring.network.addresses[node]
        addresses = json.loads(ring.up.addresses_file.read_text())
        words = [sys.executable, __file__, host, addresses[node]["peer"]]
        addresses[node]["peer"] = f"{host}:{PORT}"
        file = folder / "addresses.json"
        file.write_text(json.dumps(addresses))
        ring.up.terminate(neighbor)
        ring.otherwise(neighbor, addresses=file)
        self._process = subprocess.Popen(
            ring.network.command(node, words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self._heard("listening")
            ring.up.start(neighbor)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def begin(self, fault: str) -> None:
        """Hang, swallow packets, drip, announce too much, or answer errors, from now on."""
        assert self._process.stdin is not None
        self._process.stdin.write(fault + "\n")
        self._process.stdin.flush()
        self._heard(fault)
        if fault in ("hang", "swallow"):
            self._process.send_signal(signal.SIGSTOP)

    def heal(self) -> None:
        """Carry everything as it is, from now on."""
        self._process.send_signal(signal.SIGCONT)
        self.begin("heal")

    def _heard(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == word + "\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._process:
            self._process.kill()


async def main(host: str, target: str) -> None:
    """Carry what comes, and do what the standard input says."""
    wire = Wire(target)
    await wire.open(host, PORT)
    print("listening", flush=True)
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        wire.heal()
        wire.queue(QUEUED)
        fault = line.decode().strip()
        match fault:
            case "swallow":
                wire.queue(0)
            case "drip":
                wire.piece = 1
            case "announce":
                wire.spoil = announced(1_000_000)
            case "announce more":
                wire.spoil, wire.sparing = announced(10**15), True
            case "health alone":
                wire.spoil, wire.sparing = swallowed, True
            case "drip quickly":
                wire.spoil, wire.piece, wire.sparing = replaced(ENDLESS), 16_384, True
            case "errors":
                wire.spoil = replaced(ERROR)
            case "errors but health":
                wire.spoil, wire.sparing = replaced(ERROR), True
            case "drip but health":
                wire.piece, wire.sparing = 1, True
        print(fault, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
