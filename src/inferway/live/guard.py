"""Who is let in to what: keys, their roles, and clients whose keys are wrong time and again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from math import ceil
from typing import Any, Final, NamedTuple, TypeVar

from inferway.live.keys import ANYBODY, ROLES, Keys

PATIENCE: Final = 20
"""Wrong keys of one client that are answered as such before it is told to slow down."""
LIMIT: Final = 1000
"""Wrong keys of one client from which on its keys are not looked at."""
FORGOTTEN_PER_S: Final = 1.0
"""How many of a client's wrong keys are forgotten in a second."""
T = TypeVar("T")
_CLIENTS: Final = 4096
"""Clients whose wrong keys are remembered."""
_SAID_EVERY_S: Final = 60.0


class Denied(NamedTuple):
    """Why a request is not let in.

    Attributes
    ----------
    status
        401 without a valid key, 403 for another role, 429 after too many wrong keys.
    reason
        In a sentence.
    retry_s
        When to come again, s; 0 where that is of no use.
    """

    status: int
    reason: str
    retry_s: int = 0


class Guard:
    """Looks at the key of every request.

    A wrong key counts for the address that it comes from, of IPv6 for the network of 64 bits. After
    20 of them, less one each second, further ones are told to slow down. Nobody can so shut out
    others of the same address: a right key is let in all the same. Only from 1,000 on, where keys
    are tried in earnest, none from there is looked at any more until some are forgotten, unless a
    right one has come from there in the meantime.

    Parameters
    ----------
    keys
        The keys; may be replaced at any time.
    log
        Told of clients with too many wrong keys, once a minute at most.
    now
        A clock, s.

    Attributes
    ----------
    denied
        How many requests were not let in, by reason: `missing`, `wrong`, `role` and `limited`.
    """

    def __init__(
        self, keys: Keys, log: Any = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.keys = keys
        self.denied = Counter({"missing": 0, "wrong": 0, "role": 0, "limited": 0})
        self._log, self._now = log, now
        self._wrong: dict[str, tuple[float, float]] = {}
        self._known: dict[str, None] = {}
        """Addresses from which a right key has come while others were wrong."""
        self._said_s = -_SAID_EVERY_S

    def look(
        self, authorization: bytes | str, needed: int, client: Callable[[], str]
    ) -> int | Denied:
        """Tell which roles a key has, or why it does not open what is asked for.

        Parameters
        ----------
        authorization
            Value of the request's Authorization header; empty where it has none.
        needed
            Any of these roles will do; `ANYBODY` asks for no key.
        client
            Tells the client's address; asked only where some keys are wrong.
        """
        if not needed:
            return ANYBODY
        name = ""
        if self._wrong:
            self._forget()
            name = _network(client())
            over = self._count(name) + 1.0 - LIMIT
            if over > 0.0 and name not in self._known:
                return self._slower(over / FORGOTTEN_PER_S)
        roles = self.keys.roles(authorization)
        if roles:
            if self._wrong:
                _keep(self._known, name, None)
            if roles & needed:
                return roles
            self.denied["role"] += 1
            return self.other(needed)
        if not authorization:
            self.denied["missing"] += 1
            return Denied(401, "the request needs a valid key")
        count = self._note(name or _network(client()))
        if count > PATIENCE:
            return self._slower((count - PATIENCE) / FORGOTTEN_PER_S)
        self.denied["wrong"] += 1
        return Denied(401, "the request needs a valid key")

    @staticmethod
    def other(needed: int) -> Denied:
        """Say that the key is right and does not open this."""
        names = " or ".join(name for name, role in ROLES.items() if role & needed)
        return Denied(403, f"the request needs a key with the role {names}, which this one has not")

    def _slower(self, wait_s: float) -> Denied:
        self.denied["limited"] += 1
        return Denied(429, "too many wrong keys came from this address", ceil(min(60.0, wait_s)))

    def _count(self, client: str) -> float:
        count, at_s = self._wrong.get(client, (0.0, 0.0))
        return max(0.0, count - (self._now() - at_s) * FORGOTTEN_PER_S)

    def _forget(self) -> None:
        # The first was counted longest ago.
        first = next(iter(self._wrong))
        if not self._count(first):
            del self._wrong[first]
            self._known.pop(first, None)

    def _note(self, client: str) -> float:
        now_s = self._now()
        count = min(float(LIMIT), self._count(client) + 1.0)
        _keep(self._wrong, client, (count, now_s))
        if count > PATIENCE and self._log is not None and now_s - self._said_s > _SAID_EVERY_S:
            self._said_s = now_s
            self._log.warning("too many wrong keys come from one address", client=client)
        return count


def _keep(table: dict[str, T], client: str, value: T) -> None:
    """Put an entry at the end of a table; the one that has been there longest may have to go."""
    table.pop(client, None)
    if len(table) >= _CLIENTS:
        del table[next(iter(table))]
    table[client] = value


def _network(client: str) -> str:
    """Return whose address it is: one who has an address of IPv6 has 64 bits of them."""
    try:
        address = ip_address(client.partition("%")[0])
    except ValueError:
        return client[:64]
    if isinstance(address, IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped or IPv6Address(int(address) >> 64 << 64))
    return str(address)
