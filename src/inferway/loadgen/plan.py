"""What the generator's process is to send: encoded requests and when each is due."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.loadgen.record import read_archive, write_archive
from inferway.protocol.address import ServerAddress


@dataclass(frozen=True)
class SendPlan:
    """Everything that the generator needs; tasks do not concern it.

    Attributes
    ----------
    addresses
        The servers that it talks to.
    heads
        Distinct beginnings of requests, as `inferway.loadgen.message.head` encodes them.
    target
        Shape (len(heads),): which server each of them goes to.
    bodies
        Distinct rests of requests, as `inferway.loadgen.message.encode` encodes them.
    due_s
        Shape (N,): when to send, seconds from the start, ascending.
    head, body
        Shape (N,): which of the heads and bodies to send then.
    connections
        Greatest number of connections to each server, each with one request at a time.
    grace_s
        How long to wait for answers after the last send, seconds.
    every_s
        Begin when the wall clock reaches a multiple of this, seconds; 0 to begin at once.
    """

    addresses: Sequence[ServerAddress]
    heads: Sequence[bytes]
    target: Sequence[int]
    bodies: Sequence[bytes]
    due_s: NDArray[np.float64]
    head: NDArray[np.int64]
    body: NDArray[np.int64]
    connections: int
    grace_s: float
    every_s: float = 0.0

    def save(self, path: Path) -> None:
        """Write to a NumPy archive (.npz)."""
        content: dict[str, Any] = {
            "host": tuple(one.host for one in self.addresses),
            "port": np.array([one.port for one in self.addresses]),
            "tls": np.array([one.tls for one in self.addresses]),
            "prefix": tuple(one.prefix for one in self.addresses),
            "target": np.array(self.target, np.int64),
            "due_s": self.due_s,
            "head": self.head,
            "body": self.body,
            "connections": self.connections,
            "grace_s": self.grace_s,
            "every_s": self.every_s,
        }
        for name, parts in (("heads", self.heads), ("bodies", self.bodies)):
            content[name] = np.frombuffer(b"".join(parts), np.uint8)
            content[f"{name}_end"] = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        write_archive(path, content)

    @classmethod
    def load(cls, path: Path) -> SendPlan:
        """Read what `save` wrote."""
        found = read_archive(path)
        places = (found.pop(name) for name in ("host", "port", "tls", "prefix"))
        addresses = [
            ServerAddress(host, int(port), bool(tls), prefix)
            for host, port, tls, prefix in zip(*places, strict=True)
        ]
        for name in ("heads", "bodies"):
            content, end = found[name].tobytes(), found.pop(f"{name}_end").tolist()
            found[name] = [content[start:stop] for start, stop in pairwise(end)]
        return cls(addresses, **found | {"target": found["target"].tolist()})


@dataclass(frozen=True)
class SendOutcome:
    """What the generator saw, in the plan's order; see `Record` for the columns.

    `said` indexes `nodes`, `paths` and `degradations`, which are what answers' headers said of
    nodes, each empty where they said nothing; -1 where there was no answer. `refused` is which
    server could not be reached at the start and why, else empty; `began_s` when the plan's time
    began, seconds since 1970.
    """

    variants: tuple[str, ...]
    sent_s: NDArray[np.float64]
    done_s: NDArray[np.float64]
    status: NDArray[np.int16]
    variant: NDArray[np.int16]
    predicted_class: NDArray[np.int32]
    predicted_s: NDArray[np.float64]
    waited: NDArray[np.bool_]
    reasons: tuple[str, ...]
    reason: NDArray[np.int16]
    said: NDArray[np.int32]
    nodes: tuple[str, ...]
    paths: tuple[str, ...]
    degradations: tuple[str, ...]
    cpu_s: float
    interrupted: bool
    refused: str = ""
    began_s: float = math.nan

    def __len__(self) -> int:
        return len(self.sent_s)

    def columns(self, rows: Any) -> dict[str, Any]:
        """Return what a `Record` takes as it is, of some of the requests."""
        by_request = (
            "sent_s", "done_s", "status", "variant", "predicted_class", "predicted_s", "waited",
            "reason",
        )  # fmt: skip
        whole = ("variants", "reasons", "cpu_s", "interrupted")
        return {name: getattr(self, name)[rows] for name in by_request} | {
            "generated": len(self),
            **{name: getattr(self, name) for name in whole},
        }

    def save(self, path: Path) -> None:
        """Write to a NumPy archive (.npz)."""
        write_archive(path, vars(self))

    @classmethod
    def load(cls, path: Path) -> SendOutcome:
        """Read what `save` wrote."""
        return cls(**read_archive(path))
