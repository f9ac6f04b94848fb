"""What a server says of a task, asked before the requests."""

from __future__ import annotations

import http.client
import ssl

import msgspec

from inferway.loadgen.access import HOW_TO_GIVE, OPEN, Access, DriveError, unsecured
from inferway.loadgen.addresses import server_at
from inferway.protocol import DTYPES, Signature, Tensor
from inferway.protocol.address import ServerAddress
from inferway.protocol.messages import RemoteModel, TensorMetadata
from inferway.unreadable import UNREADABLE, fault


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
    address = server_at(url)
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
        metadata = msgspec.json.decode(body, type=RemoteModel)
        for tensor in (*metadata.inputs, *metadata.outputs):
            DTYPES[tensor.datatype]
        if not metadata.inputs or not metadata.outputs:
            raise ValueError("it names no inputs or no outputs")
    except (*UNREADABLE, KeyError) as error:
        raise DriveError(
            f"the server at {address.url} answered no Open Inference Protocol metadata "
            f"for the task {task!r}: {fault(error)}"
        ) from error
    return Signature(_tensors(metadata.inputs), _tensors(metadata.outputs))


def _tensors(metadata: list[TensorMetadata]) -> tuple[Tensor, ...]:
    return tuple(Tensor(t.name, t.datatype, t.shape) for t in metadata)


def _get(address: ServerAddress, path: str, access: Access, timeout_s: float) -> tuple[int, bytes]:
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
    address: ServerAddress, access: Access, timeout_s: float
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
