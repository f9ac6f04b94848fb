"""TLS from files: of a server towards clients, and of nodes towards each other."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from inferway.live.errors import ServeError

# Name of the authority's own files, which no node may have.
AUTHORITY: Final = "authority"


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
        try:
            # An encrypted key would ask at a terminal; a server has none.
            context.load_cert_chain(self.chain, self.key, password=lambda: b"")
        except (OSError, ssl.SSLError) as error:
            raise ServeError(f"TLS is not possible with {self._fault(error)}") from None
        return context

    def _fault(self, error: OSError) -> str:
        """Say which of the files is wrong: OpenSSL names none."""
        for file in self:
            try:
                key = file.read_bytes()
            except OSError as unreadable:
                return f"{file}: {unreadable.strerror or unreadable}"
        reason = getattr(error, "reason", None)
        if reason == "KEY_VALUES_MISMATCH":
            return f"{self.chain} and {self.key}: the key is not that of the certificate"
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(self.chain)
        except (OSError, ssl.SSLError):
            return f"{self.chain}: it holds no certificate in PEM"
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


def file_name(node: str) -> str:
    """Return a node's name as a file has it: without slashes and what else shells mind."""
    # A name that begins with a dot would be hidden, or the folder itself.
    name = quote(node, safe="")
    return f"%2E{name[1:]}" if name.startswith(".") else name


class Credentials(NamedTuple):
    """Three PEM files by which a node proves to its neighbors who it is.

    The authority is one that all nodes of the network trust. The certificate's common name is the
    node's name; its key is not encrypted.
    """

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def of(cls, node: str, folder: Path) -> Credentials:
        """Name a node's files in a folder that ``inferway certs`` has written."""
        name = file_name(node)
        return cls(folder / f"{AUTHORITY}.pem", folder / f"{name}.pem", folder / f"{name}.key")

    def check(self, node: str, at: datetime | None = None) -> datetime:
        """Say before the start what a refused connection would not; returns when they expire.

        ServeError where a file is missing or is none of the kind, the certificate is another
        node's, of another authority or of another key, or either certificate does not hold at that
        time, by default now.
        """
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
        from cryptography.x509.oid import NameOID

        at = datetime.now(UTC) if at is None else at
        path, kind = self.authority, "certificate"
        try:
            authority = x509.load_pem_x509_certificate(path.read_bytes())
            path = self.certificate
            own = x509.load_pem_x509_certificate(path.read_bytes())
            path, kind = self.key, "private key without a password"
            key = load_pem_private_key(path.read_bytes(), password=None)
        except OSError as error:
            raise ServeError(f"node {node} needs {path}: {error.strerror or error}") from None
        except (ValueError, TypeError):
            raise ServeError(f"{path} does not hold a {kind} in PEM") from None
        names = own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        name = str(names[0].value) if names else ""
        if name != node:
            raise ServeError(f"{self.certificate} is the certificate of {name}, not of node {node}")
        if own.public_key() != key.public_key():
            raise ServeError(f"{self.key} is not the key of {self.certificate}")
        try:
            own.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            raise ServeError(
                f"{self.certificate} was not issued by the authority of {self.authority}"
            ) from None
        for path, one in ((self.authority, authority), (self.certificate, own)):
            end, begin = one.not_valid_after_utc, one.not_valid_before_utc
            if at >= end:
                raise ServeError(
                    f"{path} expired on {end:%Y-%m-%d %H:%M} UTC; `inferway certs` renews it"
                )
            if at < begin:
                raise ServeError(
                    f"{path} holds from {begin:%Y-%m-%d %H:%M} UTC only: is this machine's clock "
                    "right?"
                )
        return min(authority.not_valid_after_utc, own.not_valid_after_utc)

    def context(self, *, server: bool) -> ssl.SSLContext:
        """Make what the peer port speaks, to nodes of the authority alone, or what connects to one.

        Whom the latter reaches is checked by `file_name`.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version, context.verify_mode = ssl.TLSVersion.TLSv1_3, ssl.CERT_REQUIRED
        self._load(context)
        return context

    def renew(self, node: str, contexts: Iterable[ssl.SSLContext]) -> None:
        """Have contexts that were made of these files go by what they hold now.

        An authority that is no longer in its file is trusted as before. ServeError as of `check`;
        nothing has changed then.
        """
        self.check(node)
        for context in contexts:
            self._load(context)

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_verify_locations(self.authority)
        context.load_cert_chain(self.certificate, self.key)
