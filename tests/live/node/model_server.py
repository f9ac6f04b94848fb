"""A real HTTPS server that gives models as a test says, and notes what it was asked."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

LIMIT_S = 20.0


class Asked(NamedTuple):
    """One request; header names in lower case."""

    target: str
    headers: dict[str, str]

    @property
    def start(self) -> int:
        """The first byte that it asks for."""
        return int(self.headers.get("range", "bytes=0-").removeprefix("bytes=").rstrip("-"))


Reply = Callable[[ssl.SSLSocket, Asked], None]


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def content_of(size: int, seed: int = 0) -> bytes:
    """Bytes that differ wherever one looks."""
    return hashlib.shake_128(seed.to_bytes(8, "big")).digest(size)


def say(wire: ssl.SSLSocket, status: str, *headers: str) -> None:
    wire.sendall("\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode())


def whole(content: bytes, etag: str | None = '"one"', cuts: list[int] | None = None) -> Reply:
    """Serve a file as servers do, ranges included; cut the n-th answer after `cuts[n]` bytes."""
    cuts = [] if cuts is None else cuts

    def reply(wire: ssl.SSLSocket, asked: Asked) -> None:
        start = asked.start
        if asked.headers.get("if-range", etag) != etag:
            start = 0
        tag = [] if etag is None else [f"ETag: {etag}"]
        rest = content[start:]
        if start:
            span = f"Content-Range: bytes {start}-{len(content) - 1}/{len(content)}"
            say(wire, "206 Partial Content", f"Content-Length: {len(rest)}", span, *tag)
        else:
            say(wire, "200 OK", f"Content-Length: {len(rest)}", *tag)
        wire.sendall(rest[: cuts.pop(0)] if cuts else rest)

    return reply


def chunked(content: bytes, block: int = 4096) -> Reply:
    """Serve a file whose length is not told beforehand."""

    def reply(wire: ssl.SSLSocket, asked: Asked) -> None:
        say(wire, "200 OK", "Transfer-Encoding: chunked")
        for start in range(0, len(content), block):
            piece = content[start : start + block]
            wire.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        wire.sendall(b"0\r\n\r\n")

    return reply


def redirect(location: str) -> Reply:
    return lambda wire, asked: say(wire, "302 Found", f"Location: {location}", "Content-Length: 0")


class ModelServer:
    """Serves `replies` by path, on loopback."""

    def __init__(self, certificate: Path) -> None:
        self.replies: dict[str, Reply] = {}
        self.asked: list[Asked] = []
        self.gone = threading.Event()
        """Set when a client has left before it was answered."""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def url(self, path: str = "/model", host: str = "127.0.0.1") -> str:
        return f"https://{host}:{self.port}{path}"

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(plain,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, plain: socket.socket) -> None:
        plain.settimeout(LIMIT_S)
        try:
            with self._context.wrap_socket(plain, server_side=True) as wire:
                head = b""
                while b"\r\n\r\n" not in head:
                    piece = wire.recv(65536)
                    if not piece:
                        return
                    head += piece
                line, *lines = head.decode().strip().split("\r\n")
                pairs = (one.split(": ", 1) for one in lines)
                asked = Asked(line.split()[1], {name.lower(): value for name, value in pairs})
                self.asked.append(asked)
                reply = self.replies.get(asked.target.partition("?")[0])
                if reply is None:
                    say(wire, "404 Not Found", "Content-Length: 0")
                else:
                    reply(wire, asked)
        except OSError:  # the client has left, or does not trust us
            self.gone.set()


def until_gone(wire: ssl.SSLSocket) -> None:
    """Say nothing more; return when the client has left."""
    with suppress(OSError):
        while wire.recv(65536):
            pass


def make_certificate(file: Path, *hosts: str) -> Path:
    """Write a certificate that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, hosts[0])])
    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file.write_bytes(secret + certificate.public_bytes(serialization.Encoding.PEM))
    return file
