"""What the generator's process is to send: encoded requests and when each is due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.drive.address import Address


@dataclass(frozen=True)
class Plan:
    """Everything that the generator needs; tasks do not concern it.

    Attributes
    ----------
    address
        The one server that it talks to.
    messages
        Distinct HTTP requests.
    due_s
        Shape (N,): when to send, seconds from the start, ascending.
    message
        Shape (N,): which message to send then.
    connections
        Greatest number of connections, each with one request at a time.
    grace_s
        How long to wait for answers after the last send, seconds.
    """

    address: Address
    messages: Sequence[bytes]
    due_s: NDArray[np.float64]
    message: NDArray[np.int64]
    connections: int
    grace_s: float

    def save(self, path: Path) -> None:
        """Write to a NumPy archive (.npz)."""
        a = self.address
        with path.open("wb") as file:
            np.savez(
                file,
                text=np.array([a.host, a.prefix]),
                port=np.array([a.port, a.tls]),
                content=np.frombuffer(b"".join(self.messages), np.uint8),
                end=np.cumsum([0, *map(len, self.messages)], dtype=np.int64),
                due_s=self.due_s,
                message=self.message,
                connections=self.connections,
                grace_s=self.grace_s,
            )

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as data:
            host, prefix = data["text"].tolist()
            port, tls = data["port"].tolist()
            content = data["content"].tobytes()
            return cls(
                Address(host, port, bool(tls), prefix),
                [content[start:end] for start, end in pairwise(data["end"].tolist())],
                data["due_s"],
                data["message"],
                int(data["connections"]),
                float(data["grace_s"]),
            )


@dataclass(frozen=True)
class Outcome:
    """What the generator saw, in the plan's order; see `Record` for the columns.

    `refused` is the reason why no connection could be made at the start, else empty.
    """

    variants: tuple[str, ...]
    sent_s: NDArray[np.float64]
    done_s: NDArray[np.float64]
    status: NDArray[np.int16]
    variant: NDArray[np.int16]
    predicted_class: NDArray[np.int32]
    predicted_s: NDArray[np.float64]
    waited: NDArray[np.bool_]
    cpu_s: float
    interrupted: bool
    refused: str = ""

    def __len__(self) -> int:
        return len(self.sent_s)

    def save(self, path: Path) -> None:
        """Write to a NumPy archive (.npz)."""
        with path.open("wb") as file:
            columns: dict[str, Any] = vars(self)
            np.savez(file, **columns)

    @classmethod
    def load(cls, path: Path) -> Outcome:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as data:
            columns = {name: data[name] for name in data.files}
        return cls(
            tuple(columns.pop("variants").tolist()),
            cpu_s=float(columns.pop("cpu_s")),
            interrupted=bool(columns.pop("interrupted")),
            refused=str(columns.pop("refused")),
            **columns,
        )
