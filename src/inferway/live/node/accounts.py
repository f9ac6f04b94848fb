"""What a node measured in a slot: which requests entered, came by, and were served here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote

from inferway.live.request import Outcome, Request


class Measured(NamedTuple):
    """A slot's counts, in rows; what is passed on for neighbors counts as one row: nobody reads it.

    Attributes
    ----------
    arrived
        By request type: what clients asked of this node, answered or not.
    reached
        By request type: that, and what neighbors sent here or through here.
    served
        By (request type, variant): what the node's own copies answered.
    """

    arrived: dict[int, float]
    reached: dict[int, float]
    served: dict[tuple[int, str], float]


class Accounts:
    """Counts requests by their type: the task, and the node where they entered.

    Parameters
    ----------
    node
        The node's name.
    types
        Request type by (task, entry node). What is of none is served and not counted by type.
    """

    def __init__(self, node: str, types: Mapping[tuple[str, str], int]) -> None:
        self.node = node
        self._types = types
        self.arrived = self.forwarded = self.served = self.passed = self.failed = 0
        """Rows since the start: asked by clients, of these sent on, served here for anybody, sent
        on for others, and asked by clients but not answered."""
        self.for_clients: Counter[tuple[str, str]] = Counter()
        """Rows since the start, by task and variant: served here for clients of this node."""
        self._arrived: Counter[int] = Counter()
        self._reached: Counter[int] = Counter()
        self._served: Counter[tuple[int, str]] = Counter()

    def ended(self, task: str, request: Request) -> None:
        """Count a request that a site has ended."""
        exchange, rows = request.raw, request.rows
        path: bytes = b"" if exchange is None else exchange.path
        entry = unquote(path.partition(b",")[0].decode("latin-1")) if path else self.node
        kind = self._types.get((task, entry))
        own = request.outcome is Outcome.ANSWERED and request.node in ("", self.node)
        if own:
            self.served += rows
            if not path:
                self.for_clients[task, request.variant] += rows
        if not path:
            self.arrived += rows
            if request.outcome is not Outcome.ANSWERED:
                self.failed += rows
            elif not own:
                self.forwarded += rows
        if kind is None:
            return
        self._reached[kind] += rows
        if not path:
            self._arrived[kind] += rows
        if own:
            self._served[kind, request.variant] += rows

    def came(self, task: str, entry: str, here: bool, variant: str) -> None:
        """Count a request from a neighbor; as `inferway.live.node.proxy.Passed`.

        One that is to be served here is counted, by its rows, when it has `ended`.
        """
        del variant
        if here:
            return
        self.passed += 1
        kind = self._types.get((task, entry))
        if kind is not None:
            self._reached[kind] += 1

    def cut(self) -> Measured:
        """Return what has come since the last cut, and begin anew."""
        measured = Measured(
            {kind: float(rows) for kind, rows in self._arrived.items()},
            {kind: float(rows) for kind, rows in self._reached.items()},
            {key: float(rows) for key, rows in self._served.items()},
        )
        self._arrived.clear()
        self._reached.clear()
        self._served.clear()
        return measured
