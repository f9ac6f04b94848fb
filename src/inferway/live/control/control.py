"""The control plane of a node: letters to and from its neighbors, and which of them live.

Letters travel over Zenoh, in the process and without a broker. A node talks to its neighbors only;
what others say does not reach it (`inferway.live.control.session`). A neighbor lives while it holds
a liveliness token; a process that dies takes its connection along at once, one that hangs is
noticed after the lease, and either is connected to again by itself.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from inferway.extras import installing
from inferway.live.control.credentials import Credentials
from inferway.live.control.incarnation import Early, Incarnation
from inferway.live.control.outbox import Outbox
from inferway.live.control.session import ALIVE, Keys, settings
from inferway.live.errors import ServeError
from inferway.live.threads import Wakeup

LETTERS: Final = ("floor", "needed", "worst", "offers")
"""The kinds of placement's messages."""

LEASE_S: Final = 1.0
LIMIT_BYTES: Final = 1 << 20
"""Most that one letter may have."""
# Of one neighbor; what comes beyond is dropped until the loop has looked.
_INBOX: Final = 10_000
# A neighbor holds one token, and two for a moment when it restarts.
_TOKENS: Final = 4
_OUTBOX_BYTES: Final = 64 << 20
# Of letters whose writer has not been seen yet.
_EARLY_BYTES: Final = 16 << 20
_CLOSE_S: Final = 2.0


class Traffic(NamedTuple):
    """What went over the node's links since the last `ControlPlane.cut`.

    Attributes
    ----------
    sent, received
        Letters and bytes, by (neighbor, kind); the bytes are the letters' own.
    refused
        Letters that were dropped, by (neighbor, reason): ``gone`` and ``full`` before they were
        sent; ``large``, ``kind``, ``anonymous`` (names no process), ``flood`` and ``gone`` (its
        process has) when they came; ``failed`` where whoever took them raised.
    """

    sent: dict[tuple[str, str], tuple[int, int]]
    received: dict[tuple[str, str], tuple[int, int]]
    refused: dict[tuple[str, str], int]


class _Arrival(NamedTuple):
    """A letter, or a process of a neighbor that comes (True) or goes (False)."""

    neighbor: str
    process: str
    kind: str | None
    content: bytes | bool


