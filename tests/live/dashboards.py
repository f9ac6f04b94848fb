"""`inferway dashboard` in a process, beside servers of this one."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

LIMIT_S = 120.0
READ = "a-key-of-a-reader-that-reads"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Page:
    """A page that is served."""

    def __init__(self, url: str, process: subprocess.Popen[str] | None = None) -> None:
        self.url, self.process = url, process
        self.port = urlsplit(url).port

    def ask(
        self, path: str = "/", headers: Mapping[str, str] | None = None, body: str | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            connection.request("GET" if body is None else "POST", path, body, dict(headers or {}))
            found = connection.getresponse()
            names = {name.lower(): value for name, value in found.getheaders()}
            return Answer(found.status, names, found.read())
        finally:
            connection.close()

    def events(self, headers: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield what the page is told, from now on."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            connection.request("GET", "/events", headers=dict(headers or {}))
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert answer.getheader("content-type", "").startswith("text/event-stream")
            while line := answer.readline():
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
        finally:
            connection.close()


@contextmanager
def dashboard(*arguments: str, **environment: str) -> Iterator[Page]:
    """Start one, and end it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "inferway", "dashboard", *arguments, "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    assert process.stdout is not None
    try:
        yield Page(json.loads(process.stdout.readline())["url"], process)
    finally:
        process.terminate()
        _, said = process.communicate(timeout=LIMIT_S)
    assert said == "", said  # also where pages are open while it ends


def ask(server: Any, count: int) -> None:
    """Send requests, each with an image that is empty."""
    described = json.load(urllib.request.urlopen(f"{server.url}/v2/models/digits"))["inputs"][0]
    shape = [1, *described["shape"][1:]]
    size = 1
    for length in shape:
        size *= length
    row = {"name": described["name"], "datatype": described["datatype"], "shape": shape}
    body = json.dumps({"inputs": [row | {"data": [0.0] * size}]}).encode()
    for _ in range(count):
        request = urllib.request.Request(f"{server.url}/v2/models/digits/infer", body)
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200
