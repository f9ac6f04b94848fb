"""Claims on the devices of a node: what servers of all its fleets hold there, and wait for.

Fleets of several tasks, and one that goes beside the one that takes over, share devices. Each has a
site of its own, and a row for each of its servers in one array, which all of them look at. Times in
it are of the node's clock, so that a row changes with its own server's events alone.
"""

from __future__ import annotations

import numpy as np

from inferway.site.view import Changes, Floats, Ints, SharedDevices

# Columns: the device, by its number at the node, -1 where the server has nothing to do; the slots
# that its runs take; 1 while one holds them; when that ends, or else by when the server that waits
# in line is due, inf where it does not; and the time of what it has to do, behind that run, s.
DEVICE, TAKEN, HOLDS, UNTIL_S, WORK_S = range(5)
# And at devices that hold one variant at a time: the variant that it runs, by the row of the first
# server that does; the time to load it, s; and when the first request behind its run is due, inf
# where there is none. What a device is being changed for is next there, and due at once.
VARIANT, LOAD_S, NEXT_S = range(5, 8)
COLUMNS = 8
# What each such device of a node holds: how many changes it has had, and the variant of the last,
# as claims have it, -1 where that could not be loaded.
CHANGE_COUNT, HELD_VARIANT = range(2)


def no_claims(rows: int) -> Floats:
    """Rows of servers that have nothing to do."""
    claims = np.zeros((rows, COLUMNS))
    claims[:, DEVICE], claims[:, UNTIL_S], claims[:, NEXT_S] = -1.0, np.inf, np.inf
    return claims


def no_contents(devices: int) -> Ints:
    """Contents of devices that have held nothing yet."""
    return np.repeat(np.array([[0, -1]]), devices, axis=0)


def joined(
    devices: SharedDevices, claims: Floats, at: int, numbers: Ints, contents: Ints | None = None
) -> SharedDevices:
    """A site's devices, shared with the other sites that have rows among the claims.

    Parameters
    ----------
    devices
        Of one site.
    claims
        (M, 8) rows of all sites.
    at
        Row of the site's first server; M where it has none, and only looks.
    numbers
        (D,) the node's number of each of its devices.
    contents
        (N, 2) what the node's devices hold, where any holds one variant at a time.
    """
    changes = devices.changes
    if contents is not None and isinstance(changes, Changes):
        changes = changes._replace(contents=contents)
    own = np.full(max([*numbers.tolist(), -1]) + 1, -1)
    own[numbers] = np.arange(len(numbers))
    servers = len(devices.holds)
    return devices._replace(
        changes=changes,
        claims=claims,
        at=at,
        number=numbers.astype(np.int64),
        own=own,
        others=no_claims(len(claims)),
        others_count=np.zeros(1, np.int64),
        others_used=np.zeros(len(numbers), np.int64),
        others_due_s=np.full(len(numbers), np.inf),
        others_first=np.full(len(numbers), -1),
        work_s=np.zeros(servers + len(claims)),
        wide=np.zeros(servers + len(claims), np.int64),
    )
