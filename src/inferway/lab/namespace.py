"""Network namespaces by name, where `ip netns` looks for them, and the way into one.

Run as a file, it becomes another program inside a namespace::

    python -I -S namespace.py /run/netns/NAME HOSTS COMMAND...

Nothing but the standard library is imported, so that this takes milliseconds and needs neither
`ip` nor `nsenter`; Python's own `os.setns` and `os.unshare` are of 3.12.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

FOLDER: Final = Path("/run/netns")
T = TypeVar("T")

# CLONE_NEWNET: sockets, devices, addresses and routes. CLONE_NEWNS: what is mounted where.
_NETWORK, _MOUNTS = 0x40000000, 0x00020000
_BIND, _DETACH, _SLAVE_ALL = 0x1000, 2, 0x80000 | 0x4000
_libc = ctypes.CDLL(None, use_errno=True)


def _system(call: str, subject: str, *arguments: Any) -> None:
    """Call the kernel by the C library; OSError as it says."""
    if getattr(_libc, call)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), subject)


def _enter(path: Path | str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _system("setns", str(path), descriptor, _NETWORK)
    finally:
        os.close(descriptor)


def _bind(source: str, target: str) -> None:
    _system("mount", target, source.encode(), target.encode(), None, _BIND, None)


def aside(work: Callable[[], T]) -> T:
    """Work in a new thread: a thread that changes its namespace must not live on."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1, "namespace") as pool:
        return pool.submit(work).result()


def leave() -> None:
    """Move the calling thread into a new namespace of its own; OSError as the kernel says."""
    _system("unshare", "unshare", _NETWORK)


def made(path: Path, prepare: Callable[[], T]) -> T:
    """Make a namespace, let `prepare` work inside it, and name it.

    OSError if the path exists, or as the kernel or `prepare` says; then nothing is left.
    """
    path.touch(0o444, exist_ok=False)

    def make() -> T:
        leave()
        result = prepare()
        _bind("/proc/thread-self/ns/net", str(path))
        return result

    try:
        return aside(make)
    except BaseException:
        path.unlink()
        raise


def within(path: Path, work: Callable[[], T]) -> T:
    """Do something inside a namespace, in a thread of its own; sockets made there stay there."""

    def do() -> T:
        _enter(path)
        return work()

    return aside(do)


def identity(path: Path) -> int | None:
    """Tell which namespace a name stands for, until the machine starts anew; None if for none."""
    with suppress(OSError):
        status = path.stat()
        if status.st_dev == Path("/proc/self/ns/net").stat().st_dev:
            return status.st_ino
    return None


def remove(path: Path) -> None:
    """Take a name away; the namespace ends with the last process and socket inside."""
    with suppress(OSError):  # not mounted: only the file was made; else even while it is in use
        _system("umount2", str(path), str(path).encode(), _DETACH)
    path.unlink(missing_ok=True)


def houses(identities: set[int], process: int) -> bool:
    """Tell whether a process is inside one of these namespaces."""
    try:
        return Path(f"/proc/{process}/ns/net").stat().st_ino in identities
    except OSError:  # it ended
        return False


def main(namespace: str, hosts: str, *command: str) -> None:
    """Become the command inside the namespace, with these names instead of /etc/hosts."""
    try:
        _enter(namespace)
        _system("unshare", "unshare", _MOUNTS)
        # Else the next mount would show outside.
        _system("mount", "/", b"", b"/", None, _SLAVE_ALL, None)
        _bind(hosts, "/etc/hosts")
    except OSError as error:
        sys.exit(f"cannot enter the network namespace {namespace}: {error}")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
