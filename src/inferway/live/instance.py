"""A pool's view of each of its servers, be it a copy that runs here or another node's.

Who keeps it: `inferway.live.local.LocalInstance`, which runs a model, and
`inferway.live.upstream.remote.RemoteInstance`, which sends requests on, to another node or to a
remote server of any make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from inferway.live.request import Job
from inferway.live.upstream.upstream import Upstream
from inferway.protocol import Signature

# Failures in a row after which an instance is run on zeros: one that fails at these too takes no
# more requests; one that answers them works, and the requests were at fault.
FAILURES: Final = 3

# What a client is told to wait where a remote server does not say.
RETRY_S: Final = 1.0


class Instance(Protocol):
    """A server of a pool: takes work in order and hands it back done."""

    name: str
    # Whether it takes nothing from its queue.
    resting: bool
    # Why it rests from the start.
    complaint: str
    # Whether it has answered a request between its last rest and its last failures.
    proven: bool
    # Whether its signature leaves open what would fit: it comes back on trial unprobed.
    cold: bool
    # Whether others of its class may have what it could not answer when it began to rest.
    apart: bool

    @property
    def group(self) -> Upstream | None:
        """Group that it fails with; None where it stands for itself."""

    async def start(self, events: Events) -> None:
        """Make ready to serve, and begin.

        Raises
        ------
        WarmUpError
            When it cannot serve.
        """

    def put(self, job: Job) -> None:
        """Take a request, or a batch, behind those that it has; only the event loop does."""

    def cancel(self, job: Job) -> bool:
        """Give a job back; False when its service has begun."""

    def abort(self, job: Job) -> None:
        """Stop a job whose service has begun, where that can be: nobody waits for it any more."""

    def probe(self, told: Callable[[str], None]) -> None:
        """Find out whether it works again; tell, from any thread, why not, or an empty string."""

    async def close(self, limit_s: float) -> bool:
        """End after what is queued now; False when the limit passed first."""


class Events(NamedTuple):
    """What an instance tells its pool.

    A job that has ended, outputs or reason filled in, is `done` on the event loop, and `posted` by
    an instance's thread. With `soon`, on the loop, an instance keeps runs for it, the next of which
    the function does. The first of a class has `slower`: services of the class take so much longer
    from now on, or less below 0, and so much at least, s.
    """

    done: Callable[[Job], None]
    posted: Callable[[Job], None]
    soon: Callable[[Callable[[], Job | None]], None]
    slower: Callable[[float, float], None] | None = None


class RetryBudget:
    """Retries as a share of requests, so that they never become the load themselves.

    The first may go before any request has paid for them; so many can be saved up.
    """

    def __init__(self, share: float = 0.2, first: float = 10.0) -> None:
        self._share, self._most, self._left = share, first, first
        # Retries that went, and those that did not.
        self.spent = self.refused = 0

    def earn(self) -> None:
        """Count a request."""
        left = self._left + self._share
        self._left = left if left < self._most else self._most

    def spend(self) -> bool:
        """Tell whether a request may be retried."""
        # Shares like 0.2 do not add up to 1 exactly.
        if self._left < 1.0 - 1e-9:
            self.refused += 1
            return False
        self._left -= 1.0
        self.spent += 1
        return True


class PoolTerms(NamedTuple):
    """Terms that the instances of a pool have in common."""

    task: str
    signature: Signature
    node: str  # this node's name; empty where it is none of a network
    drop_late: bool  # whether a request whose deadline has passed is dropped
    now: Callable[[], float]  # the clock of deadlines and service times, seconds
    budget: RetryBudget  # earns retries with each request that is sent to another node
    settles: bool = False  # whether answers are looked at here, and a second variant may be asked