class ControlPlane:
    """A node's links to its neighbors; used from one event loop.

    Parameters
    ----------
    node
        The node's name.
    network
        The network's name; nodes of others are not heard.
    listen
        Own address, as HOST:PORT.
    neighbors
        Their names, with the address of each that this node connects to; None for those that
        connect to it (`inferway.live.control.neighbors`).
    credentials
        The node's, checked by `open`; None for TCP without encryption, where any process that
        reaches the address may speak in a neighbor's name.
    kinds
        The kinds of letters; others are refused.
    lease_s
        A neighbor from which nothing comes for so long is gone.
    limit_bytes
        Most that one letter may have.
    """

    def __init__(
        self,
        node: str,
        *,
        network: str,
        listen: str,
        neighbors: Mapping[str, str | None],
        credentials: Credentials | None,
        kinds: Iterable[str] = LETTERS,
        lease_s: float = LEASE_S,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        self.node, self.listen = node, listen
        self.neighbors = tuple(neighbors)
        self._addresses = dict(neighbors)
        self._keys = Keys(network, node)
        self._credentials = credentials
        self._kinds = frozenset(kinds)
        self.limit_bytes = limit_bytes
        self._lease_s = lease_s
        self._on_letter: list[Callable[[str, str, bytes], None]] = []
        self._on_neighbor: list[Callable[[str, bool], None]] = []
        self._session: Any = None
        self._held: list[Any] = []  # what would end if nobody kept it
        self._outboxes: dict[str, Outbox] = {}
        self._bell: Wakeup | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # Guards what Zenoh's threads share with the loop's.
        self._lock = threading.Lock()
        self._inbox: deque[_Arrival] = deque()
        self._pending: Counter[str] = Counter()
        # Of each neighbor's processes, the last to come being the one that counts.
        self._tokens: dict[str, list[str]] = {neighbor: [] for neighbor in neighbors}
        self._alive: set[str] = set()
        self._processes = {neighbor: Incarnation(_EARLY_BYTES) for neighbor in neighbors}
        self._cleared()

    def on_letter(self, callback: Callable[[str, str, bytes], None]) -> None:
        """Call with (neighbor, kind, data) for each letter, on the loop and in their order."""
        self._on_letter.append(callback)

    def on_neighbor(self, callback: Callable[[str, bool], None]) -> None:
        """Call with (neighbor, alive) on the loop when one comes or goes.

        One that has restarted goes and comes, even where its going was not noticed. From its coming
        on, letters reach it, and its own are handed over; after its going, none of them is.
        """
        self._on_neighbor.append(callback)

    @property
    def alive(self) -> frozenset[str]:
        """The neighbors that live."""
        return frozenset(self._alive)

    async def open(self) -> None:
        """Listen, and begin to connect to the neighbors; returns without waiting for them.

        Raises
        ------
        ServeError
            Where the address cannot be listened at, the credentials do not hold, or the extra
            `network` is not installed.
        """
        check_extra(secured=self._credentials is not None)
        if self._credentials is not None:
            self._credentials.check(self.node)
        self._loop = asyncio.get_running_loop()
        self._bell = Wakeup(self._loop, self._deliver)
        try:
            await asyncio.to_thread(self._connect)
        except BaseException:
            await self.close()
            raise

    def send(self, neighbor: str, kind: str, data: bytes) -> bool:
        """Send a letter, in order with others to the same neighbor; never waits.

        Returns
        -------
        bool
            False where it is known at once to be lost: the neighbor does not live, or far too much
            waits for it. A letter that is on its way when the link fails is lost without a word.

        Raises
        ------
        ValueError
            For no neighbor, a kind that was not named, or more than the limit.
        """
        if neighbor not in self._addresses:
            raise ValueError(f"{neighbor} is no neighbor of {self.node}")
        if kind not in self._kinds:
            raise ValueError(f"{kind!r} is none of the kinds of letters here")
        if len(data) > self.limit_bytes:
            raise ValueError(
                f"a letter has {len(data)} bytes; at most {self.limit_bytes} are taken"
            )
        outbox = self._outboxes.get(neighbor)
        reason = None
        if outbox is None or neighbor not in self._alive:
            reason = "gone"
        elif not outbox.put(kind, data):
            reason = "full"
        with self._lock:
            if reason is not None:
                self._refused[neighbor, reason] += 1
            else:
                _count(self._sent, neighbor, kind, len(data))
        return reason is None

    def cut(self) -> Traffic:
        """Return the traffic since the last cut, and begin anew."""
        with self._lock:
            traffic = Traffic(
                {link: (n, size) for link, [n, size] in self._sent.items()},
                {link: (n, size) for link, [n, size] in self._received.items()},
                dict(self._refused),
            )
            self._cleared()
        return traffic

    async def close(self) -> None:
        """Say goodbye: neighbors learn at once that the node has gone."""
        await asyncio.to_thread(self._disconnect)
        with self._lock:
            bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()

    def _cleared(self) -> None:
        self._sent: dict[tuple[str, str], list[int]] = {}
        self._received: dict[tuple[str, str], list[int]] = {}
        self._refused: Counter[tuple[str, str]] = Counter()

    def _connect(self) -> None:
        import zenoh

        config = settings(
            self._keys,
            self.listen,
            self._addresses,
            self._credentials,
            lease_s=self._lease_s,
            # What a letter is wrapped in comes on top.
            limit_bytes=self.limit_bytes + 4096,
        )
        try:
            session = zenoh.open(zenoh.Config.from_json5(config))
        except zenoh.ZError as error:
            raise ServeError(
                f"node {self.node} cannot listen for its neighbors at {self.listen}: "
                f"{_first_cause(error)}"
            ) from None
        self._session = session
        incarnation = secrets.token_hex(8)
        remote, block = zenoh.Locality.REMOTE, zenoh.CongestionControl.BLOCK
        for neighbor in self.neighbors:
            there, here = self._keys.of(neighbor), self._keys.to(neighbor)
            publishers = {
                kind: session.declare_publisher(
                    f"{here}/{kind}", congestion_control=block, allowed_destination=remote
                )
                for kind in self._kinds
            }
            self._outboxes[neighbor] = Outbox(
                neighbor,
                lambda kind, data, of=publishers: of[kind].put(data, attachment=incarnation),  # type: ignore[misc]
                lambda kind, size, to=neighbor: self._unsent(to, kind, size),  # type: ignore[misc]
                _OUTBOX_BYTES,
            )
            self._held += [
                session.declare_subscriber(
                    f"{there}/*", self._hears(neighbor, len(there) + 1), allowed_origin=remote
                ),
                session.liveliness().declare_subscriber(
                    f"{there}/{ALIVE}/*", self._sees(neighbor), history=True
                ),
                *publishers.values(),
            ]
        # Last: who sees the token may write at once.
        for neighbor in self.neighbors:
            token = f"{self._keys.to(neighbor)}/{ALIVE}/{incarnation}"
            self._held.append(session.liveliness().declare_token(token))

    def _disconnect(self) -> None:
        for outbox in self._outboxes.values():
            outbox.close(_CLOSE_S)
        self._outboxes.clear()
        if self._session is not None:
            self._session.close()
            self._session = None
        self._held.clear()

    def _hears(self, neighbor: str, prefix: int) -> Callable[[Any], None]:
        """Make what takes a neighbor's letters from Zenoh's thread."""

        def hear(sample: Any) -> None:
            kind = str(sample.key_expr)[prefix:]
            size = len(sample.payload)
            with self._lock:
                if kind not in self._kinds:
                    self._refused[neighbor, "kind"] += 1
                elif size > self.limit_bytes:
                    self._refused[neighbor, "large"] += 1
                elif sample.attachment is None:
                    self._refused[neighbor, "anonymous"] += 1
                elif self._pending[neighbor] >= _INBOX:
                    self._refused[neighbor, "flood"] += 1
                else:
                    self._pending[neighbor] += 1
                    writer = sample.attachment.to_bytes().decode(errors="replace")
                    data = sample.payload.to_bytes()
                    self._inbox.append(_Arrival(neighbor, writer, kind, data))
                    self._ring()

        return hear

    def _sees(self, neighbor: str) -> Callable[[Any], None]:
        """Make what takes a neighbor's liveliness from Zenoh's thread."""
        import zenoh

        put = zenoh.SampleKind.PUT

        def see(sample: Any) -> None:
            token = str(sample.key_expr)
            with self._lock:
                held = self._tokens[neighbor]
                last = held[-1:]
                if sample.kind != put:
                    if token in held:
                        held.remove(token)
                elif token not in held and len(held) < _TOKENS:
                    held.append(token)
                if held[-1:] == last:
                    return
                # Another one than before: it came again before it was seen to have gone.
                for tokens, alive in ((last, False), (held[-1:], True)):
                    self._inbox += [
                        _Arrival(neighbor, token.rpartition("/")[2], None, alive)
                        for token in tokens
                    ]
                self._ring()

        return see

    def _ring(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    def _deliver(self) -> None:
        """Hand over what has come, on the loop."""
        # Not more than is there now: a neighbor that never stops must not keep the loop.
        for _ in range(len(self._inbox)):
            with self._lock:
                neighbor, process, kind, content = self._inbox.popleft()
                if kind is not None:
                    self._pending[neighbor] -= 1
            if isinstance(content, bytes):
                assert kind is not None
                self._take(neighbor, process, kind, content)
            else:
                self._turn(neighbor, process, alive=content)

    def _turn(self, neighbor: str, process: str, *, alive: bool) -> None:
        """Tell that a neighbor comes or goes, and hand over what it wrote before it was seen."""
        early: list[Early] = []
        if alive:
            early, strays = self._processes[neighbor].comes(process)
            self._alive.add(neighbor)
            if strays:
                with self._lock:
                    self._refused[neighbor, "gone"] += strays
        else:
            self._processes[neighbor].goes(process)
            self._alive.discard(neighbor)
        for told in self._on_neighbor:
            self._guarded(neighbor, told, neighbor, alive)
        for letter in early:
            self._read(neighbor, letter.kind, letter.data)

    def _take(self, neighbor: str, process: str, kind: str, data: bytes) -> None:
        match self._processes[neighbor].takes(process, kind, data):
            case None:
                self._read(neighbor, kind, data)
            case "early":
                pass
            case reason:
                with self._lock:
                    self._refused[neighbor, reason] += 1

    def _read(self, neighbor: str, kind: str, data: bytes) -> None:
        with self._lock:
            _count(self._received, neighbor, kind, len(data))
        for taker in self._on_letter:
            self._guarded(neighbor, taker, neighbor, kind, data)

    def _guarded(self, neighbor: str, callback: Callable[..., None], *given: object) -> None:
        """Call what is not ours: what it raises is the loop's to report, and no letter is held."""
        try:
            callback(*given)
        except Exception as error:
            with self._lock:
                self._refused[neighbor, "failed"] += 1
            assert self._loop is not None
            self._loop.call_exception_handler(
                {"message": f"what neighbor {neighbor} said was not taken", "exception": error}
            )

    def _unsent(self, neighbor: str, kind: str, size: int) -> None:
        with self._lock:
            _count(self._sent, neighbor, kind, -size, -1)
            self._refused[neighbor, "gone"] += 1


def _count(
    counts: dict[tuple[str, str], list[int]], neighbor: str, kind: str, size: int, letters: int = 1
) -> None:
    count = counts.setdefault((neighbor, kind), [0, 0])
    count[0] += letters
    count[1] += size


def _first_cause(error: Exception) -> str:
    """Return what matters of Zenoh's error, without the places in its source."""
    text = str(error).partition(" at /")[0].strip()
    return text or type(error).__name__


def check_extra(*, secured: bool) -> None:
    """See to it that what nodes talk to each other with is installed.

    Raises
    ------
    ServeError
        When it is not; it is all in one extra.
    """
    for module in ("zenoh", "cryptography") if secured else ("zenoh",):
        if find_spec(module) is None:
            raise ServeError(
                f"nodes that talk to each other need {module}, which is in the extra `network`: "
                f"{installing('network')}"
            )
