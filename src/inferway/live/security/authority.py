"""A certificate authority for one's own machines, and a certificate of it for every node.

Its key lies beside the certificates, unencrypted, so it is meant for tests and for networks whose
machines have one owner; any other authority will do as well that gives each node a certificate with
the node's name as common name, for servers and for clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from inferway.files import write_whole
from inferway.live.errors import ServeError
from inferway.live.security.tls import AUTHORITY, Credentials, file_name

AUTHORITY_DAYS = 3650
DAYS = 90
# A machine whose clock is somewhat behind must not find its new certificate invalid.
BACKDATED = timedelta(hours=1)
LONGEST_NAME = 64  # of a common name, in characters (RFC 5280, ub-common-name)
# Certificates are renewed in the last third of their time.
RENEWED_IN_LAST = 1 / 3
_PEM = serialization.Encoding.PEM
_BOTH_SIDES = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]


State = Literal["new", "renewed", "kept"]


class CertificateError(ValueError):
    """Certificates that cannot be made, with the reason."""


class Issued(NamedTuple):
    """The outcome for one node, or for the authority, whose name is ``authority``.

    `reason` says why it was renewed; it is empty otherwise.
    """

    name: str
    certificate: Path
    key: Path
    expires: datetime
    state: State
    reason: str


def issue(
    nodes: Sequence[str], folder: Path, *, days: int = DAYS, at: datetime | None = None
) -> list[Issued]:
    """Make an authority and a certificate per node, or renew what needs it, at a time or now.

    The authority is kept as long as it outlives a new certificate; when it is replaced, so are all
    certificates. A node's certificate is kept until the last third of its time. Folder and files
    are their owner's only. Returns the authority first, then the nodes in order.

    Raises
    ------
    CertificateError
        For a name that no certificate can hold or that is the authority's, days below 1 or beyond
        the authority's, or an authority in the folder that cannot be read.
    OSError
        When a file cannot be written.
    """
    at = datetime.now(UTC) if at is None else at
    if not 1 <= days <= AUTHORITY_DAYS:
        raise CertificateError(
            f"a certificate holds 1 to {AUTHORITY_DAYS} days, as the authority does; not {days}"
        )
    taken = {AUTHORITY: "the authority"}
    for node in nodes:
        if not 0 < len(node) <= LONGEST_NAME:
            raise CertificateError(
                f"node {node} has {len(node)} characters in its name; a certificate holds 1 to "
                f"{LONGEST_NAME}"
            )
        # Some file systems know no difference between A and a.
        name = file_name(node).casefold()
        if name in taken:
            raise CertificateError(
                f"node {node} and {taken[name]} would have the same files; rename it"
            )
        taken[name] = f"node {node}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    holds = timedelta(days=days)
    authority, signer, issuer = _authority(folder, at, holds)
    issued = [authority]
    for node in nodes:
        files = Credentials.of(node, folder)
        state, reason = _due(files, node, at)
        if state == "kept":
            expires = files.check(node, at)
        else:
            own = _made(files.key, files.certificate, node, (at, holds), signer, issuer)[1]
            expires = own.not_valid_after_utc
        issued.append(Issued(node, files.certificate, files.key, expires, state, reason))
    return issued


def _authority(
    folder: Path, at: datetime, longest: timedelta
) -> tuple[Issued, ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Read the folder's authority, or make one."""
    path, key_path = folder / f"{AUTHORITY}.pem", folder / f"{AUTHORITY}.key"
    done: tuple[State, str] = ("new", "")
    if path.exists() or key_path.exists():
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
            key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
        except (OSError, ValueError, TypeError) as error:
            raise CertificateError(
                f"{path} and {key_path} are no authority with its key ({error}); move them away to "
                "have a new one made, which replaces every node's certificate"
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or (
            certificate.public_key() != key.public_key()
        ):
            raise CertificateError(f"{key_path} is not the key of {path}, or not one of this tool")
        end = certificate.not_valid_after_utc
        if end >= at + longest:
            return Issued(AUTHORITY, path, key_path, end, "kept", ""), key, certificate
        done = "renewed", f"it holds until {end:%Y-%m-%d} only"
    holds = timedelta(days=AUTHORITY_DAYS)
    key, certificate = _made(key_path, path, f"inferway {AUTHORITY}", (at, holds))
    end = certificate.not_valid_after_utc
    return Issued(AUTHORITY, path, key_path, end, *done), key, certificate


def _due(files: Credentials, node: str, at: datetime) -> tuple[State, str]:
    """Tell whether a node needs a certificate, and why if it has one."""
    if not files.certificate.exists():
        return "new", ""
    try:
        files.check(node, at)
    except ServeError as error:
        return "renewed", str(error).partition(";")[0]
    own = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    end = own.not_valid_after_utc
    if end - at < (end - own.not_valid_before_utc) * RENEWED_IN_LAST:
        return "renewed", f"it would have expired on {end:%Y-%m-%d}"
    return "kept", ""


def _made(
    key_path: Path,
    path: Path,
    common: str,
    begins_and_holds: tuple[datetime, timedelta],
    signer: ec.EllipticCurvePrivateKey | None = None,
    issuer: x509.Certificate | None = None,
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Make a key and its certificate, and save both: a node's or, without an issuer, its own."""
    at, holds = begins_and_holds
    key, authority = ec.generate_private_key(ec.SECP256R1()), issuer is None
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
    usage = x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
    constraints = x509.BasicConstraints(ca=authority, path_length=0 if authority else None)
    named = subject if issuer is None else issuer.subject
    builder = x509.CertificateBuilder(
        named, subject, key.public_key(), x509.random_serial_number(), at - BACKDATED, at + holds
    )
    builder = builder.add_extension(constraints, critical=True).add_extension(usage, critical=True)
    extensions: list[x509.ExtensionType] = [
        x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    ]
    if signer is not None:
        extensions = [
            x509.ExtendedKeyUsage(_BOTH_SIDES),
            # The node's name, not its address: nodes move, and neighbors know each other by name.
            x509.SubjectAlternativeName([x509.DNSName(file_name(common))]),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
        ]
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    certificate = builder.sign(signer or key, SHA256())
    _save(
        key_path,
        key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    _save(path, certificate.public_bytes(_PEM))
    return key, certificate


def _save(path: Path, content: bytes) -> None:
    """Write a file for its owner only, whole or not at all."""
    write_whole(path, content, mode=0o600, lasting=True)
