"""SIGHUP of `inferway node`: keys and certificates are read anew, and nothing ends."""

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from certificates import issue
from test_damaged import FILE
from test_node import free

LIMIT_S = 120.0
KEY, OTHER = "a-key-of-enough-length", "another-of-enough-length"


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline_s, "the condition did not come true"
        pause.wait(0.02)


def status(address: str, path: str, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "two.yaml").write_text(FILE)
    (tmp_path / "keys").write_text(f"{KEY}\n")
    names = ("http", "peer", "control", "admin")
    at = {node: {name: free() for name in names} for node in ("cloud", "edge")}
    (tmp_path / "at.json").write_text(json.dumps(at))
    issue(["cloud", "edge"], tmp_path / "certs")
    return tmp_path


def shows(folder: Path, address: str) -> bytes | None:
    """The certificate that the peer port shows to a neighbor."""
    certs = folder / "certs"
    context = ssl.create_default_context(cafile=str(certs / "authority.pem"))
    context.load_cert_chain(certs / "edge.pem", certs / "edge.key")
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), LIMIT_S) as plain,
        context.wrap_socket(plain, server_hostname="cloud") as wire,
    ):
        return wire.getpeercert(binary_form=True)


def test_keys_and_certificates_are_read_anew(folder: Path) -> None:
    command = [sys.executable, "-m", "inferway", "node", "two.yaml", "--name", "cloud"]
    command += ["--addresses", "at.json", "--state", "state", "--keys", "keys"]
    command += ["--certs", "certs", "--drain-delay", "0"]
    at = json.loads((folder / "at.json").read_text())["cloud"]
    own = folder / "certs" / "cloud.pem"
    logged: list[dict[str, Any]] = []

    def failures(what: str) -> int:
        return sum((one["event"], one.get("what")) == ("not read anew", what) for one in logged)

    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = process.stderr
        reader = threading.Thread(target=lambda: logged.extend(map(json.loads, lines)))
        reader.start()
        try:
            assert process.stdout.readline().startswith("ready cloud ")
            before = ssl.PEM_cert_to_DER_cert(own.read_text())
            assert shows(folder, at["peer"]) == before
            assert status(at["http"], "/v2", KEY) == 200
            assert status(at["admin"], "/v2/node", KEY) == 200
            own.unlink()
            issue(["cloud", "edge"], folder / "certs")
            after = ssl.PEM_cert_to_DER_cert(own.read_text())
            assert after != before
            (folder / "keys").write_text(f"infer={KEY}\nread={OTHER}\n")
            process.send_signal(signal.SIGHUP)
            until(lambda: shows(folder, at["peer"]) == after)
            until(lambda: status(at["admin"], "/v2/node", KEY) == 403)
            assert status(at["http"], "/v2", KEY) == 200
            assert status(at["admin"], "/v2/node", OTHER) == 200
            assert status(at["admin"], "/metrics", OTHER) == 200
            # What is wrong leaves the old: another's key, and no keys.
            kept = own.with_suffix(".key").read_bytes()
            shutil.copy(folder / "certs" / "edge.key", own.with_suffix(".key"))
            (folder / "keys").write_text("")
            process.send_signal(signal.SIGHUP)
            until(lambda: failures("certs") == 1 and failures("keys") == 1)
            own.with_suffix(".key").write_bytes(kept)
            assert shows(folder, at["peer"]) == after
            assert status(at["http"], "/v2", KEY) == 200
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(LIMIT_S)
            reader.join(LIMIT_S)
    assert process.returncode == 0, logged
