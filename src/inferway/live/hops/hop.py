"""The way to one neighbor: requests out over kept connections, answers back, and its breaker."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from math import inf, isfinite
from time import monotonic
from typing import Final

from inferway.live.hops.answer import Answer, Failure
from inferway.live.hops.breaker import Breaker
from inferway.live.hops.headers import encoded, live_head
from inferway.live.hops.inquiry import Inquiry
from inferway.live.hops.patience import TRIAL
from inferway.live.hops.pool import NeighborPool, Question, Sending
from inferway.live.hops.suspicion import Suspicion
from inferway.live.hops.ways import SEGMENTS_BYTES, Told, Ways
from inferway.protocol.address import joined

PATIENCE_S: Final = 30.0
"""Longest wait for an answer, unless told otherwise."""
LOOK_S: Final = 0.05
LONGEST_LOOK_S: Final = 1.0
"""Shortest and longest time between two looks at which ways are to be asked."""
ERRORS: Final = 5
"""Failures of its own in a row, answered as such, after which a neighbor is left out: its HTTP
works, and requests that no model can answer are not its fault."""

Watcher = Callable[[bool, str], None]
"""Told whether the neighbor takes requests from now on, and why not."""


class Hop:
    """Sends requests to one neighbor; all methods belong to the event loop.

    A neighbor that refuses connections, or fails several times in a row, is asked nothing but
    whether it is alive, at growing intervals, until it says so. One to which a request is out for
    too long is asked as well, and left out where it does not say so, or where it answers nothing
    all the same until the request is taken back; what it has been sent has failed then. Whoever
    was left out for what it did with requests is given one first, to show that it does otherwise.
    Where somebody follows how long ways through it take, it is asked along those that no request
    has gone for a while.

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
        Longest wait for any answer.
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
        self.tls = tls
        self._pool = NeighborPool(
            name,
            host,
            port,
            tls,
            server_name,
            patience_s,
            self._answered,
            self._failed,
            self._waited,
        )
        self.at = joined(host, port).encode()
        """The address, as Host lines have it."""
        self._question = live_head(self.at)
        self._ways, self._me = Ways(monotonic), b""
        self._next_look: asyncio.TimerHandle | None = None
        self._looks: set[tuple[str, ...]] = set()
        self._sent_before = 0
        self._watchers: list[Watcher] = []
        self._timer: asyncio.TimerHandle | None = None
        self._suspicion = Suspicion()
        self._inquiry: Inquiry | None = None
        """What it is asked now: because of a request that is out, or as a probe."""
        self._doubtful = False
        """Whether its health is not enough to show that it works."""
        self._tried: Sending | None = None
        """The request that shows it, while the breaker is on trial."""
        self._errors = 0
        self._own = encoded(name)
        self._closed = False
        self.sent = self.failures = 0
        """Requests that were sent, and those that got no answer."""
        self.errors = self.hung = 0
        """Answers that its HTTP, or itself, had failed, and how often it did not say that it lives
        while requests were out, or answered none of them."""

    def send(
        self,
        head: bytes,
        body: bytes | Sequence[bytes],
        done: Callable[[Answer | Failure], None],
        predicted_s: float = 0.0,
        patience_s: float = inf,
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
        predicted_s
            How long that is predicted to take; 0 where nothing is known.
        patience_s
            How long the neighbor may have it.

        Returns
        -------
        Sending
            What cancels it.
        """
        sending = Sending(self._pool, head, body, done, predicted_s, patience_s)
        if not self.breaker.closed and not self._tries(sending):
            asyncio.get_running_loop().call_soon(self._hand_on, sending, self._shut())
        elif self.rtt_s > 0.0:
            loop = asyncio.get_running_loop()
            sending.late = True
            sending.timer = loop.call_later(self.rtt_s / 2, self._go, sending)
        else:
            self.sent += 1
            self._pool.send(sending)
        return sending

    def ask(self, head: bytes, done: Callable[[Answer | Failure], None]) -> Sending:
        """Send a question about health, for somebody else; it shows nothing of requests.

        Parameters
        ----------
        head, done
            As `send` has them.
        """
        sending = Question(self._pool, head, b"", done)
        loop = asyncio.get_running_loop()
        if not self.breaker.closed:
            loop.call_soon(self._hand_on, sending, self._shut())
        elif self.rtt_s > 0.0:
            sending.late = True
            sending.timer = loop.call_later(self.rtt_s / 2, self._go, sending)
        else:
            self._pool.send(sending)
        return sending

    def watch(self, watcher: Watcher) -> None:
        """Have somebody told when the breaker opens or closes; at once where it is open."""
        self._watchers.append(watcher)
        if not self.works:
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
        if self.works:
            self.breaker.failed(certain=True)
            self._open(reason, doubtful=self._doubtful)
        self._pool.drop(reason)

    def hasten(self) -> None:
        """The neighbor is said to be back: where it is not used, it is asked now and not later."""
        if self.works or self._closed:
            return
        self._unask()
        # What was tried before, the kernel may try again long after it would succeed.
        self._pool.anew()
        self.breaker.due_s = self.breaker.now()
        self._ask()

    @property
    def works(self) -> bool:
        """Whether requests may go, or at least one."""
        return self.breaker.closed or self.breaker.trial

    @property
    def out(self) -> bool:
        """Whether nothing may go, or nothing but one that shows whether the neighbor works."""
        return not self.breaker.closed

    @property
    def asked(self) -> int:
        """How often it was asked whether it lives because a request was out for too long."""
        return self._suspicion.asked

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
        self._unask()
        if self._next_look is not None:
            self._next_look.cancel()
        self._pool.close()

    def _go(self, sending: Sending) -> None:
        sending.timer = None
        if self.breaker.closed or sending is self._tried:
            self.sent += not sending.asks
            self._pool.send(sending)
        else:
            self._hand_on(sending, self._shut())

    def _shut(self) -> Failure:
        return Failure(self.reason, unserved=True)

    def _tries(self, sending: Sending) -> bool:
        """Whether a request may go all the same, to show whether the neighbor works."""
        if not self.breaker.trial or not (self._tried is None or self._tried.ended):
            return False
        self._tried = sending
        sending.patience_s = TRIAL * min(self._pool.patience_s, sending.patience_s)
        return True

    def _answered(self, sending: Sending, answer: Answer, sent_s: float, now_s: float) -> None:
        # Most is answered well, and each request pays for what stands before this.
        if answer.status != 200 and self._erred(sending, answer):
            self._hand_on(sending, answer)
            return
        if not sending.asks:
            self._errors, self._pool.heard_s = 0, now_s
            # What is wrong behind it is not the neighbor's fault.
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

    def _erred(self, sending: Sending, answer: Answer) -> bool:
        """Take into account that an answer says that the neighbor failed, if it does."""
        if sending.asks:
            return False
        strange = strange_failure(answer)
        if not strange and (answer.status != 500 or answer.node != self._own):
            return False
        self.errors += 1
        self._errors += 1
        reason = f"node {self.name} answered {answer.status}"
        if sending is self._tried and self.breaker.trial:
            self._fall_back(reason)
        elif self.breaker.closed and not self._closed:
            # Where no node has written the answer, its HTTP as a whole is at fault.
            if strange and self.breaker.failed():
                self._open(reason, doubtful=True)
                self._pool.refuse(reason)
            elif self._errors >= ERRORS:
                self.breaker.failed(certain=True)
                self._open(f"{reason} {self._errors} times in a row", doubtful=True)
                self._pool.refuse(reason)
        return True

    def _failed(self, sending: Sending, failure: Failure, certain: bool) -> None:
        # Where a question is lost, no request is: those find out by themselves.
        self.failures += not sending.asks
        # Watchers hear of it first: whoever gives the request to another must know where not to.
        if sending is self._tried and self.breaker.trial:
            self._fall_back(failure.reason)
        elif not (sending.asks or self._closed) and self.breaker.closed:
            if failure.late:
                # One that has answered others meanwhile is slow, and keeps what it has.
                if certain:
                    reason = f"{failure.reason}, nor any other request since"
                    self._hang(reason, doubtful=True)
                    self._pool.drop(reason)
            elif self.breaker.failed(certain=certain):
                self._open(failure.reason, doubtful=not certain)
                self._pool.refuse(failure.reason)
        asyncio.get_running_loop().call_soon(self._hand_on, sending, failure)

    def _waited(self, now_s: float, overdue_s: float) -> None:
        if self._inquiry is not None or self._closed or not self.works:
            return
        if self._suspicion.asks(now_s, overdue_s):
            self._inquire()

    def _inquire(self) -> None:
        rtt_s = self._ways.round_trip_s((self.name,))
        known_s = rtt_s if rtt_s is not None and isfinite(rtt_s) else 0.0
        self._inquiry = Inquiry(self._pool, self._question, known_s, self._asked)

    def _hand_on(self, sending: Sending, result: Answer | Failure) -> None:
        if not sending.ended:
            sending.ended, sending.timer = True, None
            sending.done(result)

    def _open(self, reason: str, *, doubtful: bool) -> None:
        self.reason, self._doubtful = reason, doubtful
        self._errors, self._tried = 0, None
        self._unask()
        self._pool.forget()
        self._later()
        self._tell(False, reason)

    def _hang(self, reason: str, *, doubtful: bool) -> None:
        """Open the breaker: the neighbor does nothing with what it has."""
        self.hung += 1
        self.breaker.failed(certain=True)
        self._open(reason, doubtful=doubtful)

    def _fall_back(self, reason: str) -> None:
        """Open the breaker again: what was tried has failed."""
        self.breaker.failed()
        self._open(reason, doubtful=True)

    def _close(self) -> None:
        self.reason, self._doubtful, self._tried = "", False, None
        self._unask()
        self._tell(True, "")

    def _tell(self, works: bool, reason: str) -> None:
        for watcher in tuple(self._watchers):
            watcher(works, reason)

    def _unask(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._inquiry is not None:
            self._inquiry.cancel()
            self._inquiry = None

    def _later(self) -> None:
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        wait_s = max(0.0, self.breaker.due_s - self.breaker.now())
        self._timer = loop.call_later(wait_s, self._ask)

    def _ask(self) -> None:
        self._timer = None
        if self.works or self._closed:
            return
        if not self.breaker.allows():
            self._later()
            return
        self._inquire()

    def _asked(self, reason: str, refused: bool) -> None:
        inquiry, self._inquiry = self._inquiry, None
        if self._closed or inquiry is None:
            return
        if not reason:
            if self.works:
                self._suspicion.cleared(monotonic())
            elif self._doubtful:
                self.breaker.probed()
                self._tell(True, "")
            else:
                self.breaker.succeeded()
                self._close()
            return
        if self.works:
            # Who has answered meanwhile did live: it is asked once more.
            if self._pool.heard_s > inquiry.begun_s:
                return
            self._hang(reason, doubtful=not refused)
        else:
            self.breaker.failed()
            self.reason = reason
            self._later()
        # One that takes no more connections may be about to go, and answer those that it has.
        if refused:
            self._pool.refuse(reason)
        else:
            self._pool.drop(reason)

    def _look_later(self) -> None:
        due_s = self._ways.due_s - monotonic() if self.breaker.closed else LONGEST_LOOK_S
        wait_s = min(LONGEST_LOOK_S, max(LOOK_S, due_s))
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
            sending = Question(self._pool, head, b"", partial(self._looked, path))
            self._looks.add(path)
            self._pool.send(sending)
        self._look_later()

    def _looked(self, path: tuple[str, ...], _: Answer | Failure) -> None:
        self._looks.remove(path)
        if self._next_look is not None and not self._closed:
            self._next_look.cancel()
            self._look_later()


def strange_failure(answer: Answer) -> bool:
    """Whether an answer says that something failed, and no node has written it.

    What is refused for want of room or of time is no failure.
    """
    return not answer.node and (
        (answer.status >= 500 and answer.status not in (503, 504)) or 200 < answer.status < 400
    )
