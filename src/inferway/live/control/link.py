"""One link's state: what a node says to a neighbor, and what it holds of what the neighbor says.

Either end has values under keys, of which the last counts. Each change of them has the next number,
and each sample names the process that sent it. So a reader keeps the newest, sees where something
is missing, and then takes the whole state as of a number, which the neighbor answers a query with.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# Most that is held of what one neighbor says.
STATE_BYTES: Final = 64 << 20
# A neighbor holds one token, and two for a moment when it restarts.
_PROCESSES: Final = 4


class Sample(NamedTuple):
    """A value that a neighbor put or deleted, or a message of it.

    Attributes
    ----------
    process
        The neighbor's process that sent it.
    number
        Of the change; of the last change before it where it is a message.
    kind, name
        Its key in two parts; a message has no name.
    data
        The content; None where the value was deleted.
    """

    process: str
    number: int
    kind: str
    name: str
    data: bytes | None

    @property
    def key(self) -> str:
        """Kind and name."""
        return f"{self.kind}/{self.name}"


class WholeState(NamedTuple):
    """All that a neighbor's process says, as of a number."""

    process: str
    number: int
    samples: list[Sample]


class _Held(NamedTuple):
    """A value as known: its number, its bytes, and whether it is there or was deleted."""

    number: int
    size: int
    there: bool


_NOTHING: Final = _Held(-1, 0, False)


class PeerLink:
    """The link to one neighbor, without the wire.

    Attributes
    ----------
    values
        What is said to the neighbor, by key.
    number
        Of the last change of it.
    whole
        True while all that the neighbor says is held.
    """

    whole = False
    # Of the last query for the neighbor's state: when it was, and which process it is of.
    asked_s = 0.0
    asking: str | None = None
    # Bytes of what has come and the loop has not looked at.
    pending = 0

    def __init__(self, neighbor: str = "") -> None:
        self.neighbor = neighbor
        self.values: dict[str, bytes] = {}
        self._processes: list[str] = []
        self._held: dict[str, _Held] = {}
        # Changes came without a gap from the first to the last of these numbers.
        self.number = self._bytes = self._first = self._last = 0

    def say(self, key: str, data: bytes | None) -> bool:
        """Set a value, or delete it; returns whether that changes anything."""
        if self.values.get(key) == data:
            return False
        if data is None:
            del self.values[key]
        else:
            self.values[key] = data
        self.number += 1
        return True

    @property
    def process(self) -> str | None:
        """The neighbor's process that counts: the last to come of those that live."""
        return self._processes[-1] if self._processes else None

    def see(self, process: str, there: bool) -> bool:
        """Note that a process came or went; returns whether another one counts now."""
        before = self.process
        if not there:
            self._processes = [one for one in self._processes if one != process]
        elif process not in self._processes and len(self._processes) < _PROCESSES:
            self._processes.append(process)
        if self.process == before:
            return False
        self._held, self._bytes, self.whole = {}, 0, False
        self._first = self._last = 0
        return True

    def take(self, sample: Sample) -> str | None:
        """Take in a sample; returns why it is dropped, or None where it is news.

        What was overtaken is ``old``, what another process sent ``gone``, and ``full`` what would
        be more than is held of one neighbor.
        """
        if sample.process != self.process:
            return "gone"
        change = 1 if sample.name else 0
        if sample.number != self._last + change:
            self.whole = False
            self._first = sample.number + 1 - change
        self._last = sample.number
        return self._keep(sample) if change else None

    def settle(self, snapshot: WholeState) -> list[Sample]:
        """Take in the whole state; returns what that changes."""
        at = snapshot.number
        there = {sample.key for sample in snapshot.samples}
        missing = [
            Sample(snapshot.process, at, kind, name, None)
            for key, held in self._held.items()
            if held.there and held.number < at and key not in there
            for kind, _, name in (key.partition("/"),)
        ]
        news = [one for one in (*missing, *snapshot.samples) if self._keep(one) is None]
        for key in [key for key, held in self._held.items() if not held.there]:
            self._bytes -= self._held.pop(key).size
        self.whole = self._first <= at + 1
        if self._last < at:
            self._first = self._last = at
        return news

    def _keep(self, sample: Sample) -> str | None:
        key = sample.key
        before = self._held.get(key, _NOTHING)
        if sample.number <= before.number:
            return "old"
        size = len(key) + len(sample.data or b"")
        if self._bytes + size - before.size > STATE_BYTES:
            return "full"
        self._bytes += size - before.size
        self._held[key] = _Held(sample.number, size, sample.data is not None)
        if self.whole and sample.data is None:  # nothing older can come any more
            self._bytes -= self._held.pop(key).size
        return None
