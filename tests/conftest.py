"""What holds for every test."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

# Before NumPy and its like are imported: tests share cores, and threads that spin take them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["MPLBACKEND"] = "Agg"
# Consoles as wide as a person's, and no colors, whatever the terminal that the tests run in.
os.environ["COLUMNS"] = "120"
os.environ["NO_COLOR"] = "1"
os.environ["_TYPER_FORCE_DISABLE_TERMINAL"] = "1"
os.environ.pop("FORCE_COLOR", None)
os.environ.pop("TERMINAL_WIDTH", None)

import pytest
from hypothesis import settings
from numba.core import event

# Servers of tests are asked without a detour, whatever proxy leads out of the machine.
for _scheme in ("http", "https", "all", "grpc"):
    for _name in (f"{_scheme}_proxy", f"{_scheme}_proxy".upper()):
        os.environ.pop(_name, None)
# The same examples each time, and no limit on an example's time: machines differ.
settings.register_profile("inferway", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("inferway")
# All of a property's examples belong to the slow tests; the first of them to every run.
ALL_EXAMPLES = os.environ.get("INFERWAY_EXAMPLES") == "all"
FIRST = 1 / 5
FEWEST = 20
SHARED_BY_FOLDER = ("tests/live/emulation", "tests/live/network")
# Started in the background by a shell, a process ignores Ctrl-C, and so does all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Untraced(event.Listener):
    """Takes coverage's tracer away while Numba compiles: it nearly doubles the compiler's time."""

    def __init__(self) -> None:
        self._of = threading.local()

    def on_start(self, event: Any) -> None:
        depth = getattr(self._of, "depth", 0)
        if depth == 0:
            self._of.tracer = sys.gettrace()
            sys.settrace(None)
        self._of.depth = depth + 1

    def on_end(self, event: Any) -> None:
        self._of.depth -= 1
        if self._of.depth == 0:
            sys.settrace(self._of.tracer)


event.register("numba:compile", Untraced())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """By file, and by folder where the tests of a folder share a network of processes.

    Files of real servers begin first: they wait most of the time, for each other least of all, and
    one that begins last would be waited for with idle cores. Of the rest, those of many tests do.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        begun = False

        def _split_scope(self, nodeid: str) -> str:
            file, _, _ = nodeid.partition("::")
            folder, _, _ = file.rpartition("/")
            return folder if folder in SHARED_BY_FOLDER else file

        def _assign_work_unit(self, node: Any) -> None:
            if not self.begun:
                self.begun = True
                live = [scope for scope in self.workqueue if scope.startswith("tests/live/")]
                for scope in reversed(live):
                    self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    return ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Keep the collector from all that is imported and collected, which stays to the end.

    Each of its passes would look through millions of objects again, in every process of the tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark properties, and try the first of their examples alone unless all are asked for."""
    short = set()
    for item in items:
        test = getattr(item, "function", None)
        if not getattr(test, "is_hypothesis_test", False):
            continue
        item.add_marker(pytest.mark.property)
        if not ALL_EXAMPLES and test not in short:
            short.add(test)
            whole = test._hypothesis_internal_use_settings
            few = max(FEWEST, round(FIRST * whole.max_examples))
            test._hypothesis_internal_use_settings = settings(
                whole, max_examples=min(whole.max_examples, few)
            )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show why tests ran a second time, so that nothing is hidden by it."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.write_sep("_", f"{report.nodeid} failed, and ran again")
        terminalreporter.write_line(report.longreprtext)


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """Take back what a command that serves, run in this process, leaves of its signal handlers."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def root() -> Path:
    """Give the folder of the project."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def examples(root: Path) -> Path:
    """Give the folder of the example deployment files."""
    return root / "examples"


@pytest.fixture(scope="session", autouse=True)
def nothing_of_this_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide what was built or measured for the person who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
