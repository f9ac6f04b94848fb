"""Files that are whole or as they were, folders that one process holds, and Python in files."""

from __future__ import annotations

import ast
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, Final

_PARSING: Final = threading.Lock()


@contextmanager
def replacing(path: Path, *, mode: int = 0o666, lasting: bool = False) -> Iterator[BinaryIO]:
    """Give a file to write to, which becomes the one at a path where the block ends well.

    A folder that is missing is made. With `lasting`, the disk has it for good afterwards.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(fresh, flags, mode), "wb") as file:
            yield file
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    if lasting:
        sync_folder(path.parent)


def write_whole(
    path: Path, content: str | bytes, *, mode: int = 0o666, lasting: bool = False
) -> None:
    """Write a file, text as UTF-8, as `replacing` does."""
    with replacing(path, mode=mode, lasting=lasting) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def sync_folder(folder: Path) -> None:
    """Have the disk keep what a folder holds, for good; OSError as the disk says."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(folder: Path, *, wait: bool = False, name: str = "lock") -> int:
    """Hold a folder, by a file in it, until the returned descriptor is closed.

    The process's end closes it, too. Where another process holds it, wait for that or raise
    BlockingIOError; any other OSError if nothing can be written there.
    """
    import fcntl  # which not every system has

    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a file that is there, and leave it as it is.

    BlockingIOError where somebody else holds it, in this process or another; any other OSError if
    it cannot be read.
    """
    import fcntl  # which not every system has

    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def alone(folder: Path, work: str) -> Iterator[None]:
    """Hold a folder, made where it is missing; RuntimeError where other such work does."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = lock(folder)
    except BlockingIOError:
        raise RuntimeError(
            f"another {work} writes to {folder}: wait for it, or name another --out"
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


def syntax_tree(source: str | bytes, file: str = "<unknown>") -> ast.Module:
    """Parse Python, one thread at a time; errors as `ast.parse`.

    Until 3.11.7, Python counts the depth of all threads' trees together, and where one of them is
    stopped in between it raises SystemError: https://github.com/python/cpython/issues/106905.
    """
    with _PARSING:
        return ast.parse(source, filename=file)


def run_source(path: Path, module: ModuleType) -> None:
    """Run a user's file as a module, whatever that raises.

    Python takes a compiled file for the source's where second and length of the text agree, which
    an edit may leave as they are.
    """
    exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(module))


def home_folder(kind: str) -> Path:
    """Name the folder in which this package keeps the user's ``cache``, ``state`` or ``data``.

    RuntimeError where the user has no home.
    """
    below = {"cache": ".cache", "state": ".local/state", "data": ".local/share"}[kind]
    home = os.environ.get(f"XDG_{kind.upper()}_HOME")
    return Path(home or Path.home() / below) / "inferway"
