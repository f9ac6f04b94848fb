"""TLS: certificate and private key from files."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from inferway.live.errors import ServeError


class Certificate(NamedTuple):
    """A certificate chain and its private key, both in PEM files; the key is not encrypted."""

    chain: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Make what a listener needs: TLS 1.2 or newer.

        ServeError when the files are not readable or do not belong together.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        for file in self:
            try:
                file.read_bytes()
            except OSError as error:
                reason = error.strerror or error
                raise ServeError(f"TLS is not possible with {file}: {reason}") from None
        try:
            # An encrypted key would ask at a terminal; a server has none.
            context.load_cert_chain(self.chain, self.key, password=lambda: b"")
        except (OSError, ssl.SSLError) as error:
            raise ServeError(f"TLS is not possible with {self._fault(error)}") from None
        return context

    def _fault(self, error: OSError) -> str:
        """Say which of the files is wrong: OpenSSL names none."""
        reason = getattr(error, "reason", None)
        if reason == "KEY_VALUES_MISMATCH":
            return f"{self.chain} and {self.key}: the key is not that of the certificate"
        if not _has_certificate(self.chain):
            return f"{self.chain}: it holds no certificate in PEM"
        key = self.key.read_bytes()
        if b"ENCRYPTED" in key:
            return f"{self.key}: the key is encrypted; give one without a password"
        if b"PRIVATE KEY-----" not in key:
            return f"{self.key}: it holds no private key in PEM"
        return f"{self.chain} and {self.key}: {reason or error.strerror or error}"

    def renew(self, context: ssl.SSLContext) -> None:
        """Have a listener show what the files hold now, to connections yet to come.

        ServeError as of `context`; it goes on with what it has.
        """
        self.context()  # what does not fit must not be half taken
        context.load_cert_chain(self.chain, self.key, password=lambda: b"")

    def pem(self) -> tuple[bytes, bytes]:
        """Read private key and chain, as gRPC takes them."""
        return self.key.read_bytes(), self.chain.read_bytes()


def _has_certificate(file: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except (OSError, ssl.SSLError):
        return False
    return True
