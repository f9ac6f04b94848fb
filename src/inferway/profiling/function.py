"""A function of the user's in a Python file, as ``./mine.py:score``."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Final

from inferway.files import run_source

FILE_FUNCTION: Final = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_][A-Za-z0-9_]*)")


@contextmanager
def running(path: Path) -> Iterator[None]:
    """Run the user's code as ``python FILE`` would find its neighbors, printing to the log."""
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.path.remove(folder)


class FunctionError(ValueError):
    """A user's function that cannot be loaded or fails, with one sentence that says why."""


class UserFunction:
    """A function of a user's file. What goes wrong in it is told with its file and line.

    Parameters
    ----------
    name
        ``FILE.py:FUNCTION``.
    folder
        Where a relative file name starts; the current folder by default.

    Raises
    ------
    FunctionError
        When there is no such file or function, or the file does not load.
    """

    def __init__(self, name: str, folder: Path | None = None) -> None:
        match = FILE_FUNCTION.fullmatch(name)
        if match is None:
            raise FunctionError(f"{name!r} is not of the form ./FILE.py:FUNCTION")
        self.name = name
        self.path = ((folder or Path()) / match["file"]).resolve()
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise FunctionError(f"{self.path}: cannot read the file: {error.strerror}") from None
        self.digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        found = getattr(self._module(self.digest), match["name"], None)
        if not callable(found):
            raise FunctionError(f"{self.path} has no function {match['name']!r}")
        self._function: Callable[..., Any] = found

    def __call__(self, *arguments: Any) -> Any:
        """Call it; FunctionError with the line where it fails."""
        try:
            with running(self.path):
                return self._function(*arguments)
        except (Exception, SystemExit) as error:
            raise FunctionError(f"{self.name} fails: {self._said(error)}") from error

    def _module(self, digest: str) -> Any:
        # Named by its content, so that an edit is seen.
        place = hashlib.sha256(str(self.path).encode()).hexdigest()
        name = f"inferway_function_{self.path.stem}_{place[:8]}_{digest[-16:]}"
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, self.path)
        if spec is None or spec.loader is None:
            raise FunctionError(f"{self.path} is not a Python file")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            with running(self.path):
                run_source(self.path, module)
        except BaseException as error:
            del sys.modules[name]
            if not isinstance(error, Exception | SystemExit):
                raise
            raise FunctionError(f"{self.path} does not load: {self._said(error)}") from error
        return module

    def _said(self, error: BaseException) -> str:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [one.lineno for one in frames if Path(one.filename) == self.path]
        where = f" (line {lines[-1]})" if lines else ""
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}{where}"
