"""The page as people have it: in a browser, with eyes, ears or a keyboard."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from dashboards import READ, ask, dashboard
from dashboards import Page as Served
from playwright.sync_api import Page, expect

import inferway
from inferway.catalog import testset as load_testset
from inferway.cli.dashboard import PageBeside
from inferway.lab import LocalCluster
from inferway.live import Keys

DOUBLE = """\
class Double:
    inputs = {"x": ("FP32", [-1, 4])}
    outputs = {"y": ("FP32", [-1, 4])}

    def predict(self, inputs):
        return {"y": 2 * inputs["x"]}
"""
FILE: dict[str, Any] = {
    "tasks": {
        "digits": {
            "accuracy_target": 0.5,
            "variants": {
                "tiny": {"model": "zoo://digits/tiny"},
                "small": {"model": "zoo://digits/small"},
            },
        }
    }
}
SAYS = "s" * 16
NETWORK = """\
tasks:
  digits:
    accuracy_target: 0.5
    variants:
      mini: {model: zoo://digits/mini}
      small: {model: zoo://digits/small}
network:
  tree:
    - {tier: cloud, nodes: 1, repository: true}
    - {tier: base, nodes: 2, rtt: 6 ms, budget: 1 MB}
cost: {alpha: 1}
placement: {policy: infida, slot: 1 s}
workload:
  digits: {arrivals: {process: poisson, rate: 20/s}}
"""
Looked = Callable[..., Page]
LIMIT_MS = 60_000
STILL = "() => document.getAnimations().length === 0"
CANDIDATES = "Candidates as the policy saw them, with predicted times"
CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
IMAGE = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 28, 28]}]}


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
    table = page.get_by_role("table", name=CANDIDATES)
    table.wait_for(timeout=LIMIT_MS)
    assert table.locator("tbody tr").count() == 2
    assert table.locator("tr.chosen").count() == 1
    shown = page.locator(".explanation")
    expect(shown).to_contain_text("was answered")
    expect(shown).to_contain_text("The balance went from")
    assert page.evaluate(CONTRAST) == []


def test_each_candidate_says_what_would_have_chosen_it(
    server: Any, served: Served, looked_at: Looked
) -> None:
    ask(server, 30)
    page = looked_at(served.url)
    page.locator("#decisions tbody button").first.click(timeout=LIMIT_MS)
    table = page.locator("#decisions").get_by_role("table", name=CANDIDATES)
    other = table.locator("tbody tr:not(.chosen)")
    table.wait_for(timeout=LIMIT_MS)
    price, words = other.locator("td").nth(-2).inner_text(), other.locator("td").last.inner_text()
    # By what has been measured so far, the less accurate one may be the slower, and has no price.
    if re.fullmatch(r"[\d.,]+ ms", price):
        assert re.fullmatch(f"a point of accuracy worth (more|less) than {price}", words)
    else:
        assert price == "–"
        assert re.match("an answer sooner by|a policy that goes by these times alone", words)
    assert table.locator("tbody tr.chosen td").last.inner_text() == ""


def test_a_digit_of_the_test_set_is_sent(server: Any, served: Served, looked_at: Looked) -> None:
    page = looked_at(served.url)
    trial = page.locator("#trial")
    number = trial.get_by_label("Image, 0 to 8399")
    number.wait_for(timeout=LIMIT_MS)
    number.fill("17")
    number.press("Tab")
    expect(trial.get_by_role("status")).to_contain_text("Image 17 of the test set, a ")
    label = trial.get_by_role("status").inner_text().split(", a ")[1][0]
    trial.get_by_role("button", name="Send").focus()
    page.keyboard.press("Enter")
    result = trial.locator(".result")
    expect(result.locator("dt:text-is('decision') + dd")).to_have_text(re.compile("tiny|small"))
    answer = result.locator("dt:text-is('answer') + dd")
    said = f"{label} right" if answer.inner_text()[0] == label else f"wrong: it is a {label}"
    expect(answer).to_contain_text(said)
    expect(result.get_by_role("img", name=re.compile("The answer's scores"))).to_be_visible()
    expect(result.get_by_role("table")).to_be_visible()
    assert page.evaluate(CONTRAST) == []
    assert sum(server.server.sites["digits"].stats.rows) == 1


def test_a_digit_that_is_drawn_is_sent(server: Any, served: Served, looked_at: Looked) -> None:
    page = looked_at(served.url)
    trial = page.locator("#trial")
    trial.get_by_role("button", name="Draw one").click(timeout=LIMIT_MS)
    board = trial.get_by_role("img", name="An image that is drawn")
    # Where the board is at the time: the page above it may still grow.
    board.hover(position={"x": 40, "y": 10})
    page.mouse.down()
    for part in (0.2, 0.35, 0.5, 0.65, 0.8):
        box = board.bounding_box()
        assert box is not None
        board.hover(position={"x": box["width"] / 2, "y": part * box["height"]})
    page.mouse.up()
    trial.get_by_role("button", name="Send").click()
    answer = trial.locator(".result dt:text-is('answer') + dd")
    expect(answer).to_have_text(re.compile(r"^\d$"))
    ink = "canvas => canvas.getContext('2d').getImageData(16, 16, 1, 1).data[0]"
    assert trial.locator("canvas").evaluate(ink) == 255


def test_other_tasks_take_their_inputs_as_json(looked_at: Looked, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DOUBLE)
    file = tmp_path / "double.yaml"
    file.write_text('tasks: {double: {variants: {own: {python: "./mine.py:Double"}}}}')
    with (
        inferway.serve(inferway.load(file), http_port=0, admin_port=0) as server,
        dashboard(server.admin_url) as served,
    ):
        page = looked_at(served.url)
        trial = page.locator("#trial")
        text = trial.get_by_label("Inputs as JSON; what is left out is zeros")
        text.fill('{"x": [1, 2, 3, 4]}', timeout=LIMIT_MS)
        trial.get_by_role("button", name="Send").click()
        result = trial.locator(".result")
        expect(result).to_contain_text("[2,4,6,8]")
        text.fill("")
        trial.get_by_role("button", name="Send").click()
        expect(result).to_contain_text("[0,0,0,0]")
        text.fill("{oops")
        trial.get_by_role("button", name="Send").click()
        expect(result).to_contain_text("These inputs are no JSON")
        page.close()


def test_accuracies_by_labels_stand_beside_the_profiles(
    looked_at: Looked, server: Any, served: Served
) -> None:
    page = looked_at(served.url)
    expect(verdict(page)).to_have_count(1, timeout=LIMIT_MS)
    expect(page.locator("#accuracy")).to_be_hidden()  # nobody asks for labels
    page.close()
    terms = {"variant": "small", "share": 1, "labels": 3, "at_least": 0.5}
    task = FILE["tasks"]["digits"] | {"feedback": {}, "canary": terms}
    keys = Keys([f"read+infer={READ}", f"feedback={SAYS}"])
    deployment = inferway.load({"tasks": {"digits": task}})
    with (
        inferway.serve(deployment, http_port=0, admin_port=0, keys=keys) as other,
        dashboard(other.admin_url, INFERWAY_KEY=READ) as its,
    ):
        page = looked_at(its.url)
        table, canary = page.locator("#accuracy table"), page.locator("#accuracy .canary")
        row = table.get_by_role("row").filter(has_text="small")
        expect(row.get_by_role("cell").nth(1)).to_have_text("0", timeout=LIMIT_MS)
        expect(canary).to_contain_text("small is tried as a canary: it gets 100 % of the requests")
        image = load_testset().images[:1]
        tensor = {"name": "image", "datatype": "FP32", "shape": list(image.shape)}
        body = {"inputs": [tensor | {"data": image.ravel().tolist()}]}
        for number in range(3):
            send(other, "infer", body, READ, f"request-{number}")
        told = [{"id": f"request-{number}", "correct": False} for number in range(3)]
        assert send(other, "feedback", told, SAYS)["matched"] == 3
        expect(row.get_by_role("cell").nth(1)).to_have_text("3", timeout=LIMIT_MS)
        expect(row.get_by_role("img")).to_have_attribute("aria-label", re.compile("0 by labels"))
        said = "small is taken back: 3 labels say 0.0000, which is below 0.5"
        expect(canary).to_contain_text(said, timeout=LIMIT_MS)
        expect(canary).to_contain_text("as a canary it was given 3 requests.")
        page.close()


def send(server: Any, path: str, body: Any, key: str, name: str = "said") -> Any:
    headers = {"Authorization": f"Bearer {key}", "X-Request-Id": name}
    url = f"{server.url}/v2/models/digits/{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def test_a_reload_keeps_what_was(server: Any, served: Served, looked_at: Looked) -> None:
    ask(server, 20)
    page = looked_at(served.url)
    line = page.locator("#latency .timeline svg")
    line.wait_for(timeout=LIMIT_MS)
    page.wait_for_function(
        "() => document.querySelector('#link').dataset.state === 'live'", timeout=LIMIT_MS
    )
    began = re.findall(r"since ([\d:]+)", line.get_attribute("aria-label") or "")
    assert began
    for _ in range(2):  # messages come
        words = page.locator("#link").inner_text()
        page.wait_for_function(
            "words => document.querySelector('#link').textContent !== words",
            arg=words,
            timeout=LIMIT_MS,
        )
    page.reload()
    line.wait_for(timeout=LIMIT_MS)
    assert re.findall(r"since ([\d:]+)", line.get_attribute("aria-label") or "") == began


def test_a_server_that_dies_turns_red_and_says_so(
    server: Any, served: Served, looked_at: Looked
) -> None:
    page = looked_at(served.url)
    node = page.locator("#nodes .nodes > li")
    expect(node).to_have_attribute("data-state", "answers", timeout=LIMIT_MS)
    color = "element => getComputedStyle(element).borderLeftColor"
    before = node.evaluate(color)
    server.stop()
    expect(node).to_have_attribute("data-state", "gone", timeout=LIMIT_MS)
    page.wait_for_function(STILL, timeout=LIMIT_MS)  # the color passes slowly
    assert node.evaluate(color) != before
    red, green, blue = map(int, re.findall(r"\d+", node.evaluate(color))[:3])
    assert red > 2 * max(green, blue)
    expect(node).to_contain_text("gone since")
    expect(verdict(page)).to_have_text("not answering", timeout=LIMIT_MS)


def test_a_map_shows_links_and_a_node_that_dies_turns_red(
    looked_at: Looked, tmp_path: Path
) -> None:
    file = tmp_path / "network.yaml"
    file.write_text(NETWORK)
    with LocalCluster(inferway.load(file), run=tmp_path / "run") as nodes:
        admins = [f"http://{at.admin}" for at in nodes.addresses.values()]
        with dashboard(*admins) as served:
            page = looked_at(served.url)
            links = page.locator("#nodes .links")
            shown = re.compile(r"^Links: base-0 and cloud, [\d.]+ ms; base-1 and cloud, [\d.]+ ms$")
            links.get_by_role("img", name=shown).wait_for(timeout=LIMIT_MS)
            cloud = page.locator("#nodes .nodes > li", has_text="cloud answers")
            expect(cloud).to_contain_text("digits/small")
            expect(cloud).to_contain_text("0 waiting")
            cloud.get_by_role("img", name=re.compile("Memory by variant: digits.")).wait_for()
            assert page.evaluate(CONTRAST) == []
            nodes.kill("base-1")
            dead = re.compile("base-1 and cloud, no link")
            links.get_by_role("img", name=dead).wait_for(timeout=LIMIT_MS)
            expect(links.locator("rect.place.gone")).to_have_count(1)
            gone = page.locator("#nodes .nodes > li[data-state=gone]")
            expect(gone).to_contain_text("base-1", timeout=LIMIT_MS)
            expect(gone).to_contain_text("gone since")
            page.close()


def test_one_server_alone_has_blocks_and_no_links(served: Served, looked_at: Looked) -> None:
    page = looked_at(served.url)
    server = page.locator("#nodes .nodes > li")
    expect(server).to_contain_text("digits/tiny", timeout=LIMIT_MS)
    server.get_by_role("img", name=re.compile("Memory by variant: digits.small")).wait_for()
    assert page.locator("#nodes .links > *").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 400, 1600, 3840])
def test_it_can_be_read_at_every_width(
    server: Any, served: Served, looked_at: Looked, scheme: str, width: int
) -> None:
    ask(server, 30)
    page = looked_at(served.url, width=width, scheme=scheme)
    page.locator("#latency .timeline svg").wait_for(timeout=LIMIT_MS)
    page.wait_for_function(STILL, timeout=LIMIT_MS)
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
        page.close()


def test_a_page_of_a_demo_follows_whoever_has_the_turn(
    server: Any, other: Any, looked_at: Looked
) -> None:
    with closing(PageBeside("127.0.0.1", 0)) as beside:
        beside.start(doing="measuring")
        page = looked_at(beside.url)
        expect(page.locator("#strips")).to_have_text("No server answers yet: measuring.")
        shown = [{"url": server.admin_url, "name": "a"}, {"url": other.admin_url, "name": "b"}]
        beside.show("a", shown)
        pressed = page.locator('.strip .task[aria-pressed="true"]')
        for name, one in (("a", server), ("b", other)):
            # Until it is shown: the one before may be asked in the last samples still.
            for _ in range(60):
                ask(one, 5)
                with suppress(AssertionError):
                    expect(pressed).to_have_text(f"digits at {name}", timeout=1000)
                    break
            expect(pressed).to_have_text(f"digits at {name}")
        beside.show("over", [one | {"ended": True} for one in shown])
        expect(page.get_by_text("It has ended.")).to_have_count(2, timeout=LIMIT_MS)
        expect(page.locator('#nodes li[data-state="ended"]')).to_have_count(2)
        expect(page.locator("#trial")).to_be_hidden()
        expect(page.locator("#what-if")).to_be_hidden()
        expect(page.locator("#overall")).to_have_text(re.compile("^over; 2 tasks; .*2 servers$"))
        page.close()
