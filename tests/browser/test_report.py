"""Reports as people have them: a file, opened in a browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from inferway.cli import main

SITE = """\
tasks:
  t:
    accuracy_target: 0.8
    variants:
      quick: {accuracy: 0.7, service: {rate: 100/s}}
      exact: {accuracy: 0.9, service: {rate: 20/s}}
nodes: {here: {instances: {t/quick: 2, t/exact: 2}}}
dispatch: {policy: fastest-only}
workload: {t: {arrivals: {process: poisson, rate: 30/s}}}
"""
CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
WIDE = "() => document.documentElement.scrollWidth <= window.innerWidth"
LOADED = "() => performance.getEntriesByType('resource').map(({ name }) => name)"
NAMELESS = (
    "() => [...document.querySelectorAll('svg, [role=region]')]"
    ".filter((one) => !one.ariaLabel).length"
)
COLOR = "(one) => getComputedStyle(one).color"
LINE = "(one) => getComputedStyle(one).stroke"


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    file = folder / "site.yaml"
    file.write_text(SITE)
    simulate = ["simulate", str(file), "--queries", "5e3", "--open"]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
            patch.delenv(name, raising=False)
        assert main([*simulate, "--out", str(folder / "site")]) == 0
        sweep = ["--sweep", "load=0.2,0.4", "--out", str(folder / "sweep")]
        assert main([*simulate, *sweep]) == 0
    studies = ["--scale", "smoke", "--out", str(folder / "studies")]
    assert main(["study", "run", "trade-off", *studies]) == 0
    assert main(["study", "report", "trade-off", *studies]) == 0
    return {
        "site": folder / "site" / "report.html",
        "sweep": folder / "sweep" / "report.html",
        "studies": folder / "studies" / "report-smoke.html",
    }


@pytest.mark.parametrize("name", ["site", "sweep", "studies"])
@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1600, "light"), (3840, "dark")])
def test_it_is_read_on_any_screen(
    reports: dict[str, Path], looked_at: Callable[..., Page], name: str, width: int, scheme: str
) -> None:
    page = looked_at(reports[name].as_uri(), width=width, scheme=scheme)
    assert page.evaluate(WIDE)
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(LOADED) == []
    assert page.evaluate(NAMELESS) == 0
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
    assert page.get_by_role("img").count() >= 1


def test_the_promise_comes_first_and_in_the_pages_colors(
    reports: dict[str, Path], looked_at: Callable[..., Page]
) -> None:
    found = {}
    for scheme in ("light", "dark"):
        page = looked_at(reports["site"].as_uri(), scheme=scheme)
        verdict = page.locator(".strip .verdict")
        expect(verdict).to_have_text("missed")
        page.get_by_role("table", name="By variant").wait_for()
        drawn = page.locator("svg path[style*='stroke: var(--mark-0)']").first
        found[scheme] = (verdict.evaluate(COLOR), drawn.evaluate(LINE))
    assert found["light"][0] != found["dark"][0]
    assert found["light"][1] != found["dark"][1]
