"""Bearer keys (RFC 6750): who may use the server, for what, and who tries keys in earnest."""

from __future__ import annotations

import hmac
import os
from collections import Counter
from collections.abc import Callable, Iterable
from enum import IntEnum
from hashlib import sha256
from ipaddress import IPv6Address, ip_address
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple, TypeVar

from inferway.live.errors import ServeError

T = TypeVar("T")
# The environment variable with keys, separated by commas or white space.
VARIABLE: Final = "INFERWAY_KEYS"
SHORTEST: Final = 16
# Wrong keys of one client that are answered as such before it is told to slow down, from which on
# its keys are not looked at, and of which so many are forgotten in a second.
PATIENCE, LIMIT, FORGOTTEN_PER_S = 20, 1000, 1.0
# Clients whose wrong keys are remembered.
_CLIENTS: Final = 4096
_SAID_EVERY_S: Final = 60.0


class Role(IntEnum):
    """A use of a key; each a bit, so that their sum stands for several.

    `INFER` is for the inference listeners, `READ` for metrics, status, explanations, statistics
    and a node's other pages, `ADMIN` for changing what is served, and `FEEDBACK` for saying how
    right answers were.
    """

    INFER = 1
    READ = 2
    ADMIN = 4
    FEEDBACK = 8


ROLES: Final = {role.name.lower(): role for role in Role}
"""Roles by the names that stand before a key."""
# Of a key that names none.
PLAIN: Final = Role.INFER | Role.READ
# What needs no key asks for nothing; what any key opens, for every bit, one of which is enough.
ANYBODY, ANY_KEY = 0, -1


def parted(word: str) -> tuple[int, str]:
    """Part a key as it is written, ``KEY`` or ``ROLE+ROLE=KEY``, into its roles and itself.

    Before the first ``=`` stands nothing but roles, joined by ``+``; whatever else begins so is all
    key, for keys may hold both characters.
    """
    before, equals, key = word.partition("=")
    names = set(before.split("+"))
    if not equals or not names <= ROLES.keys():
        return PLAIN, word
    return sum(ROLES[name] for name in names), key


class Keys:
    """The keys that open the server.

    There is at least one, each as `parted` takes it and of at least 16 visible ASCII characters;
    else ServeError, whose message shows none. One that is given twice has the roles of both.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._roles: dict[bytes, int] = {}
        for number, word in enumerate(keys, start=1):
            roles, key = parted(word)
            if len(key) < SHORTEST:
                raise ServeError(
                    f"key {number} has {len(key)} characters; {SHORTEST} or more are needed"
                )
            if not all("!" <= letter <= "~" for letter in key):
                raise ServeError(f"key {number} has characters other than visible ASCII")
            digest = sha256(key.encode()).digest()
            self._roles[digest] = self._roles.get(digest, 0) | roles
        if not self._roles:
            raise ServeError("there is no key; give at least one")

    def roles(self, authorization: bytes | str) -> int:
        """Tell which roles an Authorization header's value has; 0 where it is none of the keys.

        Every key is compared, each in a time that does not depend on where it differs: digests of
        equal length are.
        """
        value = authorization.encode() if isinstance(authorization, str) else authorization
        scheme, _, key = value.partition(b" ")
        given = sha256(key.strip(b" ")).digest()
        roles = sum(
            role for digest, role in self._roles.items() if hmac.compare_digest(given, digest)
        )
        return roles if scheme.lower() == b"bearer" else 0


def keys_from(path: Path | None) -> Keys | None:
    """Read the keys from a file, or else from the environment; None where neither has any.

    A file has one key a line; empty lines and those that begin with ``#`` are left out. ServeError
    when it cannot be read or holds no key, or when a key is not usable.
    """
    words = os.environ.get(VARIABLE, "").replace(",", " ").split()
    if path is None and not words:
        return None
    if path is not None:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ServeError(f"the keys cannot be read from {path}: {reason}") from None
        words = [word for line in lines if (word := line.strip()) and not word.startswith("#")]
    try:
        return Keys(words)
    except ServeError as error:
        raise ServeError(f"{path or VARIABLE}: {error}") from None


class Denied(NamedTuple):
    """The reason for which a request is not let in, and when to come again, s; 0 for never.

    The status is 401 without a valid key, 403 for another role, 429 after too many wrong keys.
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
    right one has come from there in the meantime. The keys may be replaced at any time. `log` is
    told of clients with too many wrong ones, once a minute at most.

    Attributes
    ----------
    denied
        How many requests were not let in, by reason: `missing`, `wrong`, `role` and `limited`.
    """

    def __init__(self, keys: Keys, log: Any) -> None:
        self.keys, self._log = keys, log
        self.denied = Counter({"missing": 0, "wrong": 0, "role": 0, "limited": 0})
        # By address, how many wrong keys have come from there, and when the last was counted; and
        # addresses from which a right key has come while others were wrong.
        self._wrong: dict[str, tuple[float, float]] = {}
        self._known: dict[str, None] = {}
        self._said_s = -_SAID_EVERY_S

    def look(
        self, authorization: bytes | str, needed: int, client: Callable[[], str]
    ) -> int | Denied:
        """Tell which roles a key has, or why it does not open what is asked for.

        Of the needed roles any will do; `ANYBODY` asks for no key. The client's address is asked
        for only where some keys are wrong.
        """
        if not needed:
            return ANYBODY
        name = ""
        if self._wrong:
            first = next(iter(self._wrong))  # it was counted longest ago
            if not self._count(first):
                del self._wrong[first]
                self._known.pop(first, None)
            name = _network(client())
            over = self._count(name) + 1.0 - LIMIT
            if over > 0.0 and name not in self._known:
                return self._slower(over)
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
        name, now_s = name or _network(client()), monotonic()
        count = min(float(LIMIT), self._count(name) + 1.0)
        _keep(self._wrong, name, (count, now_s))
        if count <= PATIENCE:
            self.denied["wrong"] += 1
            return Denied(401, "the request needs a valid key")
        if now_s - self._said_s > _SAID_EVERY_S:
            self._said_s = now_s
            self._log.warning("too many wrong keys come from one address", client=name)
        return self._slower(count - PATIENCE)

    @staticmethod
    def other(needed: int) -> Denied:
        """Say that the key is right and does not open this."""
        names = " or ".join(name for name, role in ROLES.items() if role & needed)
        return Denied(403, f"the request needs a key with the role {names}, which this one has not")

    def _slower(self, over: float) -> Denied:
        self.denied["limited"] += 1
        wait_s = ceil(min(60.0, over / FORGOTTEN_PER_S))
        return Denied(429, "too many wrong keys came from this address", wait_s)

    def _count(self, client: str) -> float:
        count, at_s = self._wrong.get(client, (0.0, 0.0))
        return max(0.0, count - (monotonic() - at_s) * FORGOTTEN_PER_S)


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
        return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))
    return str(address)
