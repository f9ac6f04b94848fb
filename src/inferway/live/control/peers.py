"""A node's neighbors: which of them live, what each says, and messages to and from them.

All travels over Zenoh, in the process and without a broker, between neighbors only: what others say
does not reach a node (`inferway.live.control.session`). A neighbor lives while it holds a
liveliness token; a process that dies takes its connection along at once, one that hangs is noticed
after the lease, and either is connected to again by itself.

A node puts and deletes values under keys of its own, one set for each neighbor, and answers queries
with all of them. A neighbor that has come is asked once, and so is one of whose changes some are
missing (`inferway.live.control.link`). Nothing is waited for: where a link is full, samples are
dropped, and the query makes it good. Zenoh's advanced publishers do the same for one key each; for
a key per offer they declare more bytes than the offers have.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from inferway.extras import installing
from inferway.live.control.link import STATE_BYTES, PeerLink, Sample, WholeState
from inferway.live.control.session import ALIVE, KeyExpressions, settings
from inferway.live.errors import ServeError
from inferway.live.security.tls import Credentials
from inferway.live.threads import Wakeup
from inferway.version import NODE_PROTOCOL

# The kind of what a node offers.
MENU: Final = "menu"
# The kinds of placement's messages.
PLACEMENT: Final = ("floor", "needed", "worst", "offers", "above", "below", "quiet")
KINDS: Final = frozenset((MENU, *PLACEMENT))

# A neighbor from which nothing comes for so long is gone.
LEASE_S: Final = 1.0
# Most that one sample may have.
LIMIT_BYTES: Final = 1 << 20
# Of one neighbor, until the loop has looked; what comes beyond is dropped.
_INBOX_BYTES: Final = 64 << 20
# What a sample takes beside its content.
_SAMPLE_BYTES: Final = 256
# A neighbor's state is on its way for so long at most, and is not asked for again at once.
_QUERY_S: Final = 10.0
_ASK_AGAIN_S: Final = 0.5
# Process, number and version of the protocol, with each sample; what stands behind is left aside.
_STAMP: Final = struct.Struct(">4sQB")
_KNOWN: Final = bytes([NODE_PROTOCOL])
# The last reply to a query.
_WHOLE: Final = "whole"


# Samples and bytes by (neighbor, kind).
Counts = dict[tuple[str, str], tuple[int, int]]


class Traffic(NamedTuple):
    """Traffic over the node's links since the last `Peers.cut`.

    Attributes
    ----------
    sent, received
        Samples and bytes, by (neighbor, kind); the bytes are of names and contents.
    refused
        Samples that were dropped, by (neighbor, reason): ``gone`` (nobody was there) and ``large``
        before they were sent; ``large``, ``kind``, ``anonymous`` (names no process), ``flood``,
        ``full``, ``old`` (overtaken), ``gone`` (of another process than the one that counts)
        and ``version`` (of a later protocol) when they came; ``failed`` where whoever took them
        raised.
    """

    sent: Counts
    received: Counts
    refused: dict[tuple[str, str], int]


class _Token(NamedTuple):
    process: str
    there: bool


class Peers:
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
        connect to it (`inferway.live.control.session.neighbors_of`).
    credentials
        The node's, checked by `open`; None for TCP without encryption, where any process that
        reaches the address may speak in a neighbor's name.
    delays_s
        Delay of all that is said to a neighbor, s, by neighbor, where links are emulated.

    Attributes
    ----------
    alive
        The neighbors that live.
    """

    def __init__(
        self,
        node: str,
        *,
        network: str,
        listen: str,
        neighbors: Mapping[str, str | None],
        credentials: Credentials | None,
        delays_s: Mapping[str, float] | None = None,
    ) -> None:
        self.node, self.listen = node, listen
        self._addresses, self._credentials = dict(neighbors), credentials
        self._keys, self._delays_s = KeyExpressions(network, node), delays_s or {}
        self._on_sample: list[Callable[[str, str, str, bytes | None], None]] = []
        self._on_neighbor: list[Callable[[str, bool], None]] = []
        self.alive: frozenset[str] = frozenset()
        self._process = secrets.token_bytes(4)
        self._links = {neighbor: PeerLink(neighbor) for neighbor in neighbors}
        self._session: Any = None
        self._held: list[Any] = []  # what would end if nobody kept it
        self._bell: Wakeup | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # Guards what Zenoh's threads share with the loop's.
        self._lock = threading.Lock()
        self._inbox: deque[tuple[PeerLink, Sample | WholeState | _Token]] = deque()
        self._sent: Counts = {}
        self._received: Counts = {}
        self._refused: Counter[tuple[str, str]] = Counter()

    def on_sample(self, callback: Callable[[str, str, str, bytes | None], None]) -> None:
        """Call with (neighbor, kind, name, data) on the loop for each message and changed value.

        A message has no name, and a value that was deleted no data.
        """
        self._on_sample.append(callback)

    def on_neighbor(self, callback: Callable[[str, bool], None]) -> None:
        """Call with (neighbor, alive) on the loop when one comes or goes.

        One that has restarted goes and comes, even where its going was not noticed. When it comes,
        its state follows at once; when it goes, its values are gone without another word.
        """
        self._on_neighbor.append(callback)

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

    def publish(self, neighbor: str, kind: str, values: Mapping[str, bytes]) -> None:
        """Make these all values of a kind, by name; if they are already, say that they hold."""
        self._later(neighbor, self._publish, kind, values)

    def put(self, neighbor: str, kind: str, name: str, data: bytes) -> None:
        """Set one value."""
        self._later(neighbor, self._put, f"{kind}/{name}", data)

    def send(self, neighbor: str, kind: str, data: bytes) -> None:
        """Send a message, in order with all that is said to the neighbor; it may be lost."""
        self._later(neighbor, self._send, kind, data)

    def cut(self) -> Traffic:
        """Return the traffic since the last cut, and begin anew."""
        with self._lock:
            traffic = Traffic(self._sent.copy(), self._received.copy(), dict(self._refused))
            for counts in (self._sent, self._received, self._refused):
                counts.clear()
        return traffic

    async def close(self) -> None:
        """Say goodbye: neighbors learn at once that the node has gone."""
        session, self._session = self._session, None
        if session is not None:
            await asyncio.to_thread(session.close)
        self._held.clear()
        with self._lock:
            bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()

    # What is said.

    def _later(self, neighbor: str, say: Callable[..., object], *given: object) -> None:
        """Say something at once, or as late as the link is long."""
        link, delay_s = self._links[neighbor], self._delays_s.get(neighbor)
        if delay_s is None:
            say(link, *given)
        else:  # timers of one delay fire in the order in which they were set
            asyncio.get_running_loop().call_later(delay_s, say, link, *given)

    def _publish(self, link: PeerLink, kind: str, values: Mapping[str, bytes]) -> None:
        number, keys = link.number, {f"{kind}/{name}": data for name, data in values.items()}
        said = link.values
        gone = [key for key in said if key.startswith(f"{kind}/") and key not in keys]
        news = [key for key, data in keys.items() if said.get(key) != data]
        for key in (*gone, *news):
            self._put(link, key, keys.get(key))
        if link.number == number:
            self._send(link, kind, b"")

    def _put(self, link: PeerLink, key: str, data: bytes | None) -> None:
        if data is not None and len(data) > LIMIT_BYTES:
            self._refuse(link, "large")
            return
        with self._lock:
            changed = link.say(key, data)
        if changed and link.process is not None:
            self._transmit(link, key, data)

    def _send(self, link: PeerLink, kind: str, data: bytes) -> None:
        there = link.process is not None
        if there and len(data) <= LIMIT_BYTES:
            self._transmit(link, kind, data)
        else:
            self._refuse(link, "large" if there else "gone")

    def _transmit(self, link: PeerLink, key: str, data: bytes | None) -> None:
        import zenoh

        session, at = self._session, f"{self._keys.to(link.neighbor)}/{key}"
        how = {
            "congestion_control": zenoh.CongestionControl.DROP,
            "attachment": _STAMP.pack(self._process, link.number, NODE_PROTOCOL),
        }
        try:
            if session is None:
                raise zenoh.ZError("it is closed")
            if data is None:
                session.delete(at, **how)
            else:
                session.put(at, data, **how)
        except zenoh.ZError:  # the session may close at any moment
            self._refuse(link, "gone")
        else:
            self._count(self._sent, link, key, data)

    def _answer(self, link: PeerLink, query: Any) -> None:
        """Answer a neighbor's query for the whole state, in a thread of Zenoh's."""
        with self._lock:
            number, values = link.number, link.values.copy()
        at, stamp = self._keys.to(link.neighbor), _STAMP.pack(self._process, number, NODE_PROTOCOL)
        with query:
            for key, data in values.items():
                query.reply(f"{at}/{key}", data, attachment=stamp)
                self._count(self._sent, link, key, data)
            # Last: all are there once this is.
            query.reply(f"{at}/{_WHOLE}", b"", attachment=stamp)

    def _connect(self) -> None:
        import zenoh

        config = settings(
            self._keys,
            self.listen,
            self._addresses,
            self._credentials,
            lease_s=LEASE_S,
            # What a sample is wrapped in comes on top.
            limit_bytes=LIMIT_BYTES + 4096,
        )
        try:
            session = zenoh.open(zenoh.Config.from_json5(config))
        except zenoh.ZError as error:
            # Without the places in Zenoh's source.
            cause = str(error).partition(" at /")[0].strip() or type(error).__name__
            raise ServeError(
                f"node {self.node} cannot listen for its neighbors at {self.listen}: {cause}"
            ) from None
        self._session = session
        remote = zenoh.Locality.REMOTE
        for neighbor, link in self._links.items():
            there, here = self._keys.of(neighbor), self._keys.to(neighbor)
            answer, hear, see = (partial(do, link) for do in (self._answer, self._hear, self._see))
            self._held += [
                session.declare_queryable(f"{here}/**", answer, allowed_origin=remote),
                session.declare_subscriber(f"{there}/**", hear, allowed_origin=remote),
                session.liveliness().declare_subscriber(f"{there}/{ALIVE}/*", see, history=True),
            ]
        # Last: who sees the token may ask and write at once.
        for neighbor in self._links:
            token = f"{self._keys.to(neighbor)}/{ALIVE}/{self._process.hex()}"
            self._held.append(session.liveliness().declare_token(token))

    # What is heard.

    def _see(self, link: PeerLink, token: Any) -> None:
        import zenoh

        process = str(token.key_expr).rpartition("/")[2]
        self._arrive(link, _Token(process, token.kind == zenoh.SampleKind.PUT))

    def _hear(self, link: PeerLink, heard: Any) -> None:
        sample = self._read(link, heard)
        if sample is not None:
            self._arrive(link, sample)

    def _read(self, link: PeerLink, heard: Any) -> Sample | None:
        """Read a sample; what no neighbor in its senses would send is counted."""
        import zenoh

        key = str(heard.key_expr)[len(self._keys.of(link.neighbor)) + 1 :]
        kind, _, name = key.partition("/")
        stamp = b"" if heard.attachment is None else heard.attachment.to_bytes()
        for wrong, reason in (
            (kind not in KINDS and key != _WHOLE, "kind"),
            (len(heard.payload) > LIMIT_BYTES, "large"),
            (len(stamp) < _STAMP.size, "anonymous"),
            (stamp[_STAMP.size - 1 : _STAMP.size] > _KNOWN, "version"),
        ):
            if wrong:
                self._refuse(link, reason)
                return None
        process, number, _ = _STAMP.unpack_from(stamp)
        gone = heard.kind == zenoh.SampleKind.DELETE
        data = None if gone else heard.payload.to_bytes()
        return Sample(process.hex(), number, kind, name, data)

    def _arrive(self, link: PeerLink, what: Sample | WholeState | _Token) -> None:
        size = _size(what)
        with self._lock:
            if isinstance(what, Sample) and link.pending + size > _INBOX_BYTES:
                self._refused[link.neighbor, "flood"] += 1
                return
            link.pending += size
            self._inbox.append((link, what))
            if self._bell is not None:
                self._bell.ring()

    def _deliver(self) -> None:
        # Not more than is there now: a neighbor that never stops must not keep the loop.
        for _ in range(len(self._inbox)):
            with self._lock:
                link, what = self._inbox.popleft()
                link.pending -= _size(what)
            if isinstance(what, Sample):
                self._take(link, what)
            elif isinstance(what, WholeState):
                self._settle(link, what)
            elif link.see(what.process, what.there):
                self._tell_alive(link, False)
                if link.process is not None:
                    self._ask(link, link.process)

    def _tell_alive(self, link: PeerLink, alive: bool) -> None:
        if (link.neighbor in self.alive) != alive:
            self.alive ^= {link.neighbor}
            for callback in self._on_neighbor:
                self._guarded(link, callback, alive)

    def _settle(self, link: PeerLink, snapshot: WholeState) -> None:
        """Take in a neighbor's whole state; whether there was any, it lives."""
        if snapshot.process != link.process:
            return
        link.asking = None
        self._tell_alive(link, True)
        for sample in snapshot.samples:
            self._count(self._received, link, sample.key, sample.data)
        if snapshot.number >= 0:
            for sample in link.settle(snapshot):
                self._hand_over(link, sample)

    def _take(self, link: PeerLink, sample: Sample) -> None:
        if sample.process == link.process:
            self._count(self._received, link, sample.key, sample.data)
        reason = link.take(sample)
        if reason is None:
            self._hand_over(link, sample)
        else:
            self._refuse(link, reason)
        if link.process is not None and not link.whole:
            self._ask(link, link.process, again=True)

    def _hand_over(self, link: PeerLink, sample: Sample) -> None:
        for callback in self._on_sample:
            self._guarded(link, callback, sample.kind, sample.name, sample.data)

    def _ask(self, link: PeerLink, process: str, *, again: bool = False) -> None:
        """Query a neighbor's state; if again, unless it is asked already, and not too often."""
        assert self._loop is not None
        if again and link.asking == process:
            return
        at_s = self._loop.time()
        if again:
            at_s = max(at_s, link.asked_s + _ASK_AGAIN_S)
        link.asking, link.asked_s = process, at_s
        # Not on the loop: a query waits where the link is full.
        self._loop.call_at(at_s, self._loop.run_in_executor, None, self._query, link, process)

    def _query(self, link: PeerLink, process: str) -> None:
        import zenoh

        samples: list[Sample] = []
        left = STATE_BYTES

        def reply(one: Any) -> None:
            nonlocal left
            sample = None if one.ok is None else self._read(link, one.ok)
            if sample is not None and sample.process == process and left > 0:
                left -= _size(sample)
                samples.append(sample)

        def end() -> None:
            last = samples.pop() if samples and samples[-1].kind == _WHOLE else None
            number = -1 if last is None else last.number
            self._arrive(link, WholeState(process, number, samples if last else []))

        session = self._session
        with suppress(zenoh.ZError):  # the session may close at any moment
            if session is not None:
                session.get(
                    f"{self._keys.of(link.neighbor)}/**",
                    zenoh.handlers.Callback(reply, end),
                    consolidation=zenoh.ConsolidationMode.NONE,
                    congestion_control=zenoh.CongestionControl.BLOCK,
                    timeout=_QUERY_S,
                )

    def _guarded(self, link: PeerLink, callback: Callable[..., None], *given: object) -> None:
        """Call what is not ours: what it raises is the loop's to report, and nothing is held up."""
        try:
            callback(link.neighbor, *given)
        except Exception as error:
            self._refuse(link, "failed")
            assert self._loop is not None
            message = f"what neighbor {link.neighbor} said was not taken"
            self._loop.call_exception_handler({"message": message, "exception": error})

    def _count(self, counts: Counts, link: PeerLink, key: str, data: bytes | None) -> None:
        kind, _, name = key.partition("/")
        with self._lock:
            samples, size = counts.get((link.neighbor, kind), (0, 0))
            counts[link.neighbor, kind] = samples + 1, size + len(name) + len(data or b"")

    def _refuse(self, link: PeerLink, reason: str) -> None:
        with self._lock:
            self._refused[link.neighbor, reason] += 1


def _size(what: Sample | WholeState | _Token) -> int:
    """Count what something takes until the loop has looked, in bytes."""
    if isinstance(what, WholeState):
        return _SAMPLE_BYTES + sum(map(_size, what.samples))
    data = what.data if isinstance(what, Sample) else None
    return _SAMPLE_BYTES + len(data or b"")


def check_extra(*, secured: bool) -> None:
    """Have what nodes talk to each other with installed, all in one extra; else ServeError."""
    for module in ("zenoh", "cryptography") if secured else ("zenoh",):
        if find_spec(module) is None:
            raise ServeError(
                f"nodes that talk to each other need {module}, which is in the extra `network`: "
                f"{installing('network')}"
            )
