"""By what servers let a client in, and by what it knows them: a bearer key and an authority."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec


class DriveError(ValueError):
    """The server cannot be driven; the message is one sentence for the user."""


class AddressError(DriveError):
    """Where a server is has not been said, or is no address."""


HOW_TO_GIVE: Final = "with --key-file FILE or in INFERWAY_KEY"
"""Completes sentences that ask for a key."""

_OTHER_AUTHORITY: Final = frozenset({2, 7, 18, 19, 20, 21})
"""Results of a verification (OpenSSL, X509_V_ERR_*) that mean: nobody who is trusted signed it."""


@dataclass(frozen=True)
class Access:
    """What all servers of one drive are told and held to.

    Attributes
    ----------
    key
        Goes with every request as ``Authorization: Bearer KEY`` (RFC 6750); it is never shown.
    authority
        PEM file of the authority that signed the servers' certificates, trusted in place of those
        that the system trusts. With one, nothing is sent without TLS.

    Raises
    ------
    DriveError
        When the key is none that a header can carry, or the file holds no certificate. No message
        shows the key.
    """

    key: str | None = field(default=None, repr=False)
    authority: Path | str | None = None

    def __post_init__(self) -> None:
        if self.key is not None and not (self.key and all("!" <= one <= "~" for one in self.key)):
            raise DriveError(
                "the key has characters other than visible ASCII"
                if self.key
                else "the key is empty: leave it out where the server asks for none"
            )
        if self.authority is not None:
            _ = self.context  # what is wrong with the file is said now

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request, by name."""
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    @property
    def lines(self) -> bytes:
        """The same as lines of a request."""
        return "".join(f"{name}: {value}\r\n" for name, value in self.headers.items()).encode()

    @cached_property
    def context(self) -> ssl.SSLContext:
        """What connections with TLS need; made once, as reading the system's authorities takes ms.

        Raises
        ------
        DriveError
            When the authority's file cannot be read, or holds no certificate.
        """
        try:
            return ssl.create_default_context(cafile=self.authority)
        except ssl.SSLError:
            raise DriveError(f"{self.authority} does not hold a certificate in PEM") from None
        except OSError as error:
            raise DriveError(
                f"{self.authority} cannot be read: {error.strerror or error}"
            ) from None

    def hidden(self, sentence: str) -> str:
        """Return a server's sentence without the key, should the server repeat it."""
        return sentence if self.key is None else sentence.replace(self.key, "(the key)")

    def encode(self) -> bytes:
        """Write it as one line, for another process."""
        authority = None if self.authority is None else str(self.authority)
        return msgspec.json.encode({"key": self.key, "authority": authority}) + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Access:
        """Read what `encode` wrote."""
        return cls(**msgspec.json.decode(line, type=dict[str, str | None]))


OPEN: Final = Access()
"""For servers that ask for no key, and whose certificates the system trusts."""


def unsecured(error: ssl.SSLError) -> str:
    """Say why there is no connection with TLS, and what to do about an unknown authority."""
    if isinstance(error, ssl.SSLCertVerificationError):
        sentence = f"its certificate is not trusted ({error.verify_message.rstrip('.')})"
        if error.verify_code in _OTHER_AUTHORITY:
            return f"{sentence}: name the authority that signed it with --ca FILE.pem"
        return sentence
    if error.reason == "WRONG_VERSION_NUMBER":  # what came was no TLS at all
        return "it does not speak TLS: write its address with http://"
    return f"TLS failed: {(error.reason or str(error)).lower().replace('_', ' ')}"
