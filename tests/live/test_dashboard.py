"""The page's own server: what it tells, and whom it lets in."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")
from dashboards import LIMIT_S, Page, dashboard

import inferway
from inferway.cli import main
from inferway.live import Keys

ROW = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
READ, INFER = "r" * 16, "i" * 16


@pytest.fixture
def running(start: Any, site_of: Any) -> Any:
    return start(site_of())


@pytest.fixture
def page(running: Any) -> Iterator[Page]:
    with dashboard(f"http://127.0.0.1:{running.server.admin_port}") as one:
        yield one


@pytest.fixture(scope="module")
def shown(digits: Any) -> Iterator[Page]:
    """Give one page for the tests that change nothing which others look at."""
    with dashboard(f"http://127.0.0.1:{digits.server.admin_port}") as one:
        yield one


def first(page: Page, accepted: Callable[[dict[str, Any]], bool], **headers: str) -> Any:
    """The first message that is accepted."""
    return next(one for one in page.events(headers) if accepted(one))


def test_the_page_is_told_what_the_server_does(
    running: Any, page: Page, until: Callable[[Callable[[], bool]], None]
) -> None:
    assert [running.infer(ROW).status for _ in range(5)] == [200] * 5
    found: list[dict[str, Any]] = []

    def all_five() -> bool:
        found[:] = [next(page.events())]
        return any(  # the bound is computed beside, and may come later
            sum(task["series"]["answered"]) == 5 and task["bound"] is not None
            for task in found[0]["tasks"]
        )

    until(all_five)
    (told,) = found
    (task,) = told["tasks"]
    assert told["whole"]
    assert told["sources"][0]["state"] == "answers"
    assert (task["task"], task["promise"]["state"]) == ("digits", "unknown")
    assert {one["name"] for one in task["variants"]} == {"tiny", "big"}
    assert task["bound"]["max_rate_per_s"] > 0.0
    # Whoever comes later, or again, gets all of it; who stays, what is new.
    messages = page.events()
    whole, more = next(messages), next(one for one in messages if not one["whole"])
    assert sum(whole["tasks"][0]["series"]["answered"]) == 5
    assert not more["whole"]
    assert len(more["tasks"][0]["series"]["times"]) < len(whole["tasks"][0]["series"]["times"]) + 2


def test_a_decision_is_explained_to_the_page(digits: Any, shown: Page) -> None:
    assert digits.infer(ROW).status == 200
    told = first(shown, lambda one: any(task["decisions"] for task in one["tasks"]))
    request, url = told["tasks"][0]["decisions"][0]["id"], told["tasks"][0]["url"]
    asked = f"/explanation?server={url}&task=digits&request={request}"
    assert shown.ask(asked).json["id"] == request
    for wrong in (asked.replace("digits", "none"), asked.replace(url, "http://evil.example")):
        refused = shown.ask(wrong)
        assert (refused.status, list(refused.json)) == (404, ["error"])


def try_it(page: Page, asked: Any, **headers: str) -> Any:
    body = asked if isinstance(asked, str) else json.dumps(asked)
    return page.ask("/trial", {"Content-Type": "application/json"} | headers, body)


def test_a_request_goes_from_the_page(digits: Any, shown: Page) -> None:
    url = f"http://127.0.0.1:{digits.server.admin_port}"
    told = shown.ask(f"/trial?server={url}&task=digits").json
    image = {"name": "image", "datatype": "FP32", "shape": [4]}
    assert told == {"inputs": [image], "digits": None}
    to = {"server": url, "task": "digits"}
    for inputs in ({}, {"image": [1, 2, 3, 4]}):
        tried = try_it(shown, to | {"inputs": inputs})
        assert tried.status == 200
        assert (tried.json["error"], tried.json["outputs"][0]["shape"]) == (None, [1, 3])
        assert tried.json["explanation"]["id"] == tried.json["request"]
        assert tried.json["explanation"]["variant"] == tried.json["variant"]
    # What the server says to a wrong input is shown as it says it.
    tried = try_it(shown, to | {"inputs": {"image": [1, 2, 3]}})
    assert tried.status == 200
    assert "image" in tried.json["error"]
    assert shown.ask("/trial/digit?number=17").json["side"] == 32


@pytest.mark.parametrize(
    ("asked", "status", "sentence"),
    [
        ({"inputs": {"x": 1}}, 400, "the task has no input 'x'; it has image"),
        ({"digit": 1}, 400, "an image of the test set is for tasks that read digits, and alone"),
        ({"task": "none"}, 404, "does not serve a task 'none'"),
        ({"server": "http://evil.example"}, 404, "http://evil.example is not shown here"),
        ({"other": 1}, 400, "the request cannot be read"),
        ({"inputs": {"image": [1.0] * 2**18}}, 413, "the request is larger than 1 MiB"),
    ],
)
def test_a_request_that_cannot_be_sent_is_refused_in_a_sentence(
    digits: Any, shown: Page, asked: Any, status: int, sentence: str
) -> None:
    to = {"server": f"http://127.0.0.1:{digits.server.admin_port}", "task": "digits"}
    refused = try_it(shown, to | asked)
    assert refused.status == status
    assert sentence in refused.json["error"]


def test_no_other_site_sends_a_request(digits: Any, shown: Page) -> None:
    before = list(digits.site.stats.rows)
    to = {"server": f"http://127.0.0.1:{digits.server.admin_port}", "task": "digits"}
    assert try_it(shown, to, Origin="http://evil.example").status == 403
    assert try_it(shown, to, **{"Sec-Fetch-Site": "cross-site"}).status == 403
    # The kinds that a form of another site can send without being asked first.
    assert try_it(shown, to, **{"Content-Type": "text/plain"}).status == 415
    wrong = shown.ask("/trial/digit?number=8400")
    assert (wrong.status, wrong.json["error"]) == (
        400,
        "there is no image 8400; there are 0 to 8399",
    )
    assert list(digits.site.stats.rows) == before


def test_only_a_key_that_may_infer_sends_a_request(
    start: Any, site_of: Any, tmp_path: Path
) -> None:
    both = "b" * 16
    running = start(site_of(), keys=Keys([f"read={READ}", f"read+infer={both}"]))
    keys, own = tmp_path / "keys", tmp_path / "own"
    keys.write_text(f"read={READ}\nread+infer={both}\n")
    url = f"http://127.0.0.1:{running.server.admin_port}"
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    to = {"server": url, "task": "digits"}
    for key_of_page in (both, READ):
        own.write_text(key_of_page)
        with dashboard(url, "--keys", str(keys), "--key-file", str(own)) as page:
            assert try_it(page, to).status == 401
            sessions = [
                page.ask("/enter", form, f"key={key}").headers["set-cookie"].split(";")[0]
                for key in (READ, both)
            ]
            refused = try_it(page, to, Cookie=sessions[0])
            assert refused.status == 403
            assert "needs a key with the role infer" in refused.json["error"]
            tried = try_it(page, to, Cookie=sessions[1])
            if key_of_page == both:
                assert (tried.status, tried.json["error"]) == (200, None)
            else:
                assert tried.status == 404
                assert tried.json["error"].endswith("wants a key with the role infer")
            assert both not in tried.body.decode()


def test_a_server_that_ends_is_gone_and_one_that_was_never_there_is_too(
    running: Any, page: Page
) -> None:
    messages = page.events()
    assert next(one for one in messages if one["sources"][0]["state"] == "answers")
    running.wait(running.server.stop(grace_s=0.0))
    (gone,) = next(one for one in messages if one["sources"][0]["state"] == "gone")["sources"]
    assert "does not answer (connection refused)" in gone["reason"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with dashboard(f"127.0.0.1:{port}") as other:
        (never,) = first(other, lambda one: one["sources"][0]["state"] == "gone")["sources"]
        assert never["name"] == f"127.0.0.1:{port}"


def test_a_port_that_is_no_admin_listener_is_said_to_be_none(running: Any) -> None:
    with dashboard(f"127.0.0.1:{running.server.http_port}") as page:
        (told,) = first(page, lambda one: one["sources"][0]["state"] == "gone")["sources"]
    assert told["reason"].endswith("is no admin listener: it has no /history")


def test_nothing_runs_and_nothing_is_fetched_but_what_the_page_serves(shown: Page) -> None:
    top = shown.ask()
    policy = top.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    text = top.body.decode()
    assert "<style" not in text
    assert " style=" not in text
    sources = [part.split('"')[0] for part in text.split('src="')[1:]]
    links = [part.split('"')[0] for part in text.split('href="')[1:] if part[0] != "#"]
    assert sources == ["/static/main.js"]
    for path in [*sources, *links]:
        assert shown.ask(path).status == 200
    assert shown.ask("/static/main.js").headers["content-type"].startswith("text/javascript")
    assert shown.ask("/static/../source.py").status == 404
    assert shown.ask("/nothing").status == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    ],
)
def test_other_sites_are_refused(shown: Page, headers: dict[str, str]) -> None:
    for path in ("/", "/events", "/static/main.js"):
        assert shown.ask(path, headers).status == 403


def test_a_link_from_another_page_may_be_followed(shown: Page) -> None:
    followed = {
        "Sec-Fetch-Site": "same-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    assert shown.ask("/", followed).status == 200
    assert shown.ask("/events", followed).status == 403


def test_with_keys_nobody_sees_anything_without_one(
    start: Any, site_of: Any, tmp_path: Path
) -> None:
    running = start(site_of(), keys=Keys([f"read={READ}", f"infer={INFER}"]))
    keys = tmp_path / "keys"
    keys.write_text(f"read={READ}\ninfer={INFER}\n")
    url = f"http://127.0.0.1:{running.server.admin_port}"
    with dashboard(url, "--keys", str(keys), "--key-file", str(keys)) as page:
        closed = page.ask()
        assert (closed.status, closed.headers["location"]) == (303, "/enter")
        for path in ("/events", "/static/main.js"):
            assert page.ask(path).status == 401
        assert b'type="password"' in page.ask("/enter").body
        assert page.ask("/static/page.css").status == 200
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        assert page.ask("/enter", form, "key=wrong").headers["location"] == "/enter?wrong"
        assert page.ask("/enter", form, f"key={INFER}").headers["location"] == "/enter?role"
        foreign = form | {"Origin": "http://evil.example"}
        assert page.ask("/enter", foreign, f"key={READ}").status == 403
        let_in = page.ask("/enter", form, f"key={READ}")
        cookie = let_in.headers["set-cookie"]
        assert (let_in.status, let_in.headers["location"]) == (303, "/")
        assert {"HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
        session = {"Cookie": cookie.split(";")[0]}
        shown = page.ask("/", session)
        assert shown.status == 200
        told = first(page, lambda one: one["sources"][0]["state"] == "answers", **session)
        assert READ not in json.dumps(told) + shown.body.decode() + cookie
    # The page's own key is wrong for the server.
    with dashboard(url, INFERWAY_KEY="w" * 16) as page:
        (told,) = first(page, lambda one: one["sources"][0]["state"] == "gone")["sources"]
        assert told["reason"].endswith(
            "asks for a key with the role read: give one with --key-file FILE"
        )
        assert "w" * 16 not in json.dumps(told)


def test_a_page_that_the_network_can_reach_needs_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "http://127.0.0.1:1", "--host", "0.0.0.0"]) == 2
    assert "would be open to the network: give --keys FILE" in capsys.readouterr().err


def test_a_port_that_is_taken_is_said_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["dashboard", "http://127.0.0.1:1", "--port", str(port)]) == 1
    assert capsys.readouterr().err == (
        f"inferway: --port {port} at 127.0.0.1: something listens there already\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_while_pages_are_open(running: Any, number: int) -> None:
    with dashboard(f"http://127.0.0.1:{running.server.admin_port}") as page:
        assert page.process is not None
        messages = page.events()
        next(messages)
        page.process.send_signal(number)
        code = page.process.wait(LIMIT_S)
    assert code == (130 if number == signal.SIGINT else -signal.SIGTERM)


def test_serve_has_a_page_beside_it_that_ends_with_it(tmp_path: Path) -> None:
    file = tmp_path / "digits.yaml"
    file.write_text("tasks:\n  digits: {variants: {tiny: {model: zoo://digits/tiny}}}\n")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "inferway", "serve", str(file), "--http-port", "0"),
            *("--no-grpc", "--admin-port", "0", "--drain-delay", "0", "--json"),
            *("--dashboard", "--dashboard-port", "0", "--log-level", "error", "--forget"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        told = json.loads(process.stdout.readline())
        page = Page(told["dashboard"])
        shown = first(page, lambda one: one["sources"][0]["state"] == "answers")
        assert shown["sources"][0]["url"] == f"http://127.0.0.1:{told['admin_port']}"
        root = Page(f"http://127.0.0.1:{told['admin_port']}").ask()
        assert root.json["dashboard"] == told["dashboard"]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
        process.stdout.close()
    with pytest.raises(OSError, match="refused"):
        page.ask()


def test_devices_and_their_load_are_told(start: Any, tmp_path: Path) -> None:
    file = tmp_path / "shared.yaml"
    file.write_text(
        "tasks: {digits: {variants: {tiny: {model: zoo://digits/tiny}}}}\n"
        "nodes: {here: {devices: {cpu: {cores: 2}}, instances: {digits/tiny: 3}}}\n"
    )
    running = start(deployment=inferway.load(file))
    with dashboard(f"http://127.0.0.1:{running.server.admin_port}") as page:
        told = first(page, lambda one: any(source["devices"] for source in one["sources"]))
    (source,) = told["sources"]
    (device,) = source["devices"]
    assert device == {"name": "cpu", "slots": 2, "busy": 0, "waiting": 0, "load": 0.0}
