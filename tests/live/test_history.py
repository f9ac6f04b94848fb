"""The admin listener's root, and the history: what people and dashboards open first."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

ROW = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


def page(running: Any, path: str = "/", *headers: str) -> Any:
    lines = "".join(f"{line}\r\n" for line in headers)
    return running.ask(f"GET {path} HTTP/1.1\r\nHost: test\r\n{lines}\r\n".encode(), admin=True)


def test_what_was_served_is_in_the_history(
    start: Any, site_of: Any, until: Callable[[Callable[[], bool]], None]
) -> None:
    running = start(site_of())
    answers = [running.infer(ROW).status for _ in range(5)]
    assert answers == [200] * 5
    until(
        lambda: (
            sum(page(running, "/history").json["tasks"].get("digits", {}).get("answered", [])) == 5
        )
    )
    found = page(running, "/history?since=0&every=second").json
    told = found["tasks"]["digits"]
    assert sum(told["arrivals"]) == sum(told["variants"]["tiny"]["answered"]) == 5
    assert sum(told["response_times"]["tiny"]) == 5
    assert len(told["response_times"]["tiny"]) == len(found["response_bounds_s"]) + 1
    assert max(one for one in told["latency_p99_s"] if one is not None) > 0.0
    last = found["times"][-1]
    later = page(running, f"/history?since={last}").json
    assert all(moment > last for moment in later["times"])
    assert page(running, "/history?every=minute").json["every"] == "minute"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("since=yesterday", "since is 'yesterday', expected seconds since 1970"),
        ("since=nan", "since is 'nan', expected seconds since 1970"),
        ("every=hour", "every is 'hour', expected second or minute"),
        ("from=3", "there is no parameter 'from'; since and every are"),
    ],
)
def test_a_wrong_question_to_the_history_is_refused(
    start: Any, site_of: Any, query: str, reason: str
) -> None:
    answer = page(start(site_of()), f"/history?{query}")
    assert (answer.status, answer.json["error"]) == (400, reason)


def test_the_root_is_a_table_for_browsers_and_paths_for_programs(start: Any, site_of: Any) -> None:
    running = start(site_of(task="<b>digits"))
    running.infer(ROW, path="/v2/models/%3Cb%3Edigits/infer")
    shown = page(running, "/", "Accept: text/html,application/xhtml+xml;q=0.9")
    text = shown.body.decode()
    assert shown.status == 200
    assert shown.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in shown.headers["content-security-policy"]
    assert "<h2>&lt;b&gt;digits</h2>" in text
    assert "<b>" not in text
    assert not re.search("<script|<style|style=| on[a-z]+=", text)
    assert "too few answers to say" in text
    assert '<th scope="row">tiny</th><td>0.7</td><td>1</td>' in text
    assert "inferway dashboard URL" in text
    running.call(lambda: setattr(running.server, "dashboard", "http://127.0.0.1:8004/"))
    assert (
        '<a href="http://127.0.0.1:8004/">' in page(running, "/", "Accept: text/html").body.decode()
    )
    for headers in ((), ("Accept: */*",), ("Accept: application/json",)):
        found = page(running, "/", *headers)
        assert found.headers["content-type"] == "application/json"
        assert found.json["pages"] == [
            *("/", "/metrics", "/status", "/history", "/decisions", "/deployment"),
        ]
        assert found.json["dashboard"] == "http://127.0.0.1:8004/"


def test_the_last_decisions_are_told_and_each_is_explained(start: Any, site_of: Any) -> None:
    running = start(site_of(task="the digits"))
    asked = running.infer(ROW, "X-Request-Id: a/b c\r\n", path="/v2/models/the%20digits/infer")
    named = running.infer(ROW, "X-Request-Id: a/b\r\n", path="/v2/models/the%20digits/infer")
    assert (asked.status, named.status) == (200, 200)
    (told, *_) = [
        one for one in page(running, "/decisions").json["tasks"]["the digits"] if one["id"] == "a/b"
    ]
    assert (told["outcome"], told["variant"], told["late"]) == ("answered", "tiny", False)
    explained = page(running, "/decisions/the%20digits/a%2Fb").json
    assert explained == running.get("/v2/models/the%20digits/explain/a%2Fb").json
    assert len(explained["candidates"]) == 2
    for path in ("/decisions/the%20digits/unknown", "/decisions/nothing/a", "/decisions/x"):
        assert page(running, path).status == 404
