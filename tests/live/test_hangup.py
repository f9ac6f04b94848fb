"""SIGHUP: `serve` and `node` read anew what they were started with, `up` drains."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

KEY, OTHER = "a-key-of-enough-length", "another-of-enough-length"
LIMIT_S = 60.0
START_S = 180.0
FILE = """
tasks:
  {task}: {{variants: {{tiny: {{model: zoo://digits/tiny}}}}}}
"""


class Serving:
    """`inferway serve` in a folder, with what it logs."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder, self.process = folder, process
        self.logged: list[dict[str, Any]] = []
        self.ports: dict[str, int] = {}
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.logged.append(json.loads(line))

    def hang_up(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    def status(self, path: str, *, key: str = KEY, admin: bool = False) -> int:
        port = self.ports["admin_port" if admin else "http_port"]
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {key}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def said(self, event: str, what: str) -> list[dict[str, Any]]:
        """What has been logged of something that was to be read anew."""
        return [one for one in self.logged if (one["event"], one.get("what")) == (event, what)]


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline_s, "the condition did not come true"
        pause.wait(0.02)


@contextmanager
def served(folder: Path, *options: str, wait: bool = True) -> Iterator[Serving]:
    """Run `inferway serve` with keys; it must end with 0, and only when it is told to."""
    (folder / "digits.yaml").write_text(FILE.format(task="digits"))
    (folder / "keys").write_text(f"{KEY}\n")
    command = [sys.executable, "-m", "inferway", "serve", "digits.yaml", "--keys", "keys", "--json"]
    command += ["--http-port", "0", "--admin-port", "0", "--forget", "--drain-delay", "0"]
    with subprocess.Popen(
        [*command, *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        one = Serving(folder, process)
        try:
            if wait:
                assert process.stdout is not None
                one.ports = json.loads(process.stdout.readline())
            yield one
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(LIMIT_S)
            one._thread.join(LIMIT_S)
    assert process.returncode == 0, one.logged


def test_the_file_is_served_anew(tmp_path: Path) -> None:
    with served(tmp_path) as one:
        assert one.status("/v2/models/digits") == 200
        (tmp_path / "digits.yaml").write_text(FILE.format(task="other"))
        one.hang_up()
        until(lambda: one.status("/v2/models/other/ready") == 200)
        assert one.status("/v2/models/digits") == 404
        # What is wrong is said in a sentence, and changes nothing.
        (tmp_path / "digits.yaml").write_text("tasks: [")
        one.hang_up()
        until(lambda: bool(one.said("not read anew", "deployment")))
        (logged,) = one.said("not read anew", "deployment")
        assert "digits.yaml:1: not YAML" in logged["reason"]
        assert one.status("/v2/models/other/ready") == 200
        (tmp_path / "digits.yaml").unlink()
        one.hang_up()
        until(lambda: len(one.said("not read anew", "deployment")) == 2)
        assert one.status("/v2/models/other/ready") == 200


def test_keys_are_read_anew(tmp_path: Path) -> None:
    with served(tmp_path, "--no-grpc") as one:
        assert one.status("/v2", key=OTHER) == 401
        (tmp_path / "keys").write_text(f"read={KEY}\n{OTHER}\n")
        one.hang_up()
        until(lambda: one.status("/v2", key=OTHER) == 200)
        assert one.status("/v2") == 403
        assert one.status("/metrics", admin=True) == 200
        for content in ("short\n", "", None):
            before = len(one.said("not read anew", "keys"))
            if content is None:
                (tmp_path / "keys").unlink()
            else:
                (tmp_path / "keys").write_text(content)
            one.hang_up()
            until(lambda before=before: len(one.said("not read anew", "keys")) > before)
            assert one.status("/v2", key=OTHER) == 200
        assert not any(KEY in str(logged) or OTHER in str(logged) for logged in one.logged)


def certificate(folder: Path, name: str) -> bytes:
    """Write a certificate and its key; return the certificate as it goes over the wire."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    subprocess.run(
        [
            *(program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "1", "-subj", f"/CN={name}"),
            *("-keyout", str(folder / "key.pem"), "-out", str(folder / "chain.pem")),
        ],
        check=True,
        capture_output=True,
    )
    return ssl.PEM_cert_to_DER_cert((folder / "chain.pem").read_text())


def shows(port: int) -> bytes | None:
    """The certificate that a listener shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection(("127.0.0.1", port), LIMIT_S) as plain,
        context.wrap_socket(plain) as wire,
    ):
        return wire.getpeercert(binary_form=True)


def test_certificates_are_read_anew(tmp_path: Path) -> None:
    first = certificate(tmp_path, "first")
    with served(tmp_path, "--tls-cert", "chain.pem", "--tls-key", "key.pem") as one:
        ports = [one.ports["http_port"], one.ports["grpc_port"]]
        assert [shows(port) for port in ports] == [first, first]
        second = certificate(tmp_path, "second")
        one.hang_up()
        until(lambda: [shows(port) for port in ports] == [second, second])
        # A key that is none of the certificate's, and none at all.
        certificate(tmp_path, "third")
        shutil.copy(tmp_path / "key.pem", tmp_path / "kept.pem")
        certificate(tmp_path, "fourth")
        shutil.copy(tmp_path / "kept.pem", tmp_path / "key.pem")
        one.hang_up()
        until(lambda: len(one.said("not read anew", "certificate")) == 1)
        (tmp_path / "chain.pem").write_text("none")
        one.hang_up()
        until(lambda: len(one.said("not read anew", "certificate")) == 2)
        assert [shows(port) for port in ports] == [second, second]


def test_it_ends_nothing_while_the_server_starts_or_ends(tmp_path: Path) -> None:
    with served(tmp_path, "--drain-delay", "3", wait=False) as one:
        # From when the command line has been read: before, a process is nobody's server yet.
        handled = f"/proc/{one.process.pid}/status"

        def caught() -> bool:
            text = Path(handled).read_text()
            mask = next(line for line in text.splitlines() if line.startswith("SigCgt"))
            return bool(int(mask.split()[1], 16) & 1 << signal.SIGHUP - 1)

        until(caught)
        assert one.process.stdout is not None
        ready: list[str] = []
        reader = threading.Thread(
            target=lambda: ready.append(one.process.stdout.readline())  # type: ignore[union-attr]
        )
        reader.start()
        while reader.is_alive():
            one.hang_up()
            reader.join(0.01)
        one.ports = json.loads(ready[0])
        until(lambda: bool(one.said("read anew", "keys")))
        assert one.status("/v2/models/digits/ready") == 200
        one.process.send_signal(signal.SIGTERM)
        until(lambda: any(logged["event"] == "draining" for logged in one.logged))
        for _ in range(10):
            one.hang_up()
            assert one.process.poll() is None
