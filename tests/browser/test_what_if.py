"""What if, and changes, as people have them on the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboards import READ, ask, dashboard
from dashboards import Page as Served
from playwright.sync_api import Page, expect

import inferway
from inferway.cli import main
from inferway.live import Keys

Looked = Callable[..., Page]
LIMIT_MS = 60_000
CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
ADMIN = "a-key-of-whoever-may-change-it"


@pytest.fixture
def changeable(deployment: inferway.Deployment) -> Iterator[Any]:
    keys = Keys([f"read+infer={READ}", f"admin={ADMIN}"])
    with inferway.serve(deployment, http_port=0, admin_port=0, keys=keys) as one:
        yield one


def twin_ready(page: Page) -> None:
    expect(page.locator("#what-if .twin")).to_have_attribute(
        "data-state", "ready", timeout=2 * LIMIT_MS
    )


def test_the_twin_is_compiled_at_the_start_and_the_progress_is_shown(
    server: Any, served: Served, looked_at: Looked
) -> None:
    page = looked_at(served.url)
    twin = page.locator("#what-if .twin")
    twin.wait_for(timeout=LIMIT_MS)
    words = twin.locator(".words")
    expect(words).to_have_text(re.compile("^The twin is"), timeout=LIMIT_MS)
    twin_ready(page)
    expect(words).to_have_text("The twin is ready.")
    expect(twin.locator("progress")).to_be_hidden()
    # It is heard, too, and not each second.
    expect(twin.get_by_role("status")).to_have_text("The twin is ready.")


def test_what_if_answers_beside_what_was(server: Any, served: Served, looked_at: Looked) -> None:
    page = looked_at(served.url, refused=True)
    twin_ready(page)
    panel = page.locator("#what-if")
    replay = panel.get_by_role("button", name="Replay the last minutes")
    replay.click(timeout=LIMIT_MS)
    summary = panel.locator(".summary")
    expect(summary).to_contain_text("50 are the fewest", timeout=LIMIT_MS)
    ask(server, 400)
    replay.focus()
    page.keyboard.press("Enter")
    expect(summary).to_contain_text("The mean response time would have been", timeout=LIMIT_MS)
    for title in ("Mean response time", "p99 of the response times", "Mean accuracy by profile"):
        picture = panel.get_by_role("img", name=re.compile(f"^{title}: it was"))
        picture.wait_for(timeout=LIMIT_MS)
        assert picture.locator("path.band").count() >= 1
        assert picture.locator("path.mean").get_attribute("d")
        assert picture.locator("path.would").get_attribute("d")
    # A slider that is moved asks by itself: a quarter of the requests.
    table = panel.get_by_role("region", name="Numbers of the replay")
    before = table.locator("tbody tr").last.inner_text()
    slider = panel.get_by_label("Rate", exact=True)
    slider.focus()
    page.keyboard.press("Home")
    assert (slider.get_attribute("aria-valuetext") or "").startswith("0.250 times, ")
    page.wait_for_function(
        "before => document.querySelector('#what-if tbody tr:last-child').innerText !== before",
        arg=before,
        timeout=LIMIT_MS,
    )
    # The twin's sentence is shown where there is no such setting.
    for name in ("tiny", "small"):
        panel.get_by_label(f"Instances of {name}", exact=True).fill("0")
    expect(summary).to_contain_text("no instance of task 'digits'", timeout=LIMIT_MS)
    panel.get_by_role("button", name="As it is").click()
    expect(summary).to_contain_text("would have been", timeout=LIMIT_MS)
    assert slider.input_value() == "0"
    assert page.evaluate(CONTRAST) == []


def test_a_setting_is_copied_as_a_file(
    server: Any, served: Served, looked_at: Looked, tmp_path: Path
) -> None:
    page = looked_at(served.url, permissions=["clipboard-read", "clipboard-write"])
    panel = page.locator("#what-if")
    panel.get_by_label("Policy").select_option("tad-op", timeout=LIMIT_MS)
    panel.get_by_label("Instances of tiny", exact=True).fill("3")
    panel.get_by_role("button", name="Copy as deployment file").click()
    shown = panel.get_by_label("Deployment file")
    shown.wait_for(timeout=LIMIT_MS)
    text = page.evaluate("navigator.clipboard.readText()")
    assert text == shown.input_value()
    file = tmp_path / "copied.yaml"
    file.write_text(text)
    assert main(["check", str(file)]) == 0
    copied = inferway.load(file)
    assert copied.policy_of("digits").policy == "tad-op"
    assert copied.nodes["here"].instances["digits", "tiny"] == 3
    assert page.evaluate(CONTRAST) == []


def test_a_change_goes_after_the_difference_is_confirmed_with_a_key_that_may(
    changeable: Any, looked_at: Looked, tmp_path: Path
) -> None:
    own = tmp_path / "key"
    own.write_text(f"read+infer={READ}\n")
    site = changeable.server.sites["digits"]
    with dashboard(changeable.admin_url, "--key-file", str(own)) as served:
        page = looked_at(served.url, refused=True)
        panel = page.locator("#what-if")
        panel.get_by_label("Target", exact=True).wait_for(timeout=LIMIT_MS)
        apply = panel.get_by_role("button", name="Apply…")
        apply.click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Only another target or policy can be applied")
        page.keyboard.press("Escape")
        panel.get_by_label("Policy").select_option("tad-op")
        apply.click()
        expect(dialog).to_have_accessible_name(re.compile("^Change digits at"))
        key = dialog.get_by_label("A key of the server with the role admin, for this change alone")
        said = dialog.get_by_role("status")
        confirm = dialog.get_by_role("button", name="Apply this")
        for wrong, sentence in ((READ, "which this one has not"), ("x" * 16, "not know this key")):
            key.fill(wrong)
            page.keyboard.press("Enter")
            expect(said).to_contain_text(sentence, timeout=LIMIT_MS)
            expect(confirm).to_be_hidden()
        key.fill(ADMIN)
        page.keyboard.press("Enter")
        row = dialog.get_by_role("row", name=re.compile("^dispatch"))
        expect(row).to_contain_text("tad-op", timeout=LIMIT_MS)
        expect(said).to_have_text("Nothing is changed yet.")
        assert site.pool.dispatcher.policy_name == "priced"
        assert page.evaluate(CONTRAST) == []
        expect(confirm).to_be_focused()
        page.keyboard.press("Enter")
        expect(said).to_have_text("It is in force now.", timeout=LIMIT_MS)
        assert site.pool.dispatcher.policy_name == "tad-op"
        page.keyboard.press("Escape")
        expect(panel.get_by_label("Policy")).to_have_value("tad-op", timeout=LIMIT_MS)
        assert ADMIN not in page.content()
        page.close()
