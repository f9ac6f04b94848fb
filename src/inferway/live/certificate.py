"""TLS: certificate and private key from files."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from inferway.live.errors import ServeError


class Certificate(NamedTuple):
    """A certificate chain and its private key, both in PEM files.

    Attributes
    ----------
    chain, key
        The files; the key must not be encrypted.
    """

    chain: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Make what a listener needs: TLS 1.2 or newer.

        Raises
        ------
        ServeError
            When the files are not readable or do not belong together.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            # An encrypted key would ask at a terminal; a server has none.
            context.load_cert_chain(self.chain, self.key, password=lambda: b"")
        except (OSError, ssl.SSLError) as error:
            raise ServeError(
                f"TLS is not possible with {self.chain} and {self.key}: {error.strerror or error}"
            ) from None
        return context

    def renew(self, context: ssl.SSLContext) -> None:
        """Have a listener show what the files hold now, to connections yet to come.

        Raises
        ------
        ServeError
            As `context`; it goes on with what it has.
        """
        self.context()  # what does not fit must not be half taken
        context.load_cert_chain(self.chain, self.key, password=lambda: b"")

    def pem(self) -> tuple[bytes, bytes]:
        """Read private key and chain, as gRPC takes them."""
        return self.key.read_bytes(), self.chain.read_bytes()
