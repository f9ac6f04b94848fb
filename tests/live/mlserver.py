"""MLServer, in an environment of its own that is made once and kept."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "mlserver"
MAKE_S = 900.0
START_S = 90.0


def program() -> Path:
    """Find MLServer, or install it into a cache folder; skips where that cannot be done."""
    ready = BENCHMARK.parents[1] / ".venv-mlserver" / "bin" / "mlserver"
    if ready.exists():
        return ready
    wanted = BENCHMARK / "requirements.txt"
    mark = hashlib.sha256(wanted.read_bytes() + sys.version.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "inferway" / f"mlserver-{mark}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:  # tests of another process want it, too
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(folder, wanted)
    return folder / "bin" / "mlserver"


def _install(folder: Path, wanted: Path) -> None:
    """Make the environment, unless it is there."""
    if not (folder / "bin" / "mlserver").exists():
        shutil.rmtree(folder, ignore_errors=True)
        for command in (
            [sys.executable, "-m", "venv", folder],
            [folder / "bin" / "pip", "install", "--quiet", "-r", wanted],
        ):
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=MAKE_S)
                said, failed = done.stderr.strip().splitlines(), done.returncode != 0
            except (OSError, subprocess.TimeoutExpired) as error:
                said, failed = [str(error)], True
            if failed:
                shutil.rmtree(folder, ignore_errors=True)
                pytest.skip(f"MLServer cannot be installed here: {said[-1] if said else 'pip'}")


class MlServer:
    """One MLServer process that serves an ONNX model as `digits`."""

    def __init__(self, folder: Path, model: Path, port: int, others: tuple[int, int]) -> None:
        for file in ("runtime.py", "model-settings.json"):
            shutil.copy(BENCHMARK / file, folder)
        settings = json.loads((BENCHMARK / "settings" / "in-process-leanest.json").read_text())
        settings |= {"host": "127.0.0.1", "http_port": port, "grpc_port": others[0]}
        settings |= {"metrics_port": others[1]}
        (folder / "settings.json").write_text(json.dumps(settings))
        self.folder, self.model, self.port = folder, model, port
        self.url = f"http://127.0.0.1:{port}/v2/models/digits"
        self._program = program()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until its model is ready."""
        self._process = process = subprocess.Popen(
            [self._program, "start", self.folder],
            cwd=self.folder,
            env=os.environ | {"INFERWAY_BENCHMARK_MODEL": str(self.model), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            assert process.poll() is None, f"MLServer ended with status {process.returncode}"
            try:
                with urllib.request.urlopen(f"{self.url}/ready", timeout=5):
                    return
            except OSError:
                try:
                    process.wait(0.2)
                except subprocess.TimeoutExpired:
                    continue
        raise AssertionError("MLServer was not ready in time")

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
