"""Where the server is, read from the address that the user gave."""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import msgspec

from inferway.loadgen.access import HOW_TO_GIVE, OPEN, Access, unsecured
from inferway.loadgen.error import AddressError, DriveError
from inferway.runtime.signature import DTYPES, Signature, Tensor
from inferway.runtime.unreadable import UNREADABLE, fault

__all__ = ["Address", "DriveError", "parse", "signature"]


@dataclass(frozen=True, slots=True)
class Address:
    """A server's address in parts.

    Attributes
    ----------
    host, port
        Where to connect.
    tls
        Whether the connection is encrypted.
    prefix
        Path before `/v2`, empty or beginning with a slash.
    """

    host: str
    port: int
    tls: bool
    prefix: str

    @property
    def authority(self) -> str:
        """Host and port as the Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The address in one piece, for messages."""
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"

    def infer_path(self, task: str, variant: str | None = None) -> str:
        """Path of the inference call for a task, pinned to a variant if one is given."""
        return f"{self.model_path(task, variant)}/infer"

    def model_path(self, task: str, variant: str | None = None) -> str:
        """Path of a task's metadata."""
        version = "" if variant is None else f"/versions/{quote(variant, safe='')}"
        return f"{self.prefix}/v2/models/{quote(task, safe='')}{version}"


def parse(url: str) -> Address:
    """Read `http://host:port/prefix` or `https://...`.

    Raises
    ------
    AddressError
        When it is no such address.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:  # a bracket or a port that is none
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise AddressError(f"{url!r} is no server address: write it as http://127.0.0.1:8000")
    tls = parts.scheme == "https"
    return Address(host, port or (443 if tls else 80), tls, parts.path.rstrip("/"))


class _TensorMetadata(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]


class _ModelMetadata(msgspec.Struct):
    inputs: list[_TensorMetadata]
    outputs: list[_TensorMetadata]


def signature(url: str, task: str, *, access: Access = OPEN, timeout_s: float = 5.0) -> Signature:
    """Ask the server what a task takes and returns.

    It goes to the given address and nowhere else: no proxy settings are read, no redirect followed.

    Parameters
    ----------
    url
        The server's address.
    task
        The task's name.
    access
        The key that the server asks for, and who signed its certificate.
    timeout_s
        How long to wait for the connection and for the answer, in seconds.

    Raises
    ------
    DriveError
        When nothing answers there, the server is not ready, does not serve the task, asks for a key
        or has a certificate that is not trusted; or the address has no TLS, though an authority is
        named.
    """
    address = parse(url)
    if access.authority is not None and not address.tls:
        raise DriveError(
            f"{address.url} has no TLS, and --ca names an authority for it: write its address with "
            "https:// in --url or --addresses"
        )
    status, body = _get(address, f"{address.prefix}/v2/health/ready", access, timeout_s)
    if status != 200:
        raise DriveError(f"the server at {address.url} is not ready (status {status})")
    status, body = _get(address, address.model_path(task), access, timeout_s)
    if status != 200:
        raise DriveError(f"the server at {address.url} does not serve a task {task!r}")
    try:
        metadata = msgspec.json.decode(body, type=_ModelMetadata)
        for tensor in (*metadata.inputs, *metadata.outputs):
            DTYPES[tensor.datatype]
    except (*UNREADABLE, KeyError) as error:
        raise DriveError(
            f"the server at {address.url} answered no Open Inference Protocol metadata "
            f"for the task {task!r}: {fault(error)}"
        ) from error
    return Signature(_tensors(metadata.inputs), _tensors(metadata.outputs))


def _tensors(metadata: list[_TensorMetadata]) -> tuple[Tensor, ...]:
    return tuple(Tensor(t.name, t.datatype, tuple(t.shape)) for t in metadata)


def _get(address: Address, path: str, access: Access, timeout_s: float) -> tuple[int, bytes]:
    connection = _connection(address, access, timeout_s)
    try:
        connection.request("GET", path, headers={"Host": address.authority} | access.headers)
        response = connection.getresponse()
        status, body = response.status, response.read()
    except ssl.SSLError as error:
        raise DriveError(f"no connection to {address.url}: {unsecured(error)}") from error
    except (OSError, http.client.HTTPException) as error:
        raise DriveError(
            f"no server answers at {address.url} ({_reason(error)}): "
            "start one with `inferway serve FILE`, or say with --url or --addresses where it is"
        ) from error
    finally:
        connection.close()
    if status == 401:
        wrong = "asks for a key" if access.key is None else "does not take the key that was given"
        raise DriveError(f"the server at {address.url} {wrong}: give one {HOW_TO_GIVE}")
    return status, body


def _connection(
    address: Address, access: Access, timeout_s: float
) -> http.client.HTTPConnection | http.client.HTTPSConnection:
    host, port = address.host, address.port
    if address.tls:
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=access.context)
    return http.client.HTTPConnection(host, port, timeout=timeout_s)


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionResetError | http.client.BadStatusLine):
        return "the connection ended without an answer; with TLS the address begins with https://"
    return str(error) or type(error).__name__
