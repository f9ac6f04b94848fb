"""What a page can be built with: start-up, size, memory, and if a strict policy lets it live.

    for one in nicegui panel "starlette uvicorn"; do
        python -m venv /tmp/candidates/${one%% *}
        /tmp/candidates/${one%% *}/bin/pip install -q $one
    done
    python benchmarks/page_candidates.py /tmp/candidates      # needs the extra `browser`

Each shows a word, a number that goes up once a second, and, where the library draws, a line. The
page is opened in Chromium as it is, and with a Content-Security-Policy that lets nothing inline and
nothing from elsewhere run; then it is looked whether the number is there and goes up.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Browser, Route, sync_playwright

PORT = 18100
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self' data:; connect-src 'self' ws:; base-uri 'none'; frame-ancestors 'none'"
)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
# All that is shown, in shadow trees too.
TEXT = """() => {
  const text = (node) => node.nodeType === 3 ? node.data
    : node.nodeName === "SCRIPT" || node.nodeName === "STYLE" ? ""
    : [...(node.shadowRoot ?? node).childNodes].map(text).join(" ");
  return text(document.body);
}"""
PROGRAMS = {
    "nicegui": """
from nicegui import ui
ui.label("kept")
count = ui.label("0")
ui.echart({"xAxis": {}, "yAxis": {}, "series": [{"type": "line", "data": [[0, 1], [1, 2]]}]})
ui.timer(1.0, lambda: count.set_text(str(int(count.text) + 1)))
ui.run(port=PORT, host="127.0.0.1", show=False, reload=False)
""",
    "panel": """
import panel as pn
from bokeh.plotting import figure
pn.extension()
def page():
    count = pn.pane.HTML("0")
    line = figure(height=200)
    line.line([0, 1], [1, 2])
    def more():
        count.object = str(int(count.object) + 1)
    pn.state.add_periodic_callback(more, 1000)
    return pn.Column(pn.pane.HTML("kept"), count, line)
pn.serve(page, port=PORT, address="127.0.0.1", show=False)
""",
    "starlette": """
import asyncio, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
PAGE = '<!doctype html><script type="module" src="/m.js"></script><p>kept</p><p id="n">0</p>'
CODE = 'new EventSource("/e").onmessage = (e) => document.getElementById("n").textContent = e.data'
async def page(_):
    return Response(PAGE, media_type="text/html")
async def code(_):
    return Response(CODE, media_type="text/javascript")
async def events(_):
    async def each():
        for count in range(10**6):
            yield f"data: {count}\\n\\n"
            await asyncio.sleep(1)
    return StreamingResponse(each(), media_type="text/event-stream")
routes = [Route("/", page), Route("/m.js", code), Route("/e", events)]
uvicorn.run(Starlette(routes=routes), port=PORT, log_level="error")
""",
}


def main() -> None:
    folder = Path(sys.argv[1])
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for name, program in PROGRAMS.items():
            print(json.dumps({"name": name} | measured(browser, folder / name, program)))
        browser.close()


def measured(browser: Browser, environment: Path, program: str) -> dict[str, Any]:
    found: dict[str, Any] = {"size_MiB": round(sum(map(size_of, environment.rglob("*"))) / 2**20)}
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(program.replace("PORT", str(PORT)))
        file.flush()
        begun_s = time.perf_counter()
        process = subprocess.Popen(
            [environment / "bin" / "python", file.name],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not answers():
                time.sleep(0.02)
            found["start_s"] = round(time.perf_counter() - begun_s, 2)
            found["as it is"] = opened(browser, None)
            found["strict"] = opened(browser, POLICY)
            found["resident_MiB"] = round(psutil.Process(process.pid).memory_info().rss / 2**20)
        finally:
            process.terminate()
            process.wait()
    return found


def size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() and not path.is_symlink() else 0


def answers() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/", timeout=2):
            return True
    except OSError:
        return False


def opened(browser: Browser, policy: str | None) -> dict[str, Any]:
    page = browser.new_page()
    wrong, size = [], 0
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)

    def with_policy(route: Route) -> None:
        answer = route.fetch()
        headers = answer.headers | {"content-security-policy": policy or ""}
        route.fulfill(response=answer, headers=headers)

    def add(answer: Any) -> None:
        nonlocal size
        size += int(answer.headers.get("content-length", 0))

    page.on("response", add)
    if policy is not None:
        page.route(f"http://127.0.0.1:{PORT}/", with_policy)
    page.goto(f"http://127.0.0.1:{PORT}/")
    page.wait_for_timeout(3000)
    before = page.evaluate(TEXT)
    page.wait_for_timeout(2000)
    after = page.evaluate(TEXT)
    refused = [one for one in wrong if "Content Security Policy" in one]
    found = {"KiB": size // 1024, "shows": "kept" in after, "goes on": before != after}
    page.close()
    return found | {"refused": len(refused), "errors": len(wrong)}


if __name__ == "__main__":
    main()
