"""Bearer keys: who may use the server (RFC 6750)."""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final

from inferway.live.assembly import ServeError

VARIABLE: Final = "INFERWAY_KEYS"
"""The environment variable with keys, separated by commas or white space."""
SHORTEST: Final = 16


class Keys:
    """The keys that open the server; any of them does.

    Parameters
    ----------
    keys
        At least one; each of at least 16 visible ASCII characters.

    Raises
    ------
    ServeError
        When there is none, or one is too short or has other characters. No message shows a key.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        digests = []
        for number, key in enumerate(keys, start=1):
            if len(key) < SHORTEST:
                raise ServeError(
                    f"key {number} has {len(key)} characters; {SHORTEST} or more are needed"
                )
            if not all("!" <= letter <= "~" for letter in key):
                raise ServeError(f"key {number} has characters other than visible ASCII")
            digests.append(_digest(key.encode()))
        if not digests:
            raise ServeError("there is no key; give at least one")
        self._digests = tuple(digests)

    def allow(self, authorization: bytes | str) -> bool:
        """Whether an Authorization header's value has one of the keys.

        Every key is compared, each in a time that does not depend on where it differs: digests of
        equal length are.
        """
        value = authorization.encode() if isinstance(authorization, str) else authorization
        scheme, _, key = value.partition(b" ")
        given = _digest(key.strip(b" "))
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(given, digest)
        return found and scheme.lower() == b"bearer"


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
        reason = getattr(error, "strerror", None) or error
        raise ServeError(f"the keys cannot be read from {path}: {reason}") from None
    return _named(str(path), [line for line in lines if line and not line.startswith("#")])


def _named(where: str, words: list[str]) -> Keys:
    try:
        return Keys(words)
    except ServeError as error:
        raise ServeError(f"{where}: {error}") from None


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
