from __future__ import annotations

from typing import Any

import pytest

from inferway.live.http.routes import Routes, document, plain_path
from inferway.live.security.keys import Role


class Exchange:
    def __init__(self) -> None:
        self.response: tuple[Any, ...] = ()

    def respond(self, *parts: Any) -> None:
        self.response = parts

    refuse = respond


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/v2", b"/v2"),
        (b"/v2?x=/y", b"/v2"),
        (b"http://host:80/v2/models", b"/v2/models"),
        (b"http://host", b"/"),
        (b"/v2/models/a%20b", b"/v2/models/a b"),
        (b"*", b"*"),
    ],
)
def test_plain_path(target: bytes, path: bytes) -> None:
    assert plain_path(target) == path


def test_find() -> None:
    routes = Routes(lambda path: f"no {path}")
    routes.read("/a b", lambda exchange: exchange.respond(200), Role.READ)
    routes.post("/a b", lambda exchange: exchange.respond(201), Role.READ)

    def ask(method: bytes, target: bytes) -> tuple[Any, ...]:
        exchange: Any = Exchange()
        routes.find(method, target)(exchange)
        response: tuple[Any, ...] = exchange.response
        return response

    assert ask(b"GET", b"/a%20b") == ask(b"HEAD", b"/a%20b?q") == (200,)
    assert ask(b"POST", b"/a%20b") == (201,)
    assert ask(b"PUT", b"/a%20b")[0] == 405
    assert ask(b"PUT", b"/a%20b")[2] == b"Allow: GET, HEAD, POST\r\n"
    assert ask(b"GET", b"/%ff") == (404, "no /\ufffd", b"")


def test_a_path_is_forgotten_with_all_below_it() -> None:
    routes = Routes(lambda path: f"no {path}")
    for path in ("/a b", "/a b/c", "/a b/c/d", "/a bc", "/a"):
        routes.read(path, lambda exchange: exchange.respond(200), Role.READ)
    routes.read_below("/a b/x", lambda exchange, rest: exchange.respond(202, rest), Role.READ)
    routes.clear("/a b")
    # What is laid out anew may be for another role.
    routes.read("/a b/c", lambda exchange: exchange.respond(201), Role.ADMIN)

    def ask(target: bytes) -> int:
        exchange: Any = Exchange()
        routes.find(b"GET", target)(exchange)
        status: int = exchange.response[0]
        return status

    answered = {b"/a%20bc": 200, b"/a": 200, b"/a%20b/c": 201, b"/a b/c": 201}
    for target in (b"/a%20b", b"/a b/c/d", b"/a%20b/c/d", b"/a%20b/x/y"):
        answered[target] = 404
    assert {target: ask(target) for target in answered} == answered


def test_the_document_tells_every_status_of_an_inference() -> None:
    paths = document()["paths"]
    statuses = {"200", "400", "401", "404", "413", "415", "429", "500", "501", "503", "504"}
    for path in ("/v2/models/{task}", "/v2/models/{task}/versions/{variant}"):
        responses = paths[f"{path}/infer"]["post"]["responses"]
        assert responses.keys() == statuses
        assert all(one["description"] for one in responses.values())
    index = paths["/v2/repository/index"]["post"]["responses"]
    assert index.keys() == {"200", "400", "401", "413", "415", "503"}
