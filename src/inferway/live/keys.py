"""Bearer keys: who may use the server, and for what (RFC 6750)."""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable
from enum import IntEnum
from hashlib import sha256
from pathlib import Path
from typing import Final

from inferway.live.errors import ServeError

VARIABLE: Final = "INFERWAY_KEYS"
"""The environment variable with keys, separated by commas or white space."""
SHORTEST: Final = 16


class Role(IntEnum):
    """What a key is for; each a bit, so that their sum stands for several."""

    INFER = 1
    """The inference listeners, explanations apart."""
    READ = 2
    """Metrics, status, explanations and a node's other pages."""
    ADMIN = 4
    """Changing what is served."""


ROLES: Final = {"infer": Role.INFER, "read": Role.READ, "admin": Role.ADMIN}
"""Roles by the names that stand before a key."""
PLAIN: Final = Role.INFER | Role.READ
"""Of a key that names none."""
ANYBODY: Final = 0
"""What needs no key asks for."""
ANY_KEY: Final = -1
"""What any key opens asks for: every bit, one of which is enough."""


def parted(word: str) -> tuple[int, str]:
    """Part a key as it is written, ``KEY`` or ``ROLE+ROLE=KEY``, into its roles and itself.

    Before the first ``=`` stands nothing but roles, joined by ``+``; whatever else begins so is all
    key, for keys may hold both characters.
    """
    before, equals, key = word.partition("=")
    names = before.split("+")
    if not equals or not all(name in ROLES for name in names):
        return PLAIN, word
    roles = 0
    for name in names:
        roles |= ROLES[name]
    return roles, key


class Keys:
    """The keys that open the server.

    Parameters
    ----------
    keys
        At least one, each as `parted` takes it and of at least 16 visible ASCII characters. One
        that is given twice has the roles of both.

    Raises
    ------
    ServeError
        When there is none, or one is too short or has other characters. No message shows a key.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        found: dict[bytes, int] = {}
        for number, word in enumerate(keys, start=1):
            roles, key = parted(word)
            if len(key) < SHORTEST:
                raise ServeError(
                    f"key {number} has {len(key)} characters; {SHORTEST} or more are needed"
                )
            if not all("!" <= letter <= "~" for letter in key):
                raise ServeError(f"key {number} has characters other than visible ASCII")
            digest = _digest(key.encode())
            found[digest] = found.get(digest, 0) | roles
        if not found:
            raise ServeError("there is no key; give at least one")
        self._roles = tuple(found.items())

    def roles(self, authorization: bytes | str) -> int:
        """Tell which roles an Authorization header's value has; 0 where it is none of the keys.

        Every key is compared, each in a time that does not depend on where it differs: digests of
        equal length are.
        """
        value = authorization.encode() if isinstance(authorization, str) else authorization
        scheme, _, key = value.partition(b" ")
        given = _digest(key.strip(b" "))
        found = 0
        for digest, roles in self._roles:
            if hmac.compare_digest(given, digest):
                found = roles
        return found if scheme.lower() == b"bearer" else 0


def keys_from(path: Path | None) -> Keys | None:
    """Read the keys from a file, or else from the environment; None where neither has any.

    Parameters
    ----------
    path
        One key a line; empty lines and those that begin with ``#`` are left out. None: the
        variable `INFERWAY_KEYS`.

    Raises
    ------
    ServeError
        When the file cannot be read, holds no key, or a key is not usable.
    """
    if path is None:
        words = os.environ.get(VARIABLE, "").replace(",", " ").split()
        return _named(VARIABLE, words) if words else None
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ServeError(f"the keys cannot be read from {path}: {reason}") from None
    return _named(str(path), [line for line in lines if line and not line.startswith("#")])


def _named(where: str, words: list[str]) -> Keys:
    try:
        return Keys(words)
    except ServeError as error:
        raise ServeError(f"{where}: {error}") from None


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
