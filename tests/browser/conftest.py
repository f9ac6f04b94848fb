"""A server, its page, and a browser that looks at it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "live"))

from dashboards import READ, dashboard
from dashboards import Page as Served
from playwright.sync_api import Browser, Page, sync_playwright

import inferway
from inferway.live import Keys

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
FILE = {
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give what looks at real clocks a second try: on shared machines, processes stand still."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if path is None:
        pytest.fail("there is no chromium: install it, or set CHROMIUM=/path/to/it")
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield one
        one.close()


@pytest.fixture
def deployment() -> inferway.Deployment:
    return inferway.load(FILE)


@pytest.fixture
def server(deployment: inferway.Deployment) -> Iterator[Any]:
    with inferway.serve(deployment, http_port=0, admin_port=0) as one:
        yield one


@pytest.fixture
def other() -> Iterator[Any]:
    with inferway.serve(inferway.load(FILE), http_port=0, admin_port=0) as one:
        yield one


@pytest.fixture
def keyed() -> Iterator[Any]:
    keys = Keys([f"read+infer={READ}"])
    with inferway.serve(inferway.load(FILE), http_port=0, admin_port=0, keys=keys) as one:
        yield one


@pytest.fixture
def served(server: Any) -> Iterator[Served]:
    with dashboard(server.admin_url) as one:
        yield one


@pytest.fixture
def looked_at(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open pages; what any of them complains of fails the test."""
    opened, wrong = [], list[str]()

    def look(
        url: str, *, width: int = 1600, scheme: str = "light", refused: bool = False, **given: Any
    ) -> Page:
        # Browsers complain of each answer that refuses something, which may be what is looked at.
        usual = (
            "Failed to load resource: the server responded with a status of 40" if refused else "-"
        )
        size: Any = {"width": width, "height": 1000}
        context = browser.new_context(viewport=size, color_scheme=scheme, **given)
        opened.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: wrong.append(f"{url}: {error}"))
        page.on(
            "console",
            lambda said: (
                wrong.append(f"{url}: {said.text}")
                if said.type in ("error", "warning") and not said.text.startswith(usual)
                else None
            ),
        )
        page.goto(url)
        return page

    yield look
    for context in opened:
        context.close()
    assert not wrong, wrong
