"""Keys, TLS, and clients that do not read."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from inferway.live import Certificate, Keys, Limits, ServeError, Server, ServerOptions, apply

ONE = {
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}]
}
KEY = "a-key-of-enough-length"
ADMIN = "another-key-for-changes"
RIGHT = f"Authorization: Bearer {KEY}\r\n"


@pytest.fixture
def guarded(start: Any, site_of: Any) -> Any:
    return start(site_of(), keys=Keys([KEY, f"admin={ADMIN}"]))


def test_health_is_open_and_the_rest_needs_a_key(guarded: Any) -> None:
    assert guarded.get("/v2/health/live").status == 200
    assert guarded.get("/v2/health/ready").status == 200
    for path in ("/v2", "/v2/models/digits", "/v2/models/digits/explain/x", "/nowhere"):
        refused = guarded.get(path)
        assert (refused.status, refused.json) == (401, {"error": "the request needs a valid key"})
        assert refused.headers["www-authenticate"] == 'Bearer realm="inferway"'
    assert guarded.infer(ONE).status == 401
    assert guarded.infer(ONE, RIGHT).status == 200
    wrong = RIGHT.replace("length", "lengtH")
    assert guarded.infer(ONE, wrong).status == 401
    assert guarded.infer(ONE, RIGHT + wrong).status == 401
    assert guarded.infer(ONE, RIGHT + RIGHT).status == 401


def test_the_admin_listener_asks_for_the_key_too(guarded: Any, tmp_path: Path) -> None:
    assert guarded.get("/metrics", admin=True).status == 401
    raw = f"GET /metrics HTTP/1.1\r\nHost: t\r\n{RIGHT}\r\n".encode()
    assert guarded.ask(raw, admin=True).status == 200
    url = f"http://127.0.0.1:{guarded.server.admin_port}"
    with pytest.raises(ServeError, match="needs a valid key"):
        apply(tmp_path / "x.yaml", url)
    with pytest.raises(ServeError, match=r"x\.yaml"):
        apply(tmp_path / "x.yaml", url, key=ADMIN)


def test_a_body_without_a_key_is_not_waited_for(guarded: Any) -> None:
    wire = guarded.wire()
    wire.send(b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: t\r\nContent-Length: 9999\r\n\r\n")
    refused = wire.read()
    assert (refused.status, refused.headers["connection"]) == (401, "close")


def test_an_open_admin_listener_must_be_local(site_of: Any) -> None:
    with pytest.raises(ServeError, match="open to the network"):
        Server([site_of()], ServerOptions(admin_host="0.0.0.0"))
    for host in ("127.0.0.2", "::1", "localhost"):
        Server([site_of()], ServerOptions(admin_host=host))
    Server([site_of()], ServerOptions(admin_host="0.0.0.0", keys=Keys([KEY])))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    folder = tmp_path_factory.mktemp("tls")
    made = Certificate(folder / "chain.pem", folder / "key.pem")
    subprocess.run(
        [
            *(program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "1", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(made.key), "-out", str(made.chain)),
        ],
        check=True,
        capture_output=True,
    )
    return made


def test_tls(start: Any, site_of: Any, certificate: Certificate) -> None:
    running = start(site_of(), certificate=certificate)
    trusting = ssl.create_default_context(cafile=str(certificate.chain))
    with (
        closing(running.wire()) as wire,
        trusting.wrap_socket(wire.socket, server_hostname="localhost") as secure,
    ):
        wire.socket = secure
        assert secure.version() in ("TLSv1.2", "TLSv1.3")
        for _ in range(3):
            wire.send(running.post(ONE) * 2)
            assert [wire.read().status for _ in range(2)] == [200, 200]
        # So does what is written in pieces, with another request behind it.
        rows = 30_000
        tensor = ONE["inputs"][0] | {"shape": [rows, 4], "data": [0.5] * 4 * rows}
        wire.send(running.post({"inputs": [tensor]}) + running.post(ONE))
        assert len(wire.read().json["outputs"][0]["data"]) == 3 * rows
        assert wire.read().status == 200
        # A refusal reaches its reader over TLS as well.
        wire.send(b"nonsense\r\n\r\n")
        assert wire.read().status == 400
    with closing(running.wire()) as plain:
        plain.send(b"GET /v2 HTTP/1.1\r\nHost: t\r\n\r\n")
        with pytest.raises((ConnectionError, OSError)):
            plain.read()
    assert running.get("/status", admin=True).status == 200


def test_an_admin_listener_on_the_network_has_tls_too(
    start: Any, site_of: Any, certificate: Certificate
) -> None:
    options = {"keys": Keys([KEY]), "certificate": certificate, "admin_host": "0.0.0.0"}
    running = start(site_of(), **options)
    trusting = ssl.create_default_context(cafile=str(certificate.chain))
    with (
        socket.create_connection(("127.0.0.1", running.server.admin_port), 10) as plain,
        trusting.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        secure.sendall(f"GET /status HTTP/1.1\r\nHost: t\r\n{RIGHT}\r\n".encode())
        assert secure.recv(15) == b"HTTP/1.1 200 OK"


def test_a_tls_client_without_the_authority_is_told_so(
    start: Any, site_of: Any, certificate: Certificate
) -> None:
    running = start(site_of(), certificate=certificate)
    with closing(running.wire()) as wire, pytest.raises(ssl.SSLCertVerificationError):
        ssl.create_default_context().wrap_socket(wire.socket, server_hostname="localhost")


def test_files_that_are_no_certificate_are_refused(site_of: Any, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    for name in ("x", "missing"):
        with pytest.raises(ServeError, match="TLS is not possible with"):
            Server(
                [site_of()],
                ServerOptions(certificate=Certificate(tmp_path / name, tmp_path / name)),
            )


def test_who_does_not_read_is_cut_off(start: Any, site_of: Any, until: Any, patient: Any) -> None:
    running = start(site_of(), limits=Limits(pipelined=4096), loop=patient)
    site = running.site
    rows = 2000
    tensor = ONE["inputs"][0] | {"shape": [rows, 4], "data": [0.5] * 4 * rows}
    wire = running.wire()
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw = running.post({"inputs": [tensor]})
    wire.socket.settimeout(0.2)
    try:
        for _ in range(400):
            wire.send(raw)
    except OSError:
        pass  # it reads no more either
    assert running.server._http.connections

    def passed() -> bool:
        patient.advance(10.0)
        return not running.server._http.connections

    until(passed)
    until(lambda: site.in_flight == 0)
