"""Network namespaces by name, where `ip netns` looks for them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from inferway.lab import entrance

FOLDER: Final = Path("/run/netns")
T = TypeVar("T")


def made(path: Path, prepare: Callable[[], T]) -> T:
    """Make a namespace, let `prepare` work inside it, and name it.

    OSError if the path exists, or as the kernel or `prepare` says; then nothing is left.
    """
    path.touch(0o444, exist_ok=False)

    def make() -> T:
        entrance.leave(entrance.NETWORK)
        result = prepare()
        entrance.bind("/proc/thread-self/ns/net", str(path))
        return result

    try:
        return aside(make)
    except BaseException:
        path.unlink()
        raise


def within(path: Path, work: Callable[[], T]) -> T:
    """Do something inside a namespace, in a thread of its own; sockets made there stay there."""

    def do() -> T:
        entrance.enter(str(path), entrance.NETWORK)
        return work()

    return aside(do)


def identity(path: Path) -> int | None:
    """Tell which namespace a name stands for, until the machine starts anew; None if for none."""
    try:
        status = path.stat()
        if status.st_dev != Path("/proc/self/ns/net").stat().st_dev:
            return None
    except OSError:
        return None
    return status.st_ino


def remove(path: Path) -> None:
    """Take a name away; the namespace ends with the last process and socket inside."""
    with suppress(OSError):  # not mounted: only the file was made
        entrance.unbind(str(path))
    path.unlink(missing_ok=True)


def residents(identities: set[int]) -> list[int]:
    """Find the processes inside namespaces, this one never."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [one for one in numbers if one != os.getpid() and houses(identities, one)]


def houses(identities: set[int], process: int) -> bool:
    """Tell whether a process is inside one of these namespaces."""
    try:
        return Path(f"/proc/{process}/ns/net").stat().st_ino in identities
    except OSError:  # it ended
        return False


def aside(work: Callable[[], T]) -> T:
    """Work in a new thread: a thread that changes its namespace must not live on."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
