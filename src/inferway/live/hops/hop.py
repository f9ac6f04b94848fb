"""The way to one neighbor: requests out over kept connections, answers back, and its breaker."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from inferway.live.hops.breaker import Breaker
from inferway.live.hops.pool import Pool, Sending
from inferway.live.hops.wire import Answer, Failure

PATIENCE_S: Final = 30.0
"""Longest wait for an answer, unless told otherwise."""
PROBE_S: Final = 1.0
"""Longest wait for the answer to a probe."""

Watcher = Callable[[bool, str], None]
"""Told whether the neighbor takes requests from now on, and why not."""


class Hop:
    """Sends requests to one neighbor; all methods belong to the event loop.

    A neighbor that refuses connections, or fails several times in a row, is asked nothing but
    whether it is alive, at growing intervals, until it says so.

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
        at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._question = f"GET /v2/health/live HTTP/1.1\r\nHost: {at}\r\n\r\n".encode()
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
        if self._timer is not None:
            self._timer.cancel()
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

    def _answered(self, sending: Sending, answer: Answer) -> None:
        # Whatever it says, it answers: what is wrong behind it is not the neighbor's fault.
        if self.breaker.succeeded():
            self._close()
        if self.rtt_s > 0.0 and sending is not self._probe:
            loop = asyncio.get_running_loop()
            sending.timer = loop.call_later(self.rtt_s / 2, self._hand_on, sending, answer)
        else:
            self._hand_on(sending, answer)

    def _failed(self, sending: Sending, failure: Failure, certain: bool) -> None:
        self.failures += 1
        # Watchers hear of it first: whoever gives the request to another must know where not to.
        counts = sending is not self._probe and self.breaker.closed and not self._closed
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
