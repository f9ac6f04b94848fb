"""The way into a network namespace: the system calls, and a program that goes through first.

Run as a file, it becomes another program inside a namespace::

    python -I -S entrance.py /run/netns/NAME HOSTS COMMAND...

Nothing but the standard library is imported, so that this takes milliseconds and needs neither
`ip` nor `nsenter`; Python's own `os.setns` and `os.unshare` are of 3.12.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final

NETWORK: Final = 0x40000000
"""CLONE_NEWNET: sockets, devices, addresses and routes."""
MOUNTS: Final = 0x00020000
"""CLONE_NEWNS: what is mounted where."""
_BIND: Final = 0x1000
_DETACH: Final = 2
_SLAVE_ALL: Final = 0x80000 | 0x4000

_libc = ctypes.CDLL(None, use_errno=True)


def enter(path: str, kind: int) -> None:
    """Move the calling thread into a namespace; OSError as the kernel says."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(descriptor, kind), path)
    finally:
        os.close(descriptor)


def leave(kind: int) -> None:
    """Move the calling thread into a new namespace of its own; OSError as the kernel says."""
    _check(_libc.unshare(kind), "unshare")


def bind(source: str, target: str) -> None:
    """Show one file at the place of another; OSError as the kernel says."""
    _check(_libc.mount(source.encode(), target.encode(), None, _BIND, None), target)


def unbind(target: str) -> None:
    """Undo `bind`, even while the file is in use; OSError as the kernel says."""
    _check(_libc.umount2(target.encode(), _DETACH), target)


def _check(status: int, what: str) -> None:
    if status:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


def main(namespace: str, hosts: str, *command: str) -> None:
    """Become the command inside the namespace, with these names instead of /etc/hosts."""
    try:
        enter(namespace, NETWORK)
        leave(MOUNTS)
        # Else the next mount would show outside.
        _check(_libc.mount(b"", b"/", None, _SLAVE_ALL, None), "/")
        bind(hosts, "/etc/hosts")
    except OSError as error:
        sys.exit(f"cannot enter the network namespace {namespace}: {error}")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
