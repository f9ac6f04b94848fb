"""Orders to a running relay: cut, heal, slow down, lose, limit, count."""

from __future__ import annotations

import json
import socket
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from inferway.lab.record import STATE, EmulationError

_LIMIT_S: Final = 10.0


class Passed(NamedTuple):
    """Traffic that went one way over a link.

    Attributes
    ----------
    packets, bytes
        That arrived. A packet is what the sender's kernel hands over: up to 64 KB, but no more than
        1,500 bytes from a node of whose links one has loss or a limit.
    lost
        Packets that loss or a cut took.
    full
        Packets that found the queue of a limited link full.
    """

    packets: int
    bytes: int
    lost: int
    full: int


class Counts(NamedTuple):
    """Counters of the relay.

    Attributes
    ----------
    passed
        By the sender's and the receiver's name.
    late
        (B,) packets by how late they arrived: less than 1, 2, 4, 8, ... µs.
    cpu_s
        Seconds of CPU that it took.
    """

    passed: dict[tuple[str, str], Passed]
    late: NDArray[np.int64]
    cpu_s: float

    def late_s(self, share: float) -> float:
        """Tell how late this share of the packets was at most, as a power of two."""
        if not self.late.any():
            return 0.0
        below = np.searchsorted(np.cumsum(self.late), share * self.late.sum())
        return float(2.0**below * 1e-6)


class Controls:
    """Changes a network while it runs, by its name; from any process of root's.

    Two names are the ends of a link, one name stands for all links of a node; with ``both=False``
    only what goes from the first to the second is changed. EmulationError from everything here, if
    the emulation does not run, or has no such node or link.
    """

    def __init__(self, name: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_LIMIT_S)
        try:
            self._socket.connect(str(STATE / name / "control"))
        except OSError as error:
            self._socket.close()
            raise EmulationError(
                f"there is no emulated network called {name} to talk to ({error.strerror})"
            ) from error
        self._answers = self._socket.makefile("rb")

    def cut(self, *ends: str, both: bool = True) -> None:
        """Lose everything, what is on the way too. Nobody is told: packets just do not arrive."""
        if not ends:
            raise EmulationError("name the link or the node that is to be cut off")
        self._order(do="cut", ends=ends, both=both)

    def heal(self, *ends: str, both: bool = True) -> None:
        """Make links as the file says again; without a name, all of them."""
        self._order(do="heal", ends=ends, both=both)

    def slow(self, *ends: str, rtt_s: float, both: bool = True) -> None:
        """Give links this round-trip time; half of it each way."""
        self._change(ends, both, "a round-trip time", rtt_s, delay_s=rtt_s / 2)

    def lose(self, *ends: str, share: float, both: bool = True) -> None:
        """Lose this share of the packets, each by its own luck."""
        if share > 1:
            raise EmulationError(f"a share of {share:g} cannot be lost; it is 0 to 1")
        self._change(ends, both, "a share", share, loss=share)

    def limit(self, *ends: str, bytes_per_s: float, both: bool = True) -> None:
        """Let no more bytes pass in a second, each way; 0 for as many as there are."""
        self._change(ends, both, "a limit", bytes_per_s, bytes_per_s=bytes_per_s)

    def counts(self) -> Counts:
        """Ask what passed so far."""
        counts = self._order(do="count")
        passed = {(one, other): Passed(*rest) for one, other, *rest in counts["pairs"]}
        return Counts(passed, np.array(counts["late"], np.int64), counts["cpu_s"])

    def close(self) -> None:
        """Say no more; what was changed stays."""
        self._answers.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _change(
        self, ends: tuple[str, ...], both: bool, what: str, value: float, **change: float
    ) -> None:
        if not (value >= 0 and np.isfinite(value)):
            raise EmulationError(f"{what} is 0 or more, not {value:g}")
        if not ends:
            raise EmulationError("name the link or the node that is to be changed")
        self._order(do="change", ends=ends, both=both, **change)

    def _order(self, **order: Any) -> dict[str, Any]:
        try:
            self._socket.sendall(json.dumps(order).encode() + b"\n")
            line = self._answers.readline()
            if not line.endswith(b"\n"):
                raise ConnectionError("it closed the connection")
        except OSError as error:
            raise EmulationError(
                f"the relay of the emulated network does not answer: {error}"
            ) from error
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EmulationError(answer["error"])
        return answer
