"""The site's arrays after any sequence of events, against plain lists."""

from __future__ import annotations

import numpy as np
from fleets import fleet
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import NaiveSite

from inferway.site.transitions import abandon, admit, release, set_health
from inferway.site.view import Site, empty_site

FLEET = fleet([4, 2, 1], [0.5, 0.7, 0.9], [3, 2, 2])
PLACES = 3
events = st.lists(
    st.tuples(
        st.sampled_from(["admit", "release", "abandon", "health"]),
        st.integers(0, FLEET.servers - 1),
        st.integers(1, 4),
        st.floats(0.01, 1),
    ),
    max_size=60,
)


def agree(site: Site, plain: NaiveSite) -> None:
    """Every array says what the lists say."""
    for server, queue in enumerate(plain.queues):
        assert site.queue[server] == len(queue)
        assert site.open[server] == plain.is_open(server)
        places = [(site.head[server] + i) % PLACES for i in range(len(queue))]
        assert [site.arrived_s[server, place] for place in places] == [t for t, _ in queue]
        assert [site.rows[server, place] for place in places] == [rows for _, rows in queue]
        assert np.isnan(site.started_s[server]) == (not queue)
        if queue:
            row_s = 1 / site.rate[site.server_class[server]]
            after = sum(rows for _, rows in list(queue)[1:]) * row_s
            assert site.ends_s[server] == site.started_s[server] + queue[0][1] * row_s
            np.testing.assert_allclose(site.free_s[server], site.ends_s[server] + after)
    for k in range(len(FLEET.rate)):
        idle = set(site.idle_server[site.first[k] : site.first[k] + site.idle[k]].tolist())
        assert idle == plain.idle(k)
        assert site.busy[k] == len(plain.busy(k))
        assert bool(site.idle_classes[0] >> k & 1) == bool(plain.idle(k))
        assert bool(site.busy_classes[0] >> k & 1) == bool(plain.busy(k))


@settings(max_examples=300, deadline=None)
@given(events)
def test_arrays_follow_the_events(sequence: list[tuple[str, int, int, float]]) -> None:
    site, plain = empty_site(FLEET, 0.7, PLACES), NaiveSite(FLEET, PLACES)
    now = 0.0
    for kind, server, number, step in sequence:
        now += step
        site.clock_s[0] = now
        queue = plain.queues[server]
        if kind == "admit" and plain.is_open(server):
            admit(site, server, number)
            queue.append((now, number))
        elif kind == "release" and queue:
            release(site, server)
            queue.popleft()
        elif kind == "abandon" and len(queue) > number:
            abandon(site, server, number)
            del queue[number]
        elif kind == "health":
            set_health(site, server, number > 2)
            plain.healthy[server] = number > 2
        agree(site, plain)
