"""By what a node proves to its neighbors who it is: certificate, key and the authority's."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from inferway.live.errors import ServeError

AUTHORITY = "authority"
"""Name of the authority's own files, which no node may have."""


def file_name(node: str) -> str:
    """Return a node's name as a file has it: without slashes and what else shells mind."""
    # A name that begins with a dot would be hidden, or the folder itself.
    name = quote(node, safe="")
    return f"%2E{name[1:]}" if name.startswith(".") else name


class Credentials(NamedTuple):
    """Three PEM files. The certificate's common name is the node's name.

    Attributes
    ----------
    authority
        The certificate of the authority that all nodes of the network trust.
    certificate, key
        The node's own; the key is not encrypted.
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
        """Say before the start what a refused connection would not.

        Parameters
        ----------
        node
            Whose they ought to be.
        at
            The time for which they must hold; now if not given.

        Returns
        -------
        datetime
            When they expire.

        Raises
        ------
        ServeError
            Where a file is missing or is none of the kind, the certificate is another node's, of
            another authority or of another key, or either certificate does not hold at that time.
        """
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

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
        name = common_name(own)
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
            if at >= one.not_valid_after_utc:
                raise ServeError(
                    f"{path} expired on {one.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; "
                    "`inferway certs` renews it"
                )
            if at < one.not_valid_before_utc:
                raise ServeError(
                    f"{path} holds from {one.not_valid_before_utc:%Y-%m-%d %H:%M} UTC only: is "
                    "this machine's clock right?"
                )
        return min(authority.not_valid_after_utc, own.not_valid_after_utc)

    def server_context(self) -> ssl.SSLContext:
        """Make what the peer port speaks: nodes of the authority are let in, nobody else."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        return self._loaded(context)

    def client_context(self) -> ssl.SSLContext:
        """Make what connects to a peer port; whom it reaches is checked by `file_name`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return self._loaded(context)

    def renew(self, node: str, contexts: Iterable[ssl.SSLContext]) -> None:
        """Have contexts that were made of these files go by what they hold now.

        An authority that is no longer in its file is trusted as before.

        Raises
        ------
        ServeError
            As `check`; nothing has changed then.
        """
        self.check(node)
        for context in contexts:
            self._loaded(context)

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.load_verify_locations(self.authority)
        context.load_cert_chain(self.certificate, self.key)
        return context


def common_name(certificate: object) -> str:
    """Return the common name of a certificate's subject; empty where it has none."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    assert isinstance(certificate, x509.Certificate)
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""
