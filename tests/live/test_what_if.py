"""Questions to the twin, and changes, from the page: its own server, beside a server that runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")
from dashboards import Page, dashboard

import inferway
from inferway.catalog import testset as load_testset
from inferway.live import Keys

ROW = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
JSON = {"Content-Type": "application/json"}
READ, ADMIN = "r" * 16, "a" * 16
FILE = """
tasks:
  digits:
    accuracy_target: 0.75
    variants:
      tiny: {model: zoo://digits/tiny}
      small: {model: zoo://digits/small}
nodes:
  here: {instances: {digits/tiny: 1, digits/small: 1}, buffer: 64}
"""

TWO = """
tasks:
  plain:
    variants:
      tiny: {model: zoo://digits/tiny, accuracy: 0.8}
      large: {model: zoo://digits/large, accuracy: 0.95}
  firm:
    accuracy_target: 0.7
    variants:
      tiny: {model: zoo://digits/tiny, accuracy: 0.6}
      large: {model: zoo://digits/large, accuracy: 0.9}
targets: {both: {tasks: [plain, firm], accuracy: 0.85}}
nodes:
  here:
    buffer: 64
    instances: {plain/tiny: 1, plain/large: 1, firm/tiny: 1, firm/large: 1}
"""


def admin_of(running: Any) -> str:
    return f"http://127.0.0.1:{running.server.admin_port}"


def post(page: Page, path: str, asked: Any, **headers: str) -> Any:
    return page.ask(path, JSON | headers, json.dumps(asked))


@pytest.fixture
def running(start: Any, site_of: Any) -> Any:
    return start(site_of())


@pytest.fixture
def page(running: Any) -> Iterator[Page]:
    with dashboard(admin_of(running)) as one:
        yield one


@pytest.fixture(scope="module")
def shown(digits: Any) -> Iterator[Page]:
    """Give one page for the tests that ask nothing of its server's answers."""
    with dashboard(admin_of(digits)) as one:
        yield one


def test_the_twin_gets_ready_by_itself_and_answers(running: Any, page: Page) -> None:
    told = next(one for one in page.events() if one["twin"]["state"] == "ready")
    assert (told["twin"]["done"], told["twin"]["of"]) == (1, 1)
    url = admin_of(running)
    question = {"server": url, "task": "digits"}
    few = post(page, "/what-if", question)
    assert few.status == 400
    assert "50 are the fewest" in few.json["error"]
    assert {running.infer(ROW).status for _ in range(60)} == {200}
    settings = page.ask(f"/what-if?server={url}&task=digits").json
    assert settings["target"] == 0.8
    assert settings["policy"] == settings["policies"][0] == "fastest-only"
    assert [one["name"] for one in settings["classes"]] == ["tiny", "big"]
    found = post(page, "/what-if", question | {"instances": {"tiny": 0}})
    assert found.status == 200, found.json
    assert found.json["requests"] == 60
    assert found.json["numbers"]["live"]["accuracy"] == pytest.approx(0.7)
    assert found.json["numbers"]["what_if"]["accuracy"] == pytest.approx(0.9)
    # The sites of these tests came from no file.
    refused = post(page, "/what-if/file", question)
    assert (refused.status, refused.json["error"]) == (
        400,
        "the server was given no deployment file",
    )


@pytest.mark.parametrize(
    ("asked", "status", "sentence"),
    [
        ({"task": "none"}, 404, "/deployment/none"),
        ({"server": "http://evil.example"}, 404, "is not shown here"),
        ({"sudo": 1}, 400, "the request cannot be read"),
        ({"policy": "../mine.py:Mine"}, 400, "50 are the fewest"),
    ],
)
def test_a_question_that_is_none_is_refused_in_a_sentence(
    digits: Any, shown: Page, asked: Any, status: int, sentence: str
) -> None:
    question = {"server": admin_of(digits), "task": "digits"}
    refused = post(shown, "/what-if", question | asked)
    assert refused.status == status
    assert sentence in refused.json["error"]


def test_no_other_site_asks_or_changes_anything(digits: Any, shown: Page) -> None:
    question = {"server": admin_of(digits), "task": "digits"}
    change = {"server": admin_of(digits), "with": {"target": 0.7}}
    for path, asked in (("/what-if", question), ("/what-if/file", question), ("/apply", change)):
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert post(shown, path, asked, **headers).status == 403
        assert shown.ask(path, {"Content-Type": "text/plain"}, json.dumps(asked)).status == 415


def test_a_change_needs_a_key_with_the_role_admin(start: Any, tmp_path: Path) -> None:
    file = tmp_path / "digits.yaml"
    file.write_text(FILE)
    running = start(deployment=inferway.load(file), keys=Keys([f"read={READ}", f"admin={ADMIN}"]))
    own, url = tmp_path / "key", admin_of(running)
    own.write_text(f"read={READ}\n")
    change = {"server": url, "with": {"target": 0.7, "policy": "tad-op"}, "dry_run": True}

    def target() -> Any:
        return running.server.sites["digits"].target

    with dashboard(url, "--key-file", str(own)) as page:
        for key, sentence in (
            ("", "a change needs a key with the role admin"),
            (f"Bearer {READ}", "a key with the role admin, which this one has not"),
            (f"Bearer {'x' * 16}", "does not know this key"),
            (f"Basic {ADMIN}", "a change needs a key with the role admin"),
        ):
            for dry_run in (True, False):
                refused = post(page, "/apply", change | {"dry_run": dry_run}, Authorization=key)
                assert refused.status == 403
                assert sentence in refused.json["error"]
        assert target() == 0.75
        told = post(page, "/apply", change, Authorization=f"Bearer {ADMIN}")
        assert [one["field"] for one in told.json["difference"]] == [
            "tasks.digits.accuracy_target",
            "dispatch",
        ]
        assert target() == 0.75
        wrong = change | {"with": {"target": 0.99}}
        refused = post(page, "/apply", wrong, Authorization=f"Bearer {ADMIN}")
        assert refused.status == 400
        done = post(page, "/apply", change | {"dry_run": False}, Authorization=f"Bearer {ADMIN}")
        assert done.json["tasks"] == {"digits": ["tiny", "small"]}
        assert target() == 0.7
        text = post(page, "/what-if/file", {"server": url, "task": "digits", "target": 0.6})
        other = tmp_path / "other.yaml"
        other.write_text(text.json["text"])
        assert inferway.load(other).tasks["digits"].accuracy_target == 0.6
        assert inferway.load(other).policy_of("digits").policy == "tad-op"


def test_of_a_server_without_keys_nothing_is_changed_from_a_page(
    start: Any, tmp_path: Path
) -> None:
    file = tmp_path / "digits.yaml"
    file.write_text(FILE)
    running = start(deployment=inferway.load(file), allow_apply=True)
    change = {"server": admin_of(running), "with": {"target": 0.7}, "dry_run": False}
    with dashboard(admin_of(running)) as page:
        refused = post(page, "/apply", change, Authorization=f"Bearer {ADMIN}")
    assert refused.status == 403
    assert "has no keys" in refused.json["error"]
    assert running.server.sites["digits"].target == 0.75


def test_tasks_of_a_target_over_several_are_replayed_together(start: Any, tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(TWO)
    running = start(deployment=inferway.load(file))
    url, images = admin_of(running), load_testset().images[:1]
    tensor = {"name": "image", "datatype": "FP32", "shape": list(images.shape)}
    body = {"inputs": [tensor | {"data": images.ravel().tolist()}]}
    for number in range(240):
        path = f"/v2/models/{'firm' if number % 4 == 3 else 'plain'}/infer"
        assert running.infer(body, path=path).status == 200
    status = running.get("/status", admin=True).json["targets"]["both"]
    with dashboard(url) as page:
        settings = page.ask(f"/what-if?server={url}&task=firm").json
        assert settings["policies"] == ["priced"]
        found = post(page, "/what-if", {"server": url, "task": "firm", "rate": 0.9})
        assert found.status == 200, found.json
        assert 40 <= found.json["requests"] <= 60
        both = found.json["targets"]["both"]
        assert both["tasks"] == ["plain", "firm"]
        # A few of the first of one task came before the first of the other.
        assert both["live"] == pytest.approx(status["mean"], abs=0.01)
        assert 0.8 <= both["present"] <= 0.95
        refused = post(page, "/what-if", {"server": url, "task": "firm", "policy": "tad"})
        assert refused.status == 400
        assert "keeps no target over several tasks" in refused.json["error"]
