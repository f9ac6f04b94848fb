"""The servers that are driven: where they are, how they let a client in, what a task of them takes.

A server is asked for a task's signature before the requests. That goes to the given address and
nowhere else: no proxy settings are read, no redirect is followed.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from inferway.protocol import DTYPES, Signature, Tensor
from inferway.protocol.address import NODE, ServerAddress, parse_server, split
from inferway.protocol.messages import RemoteModel, TensorMetadata
from inferway.unreadable import UNREADABLE, fault

if TYPE_CHECKING:
    from inferway.deployment import Deployment

HOW_TO_GIVE: Final = "with --key-file FILE or in INFERWAY_KEY"
"""Completes sentences that ask for a key."""
_OTHER_AUTHORITY: Final = frozenset({2, 7, 18, 19, 20, 21})
"""Results of a verification (OpenSSL, X509_V_ERR_*) that mean: nobody who is trusted signed it."""
_PORT: Final = 8000
ASK_S: Final = 5.0
"""How long a server may take for the connection, and for an answer about a task."""


class DriveError(ValueError):
    """The server cannot be driven; the message is one sentence for the user."""


class AddressError(DriveError):
    """A server's address has not been said, or is none."""


@dataclass(frozen=True)
class Access:
    """Access to the servers of one drive: what all are told and held to.

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

    def __reduce__(self) -> tuple[type[Access], tuple[Any, ...]]:
        return Access, (self.key, self.authority)  # the context is made anew

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
        """Context of connections with TLS; made once, as reading the system's authorities takes ms.

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
            why = error.strerror or error
            raise DriveError(f"{self.authority} cannot be read: {why}") from None

    def hidden(self, sentence: str) -> str:
        """Return a server's sentence without the key, should the server repeat it."""
        return sentence if self.key is None else sentence.replace(self.key, "(the key)")


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


def server_at(url: str) -> ServerAddress:
    """Read a server's address, as the user gave it; AddressError when it is none."""
    try:
        return parse_server(url)
    except ValueError as error:
        raise AddressError(str(error)) from None


class _Node(msgspec.Struct):
    http: str


def addresses_of(deployment: Deployment, file: Path | None = None) -> dict[str, str]:
    """Collect the addresses of a deployment's nodes, as URLs.

    Parameters
    ----------
    deployment
        A file with `network`. Nodes with an `address` listen there, at port 8000 unless it says
        another.
    file
        A JSON document ``{"edge-1": {"http": "127.0.0.1:41001", ...}, ...}``, whose addresses hold
        in place of the file's.

    Raises
    ------
    AddressError
        When the document is none, or an address is none.
    DeploymentError
        As `inferway.network.topology_of`.
    """
    from inferway.network.layout import members_of, topology_of

    addresses = {}
    for name, node in members_of(deployment, topology_of(deployment)).items():
        if node.address is not None:
            host, port = split(node.address.replace(NODE, name))
            addresses[name] = ServerAddress(host, port or _PORT, False, "").url
    if file is None:
        return addresses
    try:
        document = msgspec.json.decode(file.read_bytes(), type=dict[str, _Node])
    except OSError as error:
        raise AddressError(f"{file} cannot be read: {error.strerror or error}") from error
    except UNREADABLE as error:
        raise AddressError(
            f"{file} holds no addresses ({fault(error)}): write them as "
            '{"edge-1": {"http": "127.0.0.1:8000"}}'
        ) from error
    return addresses | {name: server_at(node.http).url for name, node in document.items()}


def signature(url: str, task: str, *, access: Access = OPEN) -> Signature:
    """Ask the server at a URL what a task takes and returns.

    DriveError when nothing answers there, the server is not ready, does not serve the task, asks
    for a key or another role of it, or has a certificate that is not trusted; or when the address
    has no TLS, though an authority is named.
    """
    address = server_at(url)
    if access.authority is not None and not address.tls:
        raise DriveError(
            f"{address.url} has no TLS, and --ca names an authority for it: write its address with "
            "https:// in --url or --addresses"
        )
    status, _, body = ask(address, f"{address.prefix}/v2/health/ready", access)
    if status != 200:
        raise DriveError(f"the server at {address.url} is not ready (status {status})")
    status, _, body = ask(address, address.model_path(task), access)
    if status == 403:
        raise DriveError(f"the server at {address.url} wants a key with the role infer")
    if status != 200:
        raise DriveError(f"the server at {address.url} does not serve a task {task!r}")
    try:
        metadata = msgspec.json.decode(body, type=RemoteModel)
        read = Signature(_tensors(metadata.inputs), _tensors(metadata.outputs))
        if not read.inputs or not read.outputs:
            raise ValueError("it names no inputs or no outputs")
    except (*UNREADABLE, KeyError) as error:
        raise DriveError(
            f"the server at {address.url} answered no Open Inference Protocol metadata "
            f"for the task {task!r}: {fault(error)}"
        ) from error
    return read


def _tensors(metadata: list[TensorMetadata]) -> tuple[Tensor, ...]:
    for tensor in metadata:
        DTYPES[tensor.datatype]
    return tuple(Tensor(one.name, one.datatype, one.shape) for one in metadata)


class ServerAnswer(NamedTuple):
    """What a server answered; names of headers are in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


def ask(
    address: ServerAddress,
    path: str,
    access: Access,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    within_s: float = ASK_S,
) -> ServerAnswer:
    """Ask a server once, with GET, or with POST where there is a body.

    Parameters
    ----------
    address, path
        Where.
    access
        As all requests have it.
    body, headers
        What is sent beside it.
    within_s
        How long the server may take for the connection, and for the answer.

    Raises
    ------
    DriveError
        When there is no answer, or the server asks for another key.
    """
    answer = ask_whoever(address, path, access, body=body, headers=headers, within_s=within_s)
    if answer.status == 401:
        wrong = "asks for a key" if access.key is None else "does not take the key that was given"
        raise DriveError(f"the server at {address.url} {wrong}: give one {HOW_TO_GIVE}")
    return answer


def ask_whoever(
    address: ServerAddress,
    path: str,
    access: Access,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    within_s: float = ASK_S,
) -> ServerAnswer:
    """Ask as `ask` does, and return its answer to a wrong key, too; DriveError without any."""
    connection = (
        http.client.HTTPSConnection(
            address.host, address.port, timeout=within_s, context=access.context
        )
        if address.tls
        else http.client.HTTPConnection(address.host, address.port, timeout=within_s)
    )
    try:
        sent = {"Host": address.authority} | access.headers | dict(headers or {})
        connection.request("GET" if body is None else "POST", path, body, sent)
        response = connection.getresponse()
        content = response.read()
    except ssl.SSLError as error:
        raise DriveError(f"no connection to {address.url}: {unsecured(error)}") from error
    except (OSError, http.client.HTTPException) as error:
        raise DriveError(
            f"no server answers at {address.url} ({_reason(error)}): "
            "start one with `inferway serve FILE`, or say with --url or --addresses where it is"
        ) from error
    finally:
        connection.close()
    named = {name.lower().encode(): value.encode() for name, value in response.getheaders()}
    return ServerAnswer(response.status, named, content)


def _reason(error: Exception) -> str:
    match error:
        case ConnectionRefusedError():
            return "connection refused"
        case TimeoutError():
            return "no answer in time"
        case ConnectionResetError() | http.client.BadStatusLine():
            return (
                "the connection ended without an answer; with TLS the address begins with https://"
            )
    return str(error) or type(error).__name__
