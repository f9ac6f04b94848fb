"""The way to one neighbor: requests out over kept connections, answers back, and its breaker."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Final

from inferway.live.hops.breaker import Breaker
from inferway.live.hops.headers import encoded, live_head
from inferway.live.hops.pool import Pool, Sending
from inferway.live.hops.ways import SEGMENTS_BYTES, Told, Ways
from inferway.live.hops.wire import Answer, Failure

PATIENCE_S: Final = 30.0
"""Longest wait for an answer, unless told otherwise."""
PROBE_S: Final = 1.0
"""Longest wait for the answer to a probe."""
LOOK_S: Final = 0.05
"""Shortest time between two looks at which ways are to be asked."""

Watcher = Callable[[bool, str], None]
"""Told whether the neighbor takes requests from now on, and why not."""


class Hop:
    """Sends requests to one neighbor; all methods belong to the event loop.

    A neighbor that refuses connections, or fails several times in a row, is asked nothing but
    whether it is alive, at growing intervals, until it says so. Where somebody follows how long
    ways through it take, it is asked along those that no request has gone for a while.

    Parameters
    ----------
    name
        Of the neighbor.
    host, port
        Where it listens for hops.
    tls
        Context of encrypted connections, with this node's certificate; None for plain ones.
    server_name
        That the neighbor's certificate must hold; None for the host.
    rtt_s
        Round-trip time to be emulated: a half passes before a request is written, the other before
        its answer is handed on.
    patience_s
        Longest wait for one answer.
    breaker
        Of the neighbor; a new one by default.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        rtt_s: float = 0.0,
        patience_s: float = PATIENCE_S,
        breaker: Breaker | None = None,
    ) -> None:
        self.name, self.host, self.port = name, host, port
        self.rtt_s = rtt_s
        self.breaker = breaker or Breaker()
        self.reason = ""
        """Why nothing is sent; empty while requests are."""
        self._pool = Pool(
            name, host, port, tls, server_name, patience_s, self._answered, self._failed
        )
        self.at = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode()
        """The address, as Host lines have it."""
        self._question = live_head(self.at)
        self._ways, self._me = Ways(monotonic), b""
        self._next_look: asyncio.TimerHandle | None = None
        self._looks: dict[tuple[str, ...], Sending] = {}
        self._sent_before = 0
        self._watchers: list[Watcher] = []
        self._timer: asyncio.TimerHandle | None = None
        self._probe: Sending | None = None
        self._closed = False
        self.sent = self.failures = 0
        """Requests that were sent, and those that got no answer."""

    def send(
        self,
        head: bytes,
        body: bytes | Sequence[bytes],
        done: Callable[[Answer | Failure], None],
    ) -> Sending:
        """Send a request.

        Parameters
        ----------
        head
            Request line and headers, with the empty line (`headers.hop_head`).
        body
            Its bytes, or pieces of them.
        done
            Called once with what came of it, after this has returned, unless it is canceled.

        Returns
        -------
        Sending
            What cancels it.
        """
        sending = Sending(self._pool, head, body, done)
        if not self.breaker.closed:
            asyncio.get_running_loop().call_soon(self._hand_on, sending, self._shut())
        elif self.rtt_s > 0.0:
            loop = asyncio.get_running_loop()
            sending.late = True
            sending.timer = loop.call_later(self.rtt_s / 2, self._go, sending)
        else:
            self.sent += 1
            self._pool.send(sending)
        return sending

    def watch(self, watcher: Watcher) -> None:
        """Have somebody told when the breaker opens or closes; at once where it is open."""
        self._watchers.append(watcher)
        if not self.breaker.closed:
            watcher(False, self.reason)

    def unwatch(self, watcher: Watcher) -> None:
        """Tell somebody no more."""
        self._watchers.remove(watcher)

    def follow(self, path: tuple[str, ...], told: Told, *, me: str = "") -> None:
        """Have somebody told when a way takes longer, or less, as `Ways.follow` does it.

        Parameters
        ----------
        path, told
            As there.
        me
            This node, to which no question is to come back.
        """
        self._me = encoded(me)
        self._ways.follow(path, told)
        if self._next_look is None and not self._closed:
            self._look_later()

    def unfollow(self, path: tuple[str, ...], told: Told) -> None:
        """Tell somebody no more."""
        self._ways.unfollow(path, told)

    def round_trip_s(self, path: tuple[str, ...]) -> float | None:
        """Round trip of a way that begins here, as it was told last, s; None where not known."""
        return self._ways.round_trip_s(path)

    def lose(self, reason: str) -> None:
        """The neighbor is known to be gone: what waits for it fails now, and nothing is sent to it.

        Probes go on: it is used again when it answers one.
        """
        if self.breaker.closed:
            self.breaker.failed(certain=True)
            self._open(reason)
        self._pool.drop(reason)

    def hasten(self) -> None:
        """The neighbor is said to be back: where it is not used, it is asked now and not later."""
        if self.breaker.closed or self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None
        # What was tried before, the kernel may try again long after it would succeed.
        self._pool.anew()
        self.breaker.due_s = self.breaker.now()
        self._ask()

    @property
    def in_flight(self) -> int:
        """Requests that have not been answered."""
        return len(self._pool)

    @property
    def opened(self) -> int:
        """Connections made so far."""
        return self._pool.opened

    def close(self) -> None:
        """End every connection, for good."""
        self._closed = True
        for timer in (self._timer, self._next_look):
            if timer is not None:
                timer.cancel()
        self._pool.close()

    def _go(self, sending: Sending) -> None:
        sending.timer = None
        if self.breaker.closed:
            self.sent += 1
            self._pool.send(sending)
        else:
            self._hand_on(sending, self._shut())

    def _shut(self) -> Failure:
        return Failure(self.reason, unserved=True)

    def _answered(self, sending: Sending, answer: Answer, sent_s: float, now_s: float) -> None:
        # Whatever it says, it answers: what is wrong behind it is not the neighbor's fault.
        if self.breaker.succeeded():
            self._close()
        if self._ways.followed:
            body = sending.body
            size = len(body) if isinstance(body, bytes) else sum(map(len, body))
            if size + len(answer.body) <= SEGMENTS_BYTES:
                self._ways.heard(answer, sent_s, now_s, self.rtt_s)
        if self.rtt_s > 0.0 and sending.late:
            loop = asyncio.get_running_loop()
            sending.timer = loop.call_later(self.rtt_s / 2, self._hand_on, sending, answer)
        else:
            self._hand_on(sending, answer)

    def _failed(self, sending: Sending, failure: Failure, certain: bool) -> None:
        # Where a question of the hop's own is lost, no request is: those find out by themselves.
        own = sending is self._probe or sending in self._looks.values()
        self.failures += not own
        # Watchers hear of it first: whoever gives the request to another must know where not to.
        counts = not own and self.breaker.closed and not self._closed
        if counts and self.breaker.failed(certain=certain):
            self._open(failure.reason)
            self._pool.refuse(failure.reason)
        asyncio.get_running_loop().call_soon(self._hand_on, sending, failure)

    def _hand_on(self, sending: Sending, result: Answer | Failure) -> None:
        if not sending.ended:
            sending.ended, sending.timer = True, None
            sending.done(result)

    def _open(self, reason: str) -> None:
        self.reason = reason
        self._pool.forget()
        self._later()
        for watcher in tuple(self._watchers):
            watcher(False, reason)

    def _close(self) -> None:
        self.reason = ""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for watcher in tuple(self._watchers):
            watcher(True, "")

    def _later(self) -> None:
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        wait_s = max(0.0, self.breaker.due_s - self.breaker.now())
        self._timer = loop.call_later(wait_s, self._ask)

    def _ask(self) -> None:
        self._timer = None
        if self.breaker.closed or self._closed:
            return
        if not self.breaker.allows():
            self._later()
            return
        self._probe = Sending(self._pool, self._question, b"", self._asked)
        self._pool.send(self._probe)
        self._timer = asyncio.get_running_loop().call_later(PROBE_S, self._give_up)

    def _give_up(self) -> None:
        # On a connection that has lost what it carried, the kernel may try again for minutes.
        if self._probe is not None:
            self._probe.cancel()
            said = f"node {self.name} did not say within {PROBE_S:g} s that it is alive"
            self._asked(Failure(said, late=True))

    def _asked(self, result: Answer | Failure) -> None:
        self._probe = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if isinstance(result, Failure) and not self.breaker.closed:
            self.breaker.failed()
            self.reason = result.reason
            self._later()

    def _look_later(self) -> None:
        due_s = self._ways.due_s - monotonic() if self.breaker.closed else PROBE_S
        wait_s = min(PROBE_S, max(LOOK_S, due_s))
        self._next_look = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _look(self) -> None:
        self._next_look = None
        if not self._ways.followed or self._closed:
            return
        now_s, used = monotonic(), self.sent != self._sent_before
        for path in self._ways.due(now_s) if self.breaker.closed else ():
            self._sent_before = self.sent
            self._ways.asked(path, now_s, used)
            if path in self._looks:
                continue
            head = live_head(self.at, path[-1] if len(path) > 1 else "", self._me)
            sending = Sending(self._pool, head, b"", partial(self._looked, path))
            self._looks[path] = sending
            self._pool.send(sending)
        self._look_later()

    def _looked(self, path: tuple[str, ...], _: Answer | Failure) -> None:
        del self._looks[path]
        if self._next_look is not None and not self._closed:
            self._next_look.cancel()
            self._look_later()
