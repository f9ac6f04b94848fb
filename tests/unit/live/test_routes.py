from __future__ import annotations

from typing import Any

import pytest

from inferway.live.http.routes import Routes, plain_path
from inferway.live.keys import Role


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
    assert ask(b"GET", b"/%ff") == (404, "no /\ufffd")


def test_a_table_takes_another_ones_answers() -> None:
    routes, other = (Routes(lambda path: f"no {path}") for _ in range(2))
    routes.read("/a", lambda exchange: exchange.respond(200), Role.READ)
    other.read("/b c", lambda exchange: exchange.respond(201), Role.READ)
    other.read_below("/b", lambda exchange, rest: exchange.respond(202, rest), Role.READ)
    routes.take(other)
    for target, answer in ((b"/a", (200,)), (b"/b%20c", (201,)), (b"/b/d", (202, b"d"))):
        exchange: Any = Exchange()
        routes.find(b"GET", target)(exchange)
        assert exchange.response == answer
