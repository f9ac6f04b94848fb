"""The page as people have it: in a browser, with eyes, ears or a keyboard."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dashboards import READ, dashboard
from dashboards import Page as Served
from playwright.sync_api import Page, expect

Looked = Callable[..., Page]
LIMIT_MS = 60_000
CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
IMAGE = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 28, 28]}]}


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


def verdict(page: Page) -> Any:
    return page.locator(".strip .verdict")


def answers_of(page: Page) -> int:
    shown = page.locator(".strip dt:text-is('answers') + dd").inner_text()
    return int(shown.replace(",", ""))


def test_it_tells_what_was_promised_and_goes_on_by_itself(
    server: Any, served: Served, looked_at: Looked
) -> None:
    ask(server, 30)
    page = looked_at(served.url)
    expect(verdict(page)).to_have_text("too early to say", timeout=LIMIT_MS)
    page.wait_for_function(
        "() => document.querySelector('.strip').innerText.includes('30')", timeout=LIMIT_MS
    )
    assert answers_of(page) == 30
    ask(server, 2000)
    expect(verdict(page)).to_have_text("kept", timeout=LIMIT_MS)
    expect(page).to_have_title("kept – Inferway", timeout=LIMIT_MS)
    assert page.locator(".strip").get_attribute("data-state") == "kept"
    assert page.locator("#answers tbody tr").count() == 2
    expect(page.locator("#latency .numbers")).to_contain_text("bound of the mean")


def test_an_explanation_opens(server: Any, served: Served, looked_at: Looked) -> None:
    ask(server, 30)
    page = looked_at(served.url)
    open_one = page.locator("#decisions tbody button").first
    open_one.wait_for(timeout=LIMIT_MS)
    open_one.focus()
    page.keyboard.press("Enter")
    table = page.get_by_role("table", name="Candidates as the policy saw them")
    table.wait_for(timeout=LIMIT_MS)
    assert table.locator("tbody tr").count() == 2
    assert table.locator("tr.chosen").count() == 1
    shown = page.locator(".explanation")
    expect(shown).to_contain_text("was answered")
    expect(shown).to_contain_text("The balance went from")
    assert page.evaluate(CONTRAST) == []


def test_a_reload_keeps_what_was(server: Any, served: Served, looked_at: Looked) -> None:
    ask(server, 20)
    page = looked_at(served.url)
    line = page.locator("#latency .timeline svg")
    line.wait_for(timeout=LIMIT_MS)
    page.wait_for_function(
        "() => document.querySelector('#link').dataset.state === 'live'", timeout=LIMIT_MS
    )
    began = re.findall(r"since ([\d:]+)", line.get_attribute("aria-label") or "")
    page.wait_for_timeout(2500)
    page.reload()
    line.wait_for(timeout=LIMIT_MS)
    assert re.findall(r"since ([\d:]+)", line.get_attribute("aria-label") or "") == began


def test_a_server_that_dies_turns_red_and_says_so(
    server: Any, served: Served, looked_at: Looked
) -> None:
    page = looked_at(served.url)
    node = page.locator("#nodes li")
    expect(node).to_have_attribute("data-state", "answers", timeout=LIMIT_MS)
    color = "element => getComputedStyle(element).borderLeftColor"
    before = node.evaluate(color)
    server.stop()
    expect(node).to_have_attribute("data-state", "gone", timeout=LIMIT_MS)
    page.wait_for_timeout(600)  # the color passes slowly
    assert node.evaluate(color) != before
    red, green, blue = map(int, re.findall(r"\d+", node.evaluate(color))[:3])
    assert red > 2 * max(green, blue)
    expect(node).to_contain_text("gone since")
    expect(verdict(page)).to_have_text("not answering", timeout=LIMIT_MS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 400, 1600, 3840])
def test_it_can_be_read_at_every_width(
    server: Any, served: Served, looked_at: Looked, scheme: str, width: int
) -> None:
    ask(server, 30)
    page = looked_at(served.url, width=width, scheme=scheme)
    page.locator("#latency .timeline svg").wait_for(timeout=LIMIT_MS)
    page.wait_for_timeout(1200)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) == []
    smallest = (
        "Math.min(...[...document.querySelectorAll('body *')]"
        ".filter((one) => one.getClientRects().length)"
        ".map((one) => parseFloat(getComputedStyle(one).fontSize)))"
    )
    assert page.evaluate(smallest) >= 12.0


def test_whoever_hears_it_hears_the_same(server: Any, served: Served, looked_at: Looked) -> None:
    ask(server, 30)
    page = looked_at(served.url)
    page.locator("#latency .timeline svg").wait_for(timeout=LIMIT_MS)
    tree = page.locator("body").aria_snapshot()
    for heading in ("The promise", "Latency against the bound", "Who answers"):
        assert f'heading "{heading}" [level=2]' in tree
    assert 'button "digits at ' in tree
    assert 'table "Variants, the fastest first"' in tree
    assert "status:" in tree
    pictures = re.findall(r"\bimg( \"[^\"]+\")?", tree)
    assert len(pictures) >= 5
    assert all(pictures), tree
    assert re.search(r'img "Accuracy balance [+−][\d.]+: (ahead|owed)"', tree)


def test_a_keyboard_is_enough(served: Served, looked_at: Looked) -> None:
    page = looked_at(served.url)
    page.locator(".strip .task").wait_for(timeout=LIMIT_MS)
    reached = []
    for _ in range(6):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.className"))
    assert reached[0] == "skip"
    assert "task" in reached
    assert "table" in reached
    page.locator(".strip .task").focus()
    page.keyboard.press("Enter")
    assert page.locator(".strip .task").get_attribute("aria-pressed") == "true"
    assert page.evaluate("location.hash") != ""


def test_without_a_key_there_is_a_door_and_nothing_else(
    keyed: Any, looked_at: Looked, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"read={READ}\n")
    with dashboard(keyed.admin_url, "--keys", str(keys), "--key-file", str(keys)) as served:
        page = looked_at(served.url)
        expect(page).to_have_url(f"{served.url}enter")
        page.get_by_label("A key with the role read").fill("not-the-key-at-all")
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{served.url}enter?wrong")
        expect(page.get_by_role("alert")).to_have_text("That key is not known here.")
        page.get_by_label("A key with the role read").fill(READ)
        page.get_by_role("button", name="Enter").click()
        expect(page).to_have_url(served.url)
        page.locator(".strip").wait_for(timeout=LIMIT_MS)
        assert READ not in page.content()
        assert page.evaluate("document.cookie") == ""
