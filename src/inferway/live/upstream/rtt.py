"""Round-trip times of the links behind a neighbor: one estimate each, for all that is reached by
them.

Every answer says how long each node on its way had it. What is left between two of them is the
round trip of the link between: one sample of each link, from requests that were sent anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import median
from time import monotonic
from typing import Final, NamedTuple

from inferway.live.upstream.headers import Response, encoded

# A round trip that is off by no more than this share, or this time, is as estimated.
NOISE: Final = 0.25
NOISE_S: Final = 2e-3
# Samples of which the median is the first estimate.
FIRST: Final = 5
# Samples in a row beyond the noise, all to the same side, of which the median is the next.
ENOUGH: Final = 3
# Without a sample for so long, a link is asked: first, after what was unexpected; then after twice
# the time before, up to the second while it is slower than it was, or requests go that are no
# samples, and up to the third while nothing is asked of it.
FIRST_WAIT_S: Final = 0.1
WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 8.0
# What TCP sends before it has heard anything (RFC 6928): a request and an answer that are larger
# together may take more than one round trip, and are no sample.
SEGMENTS_BYTES: Final = 14_600
_LONGEST_MEMORY: Final = 1024
_LEAST_S: Final = 1e-5

# Called with how many seconds longer than before a way takes, and how long it takes now.
OnChange = Callable[[float, float], None]


def differ(one_s: float, other_s: float) -> bool:
    """Tell whether a round trip differs from another by more than noise."""
    return abs(one_s - other_s) > max(NOISE_S, NOISE * other_s)


class RttEstimator:
    """Estimates the round trip of one link.

    It follows what has moved for good, up or down, after a few samples; single ones that are late
    because a node was busy move nothing. `changed` is called with this link and the difference, s,
    when the estimate moves, and `since_s` is when the link began to be of use, was sampled or asked
    last, on the clock of samples. The estimate `rtt_s` is NaN before there is one.
    """

    def __init__(self, changed: Callable[[RttEstimator, float], None], since_s: float) -> None:
        self._changed, self.rtt_s = changed, math.nan
        # What is between these is as estimated: nothing yet.
        self.low_s, self.high_s = math.inf, -math.inf
        self.odd: list[float] = []  # Samples in a row that were not
        self._changed_s, self._rose = -math.inf, False
        self._least_s = math.inf
        self.since_s, self._wait_s = since_s, WAIT_S

    @property
    def due_s(self) -> float:
        """When it is to be asked, where there is no sample before."""
        return self.since_s + self._wait_s

    def sample(self, rtt_s: float, sent_s: float, now_s: float) -> bool:
        """Take a sample into account, of a request sent and answered at these times.

        Returns whether it was beyond the noise of the estimate.
        """
        self.since_s, odd = now_s, self.odd
        if self.low_s <= rtt_s <= self.high_s:
            odd.clear()
            return False
        if math.isnan(self.rtt_s):
            odd.append(rtt_s)
            if len(odd) >= FIRST:
                self._settle()
            return False
        up = rtt_s > self.rtt_s
        # What was on its way at the last change is late, or early, as everything was before it.
        if sent_s < self._changed_s and up != self._rose:
            return True
        if odd and (odd[0] > self.rtt_s) != up:
            odd.clear()
        odd.append(rtt_s)
        self._wait_s = FIRST_WAIT_S
        if len(odd) >= ENOUGH:
            before_s = self.rtt_s
            self._settle()
            self._changed_s, self._rose = now_s, up
            self._changed(self, self.rtt_s - before_s)
        return True

    def asked(self, now_s: float, used: bool) -> None:
        """Note that it is asked now; `used` says whether requests go over it."""
        # Before there is an estimate, it differs from nothing.
        usual_s = max(self._least_s + NOISE_S, (1.0 + NOISE) * self._least_s)
        most_s = LONGEST_WAIT_S if not used and self.rtt_s <= usual_s else WAIT_S
        self.since_s, self._wait_s = now_s, min(2.0 * self._wait_s, most_s)

    def _settle(self) -> None:
        self.rtt_s = rtt_s = median(self.odd)
        noise_s = max(NOISE_S, NOISE * rtt_s)
        self.low_s, self.high_s = rtt_s - noise_s, rtt_s + noise_s
        self._least_s = min(self._least_s, rtt_s)
        self.odd.clear()


class _Path(NamedTuple):
    """Links of a way, and who wants to know of it, in the order in which they came."""

    links: list[RttEstimator]
    followers: dict[OnChange, None]


class RoundTrips:
    """The links on the ways that begin with one neighbor.

    Only those are kept that somebody follows; what else is passed on teaches nothing. `now` is the
    clock of samples, s; `followed` says whether anybody follows any.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now, self.followed = now, False
        self._links: dict[tuple[bytes, bytes], RttEstimator] = {}
        self._behind: dict[bytes, tuple[RttEstimator, ...]] = {}
        self._ways: dict[tuple[str, ...], _Path] = {}

    def follow(self, path: tuple[str, ...], changed: OnChange) -> None:
        """Call somebody when a way, from the neighbor to the last node, takes longer, or less.

        They are told the difference, s, and the round trip of the whole way from now on, s.
        """
        if path not in self._ways:
            if len(self._links) >= _LONGEST_MEMORY:
                # Neighbors can tell of ever new nodes: know only of links that somebody follows.
                kept = {link for way in self._ways.values() for link in way.links}
                self._links = {pair: link for pair, link in self._links.items() if link in kept}
                self._behind.clear()
            for pair in _pairs(path):
                if pair not in self._links:
                    self._links[pair] = RttEstimator(self._turned, self._now())
                    self._behind.clear()
            self._ways[path] = _Path([self._links[pair] for pair in _pairs(path)], {})
        self._ways[path].followers[changed] = None
        self.followed = True

    def unfollow(self, path: tuple[str, ...], changed: OnChange) -> None:
        """Tell somebody no more. What is known of the links stays."""
        del self._ways[path].followers[changed]
        if not self._ways[path].followers:
            del self._ways[path]
        self.followed = bool(self._ways)

    def round_trip_s(self, path: tuple[str, ...]) -> float | None:
        """Round trip of a way as estimated, s; None where that of a link is not known."""
        links = [self._links[pair] for pair in _pairs(path) if pair in self._links]
        whole_s = sum(link.rtt_s for link in links)
        return whole_s if len(links) == len(path) and math.isfinite(whole_s) else None

    def learn(self, answer: Response, sent_s: float, now_s: float, more_s: float = 0.0) -> None:
        """Learn from an answer; note there whether the way took otherwise than estimated.

        Its request was written at `sent_s` and it came at `now_s`; `more_s` passed elsewhere and
        belongs to the way to the neighbor.
        """
        links = self._behind.get(answer.path)
        if links is None:
            links = self._find(answer)
        left_s, times = now_s - sent_s + more_s, answer.times
        for link in links:
            time, _, times = times.partition(b",")
            try:
                spent_s = float(time) * 1e-3
            except ValueError:
                return
            if not 0.0 <= spent_s < math.inf:
                return
            rtt_s = left_s - spent_s
            left_s = spent_s
            # Nearly all end here: each request pays for it.
            if link.low_s <= rtt_s <= link.high_s and not link.odd:
                link.since_s = now_s
            elif link.sample(max(_LEAST_S, rtt_s), sent_s, now_s):
                answer.strayed = True

    def due(self, now_s: float) -> list[tuple[str, ...]]:
        """Ways on which a link is to be asked now, no way twice as part of another."""
        late = {
            path
            for path, way in self._ways.items()
            if any(link.due_s <= now_s for link in way.links)
        }
        return [
            path
            for path in sorted(late)
            if not any(other[: len(path)] == path and other != path for other in late)
        ]

    def asked(self, path: tuple[str, ...], now_s: float, used: bool) -> None:
        """Note that the links of a way are asked now; `used` says whether requests go there."""
        for pair in _pairs(path):
            self._links[pair].asked(now_s, used)

    @property
    def due_s(self) -> float:
        """When the next link is to be asked."""
        links = {link for way in self._ways.values() for link in way.links}
        return min((link.due_s for link in links), default=math.inf)

    def _turned(self, link: RttEstimator, by_s: float) -> None:
        for links, followers in tuple(self._ways.values()):
            if link in links:
                rtt_s = sum(one.rtt_s for one in links)
                for changed in tuple(followers):
                    changed(by_s, link.rtt_s if math.isnan(rtt_s) else rtt_s)

    def _find(self, answer: Response) -> tuple[RttEstimator, ...]:
        # The path begins at the entry; as many nodes as say a time are on the way from here.
        names = answer.path.split(b",")[-1 - answer.times.count(b",") :]
        pairs = [*pairwise((b"", *names))]
        links = tuple(self._links[pair] for pair in pairs if pair in self._links)
        if len(self._behind) >= _LONGEST_MEMORY:
            self._behind.clear()
        self._behind[answer.path] = links if len(links) == len(pairs) else ()
        return self._behind[answer.path]


def _pairs(path: Iterable[str]) -> list[tuple[bytes, bytes]]:
    """Links on the way through nodes, the first of them from here."""
    return [*pairwise((b"", *map(encoded, path)))]
