from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferway.dispatch import Dispatcher
from inferway.live import Pool, PoolOptions, TaskSite
from inferway.live.http.exchange import Limits
from inferway.live.http.inference import Infer
from inferway.live.http.routes import Routes, document, inference_routes, lay_out, plain_path
from inferway.live.security.keys import Role
from inferway.live.upstream.remote import Forwarding
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime
from inferway.site import Fleet

SIGNATURE = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))


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


class Neighbor:
    name, host, port = "metro", "127.0.0.1", 1


def pool_of(accuracies: dict[str, float], *, forwards: bool = False) -> Pool:
    names, classes = tuple(accuracies), len(accuracies)
    fleet = Fleet(names, np.ones(classes), np.array([*accuracies.values()]), np.ones(classes, int))
    neighbor: Any = Neighbor()
    runtimes = [
        Forwarding(neighbor, "metro", name) if forwards else NullRuntime(SIGNATURE)
        for name in names
    ]
    dispatcher = Dispatcher(fleet, "fastest-only", target=None)
    return Pool("task", SIGNATURE, dispatcher, runtimes, PoolOptions(node="edge"))


def test_another_fleet_changes_the_paths_of_the_variants_that_come_and_go() -> None:
    site = TaskSite.of(pool_of({"tiny": 0.6, "big": 0.8}))
    site.begin()
    routes = inference_routes({"task": site}, lambda: True, Limits())

    def ask(path: str) -> tuple[int, Any]:
        exchange: Any = Exchange()
        routes.find(b"GET", f"/v2/models/task{path}".encode())(exchange)
        status, body = exchange.response[:2]
        return status, json.loads(body) if status == 200 and body else None

    def infer(path: str) -> Any:
        return routes.find(b"POST", f"/v2/models/task{path}/infer".encode())

    kept = infer(""), infer("/versions/big")
    assert ask("/versions/tiny")[0] == 200
    before, site.present = site.versions, pool_of({"big": 0.9, "huge": 0.95})
    lay_out(routes, site, lambda: True, Limits(), before)
    assert (infer(""), infer("/versions/big")) == kept
    assert [ask(f"/versions/{name}")[0] for name in ("tiny", "big", "huge")] == [404, 200, 200]
    assert infer("/versions/huge") not in kept
    # What did not change its path tells of the fleet that answers now.
    assert sorted(ask("")[1]["versions"]) == ["big", "huge"]
    told = ask("/versions/big/config")[1]["parameters"]["accuracy"]
    assert told == {"string_value": "0.9"}
    before, site.present = site.versions, None
    lay_out(routes, site, lambda: True, Limits(), before)
    assert [ask(path)[0] for path in ("/ready", "/versions/big")] == [503, 404]
    before, site.present = site.versions, pool_of({"big": 0.9})
    lay_out(routes, site, lambda: True, Limits(), before)
    assert [ask(path)[0] for path in ("", "/versions/big", "/versions/tiny")] == [200, 200, 404]


def test_a_body_is_left_undecoded_where_the_fleet_of_now_forwards() -> None:
    site = TaskSite.of(pool_of({"tiny": 0.6}))
    site.begin()
    routes = inference_routes({"task": site}, lambda: True, Limits())
    handler: Any = routes.find(b"POST", b"/v2/models/task/infer")
    assert isinstance(handler, Infer)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}
    exchange: Any = SimpleNamespace(
        body=json.dumps({"inputs": [tensor]}).encode(),
        headers={},
        prepared=None,
        name=lambda: SimpleNamespace(id="one"),
    )
    undecoded = []
    for forwards in (False, True, False):
        site.present = pool_of({"tiny": 0.6}, forwards=forwards)
        undecoded.append(handler.take(exchange, 0.0).undecoded)
    assert undecoded == [False, True, False]
