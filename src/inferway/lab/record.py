"""Record of what an emulation has made on this machine: it and nothing else is removed.

Each has a folder in /run/inferway with a record that its owner and its relay keep locked; a record
that nobody locks is of a run that both were killed in. Before something is made, the record says
so; /run is empty after the machine started anew, and then a file's first line says whose it is.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final

from inferway.files import lock
from inferway.lab import namespace

STATE: Final = Path("/run/inferway")
# Where `ip netns exec` looks for files of a namespace that stand for those in /etc.
HOSTS: Final = Path("/etc/netns")
PREFIX: Final = "inferway-"
_MARK: Final = "# Made by inferway for the emulated network {}, and removed with it."
_GRACE_S: Final = 2.0


class EmulationError(Exception):
    """A network that cannot be emulated or changed, with one sentence that says why."""


class EmulationRecord:
    """The record of one emulation: its name, letters and digits, and the file, open and locked."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.name, self.descriptor = name, descriptor

    @classmethod
    def begun(cls, name: str | None, nodes: Sequence[str]) -> EmulationRecord:
        """Begin a record that names what is going to be made.

        EmulationError if the name is in use, or a namespace has it that is not ours.
        """
        with _locked():
            name = secrets.token_hex(3) if name is None else name
            folder = STATE / name
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                raise EmulationError(
                    f"a network called {name} is being emulated already; give this one another name"
                ) from None
            record = cls(name, lock(folder, name="record"))
        for node in nodes:
            for path in (record.namespace(node), record.hosts(node).parent):
                if os.path.lexists(path):
                    record.remove()
                    raise EmulationError(
                        f"{path} exists, and it is not known to be inferway's: remove it, or give "
                        "the network another name"
                    )
        lines = "".join(f"name {PREFIX}{name}-{node}\n" for node in nodes)
        os.write(record.descriptor, lines.encode())
        return record

    def namespace(self, node: str) -> Path:
        """Tell where a node's namespace is named."""
        return namespace.FOLDER / f"{PREFIX}{self.name}-{node}"

    def hosts(self, node: str) -> Path:
        """Tell where the names are that a node knows."""
        return HOSTS / f"{PREFIX}{self.name}-{node}" / "hosts"

    def make(self, node: str, hosts: str, prepare: Callable[[], int]) -> int:
        """Make a node's namespace, with the names that it knows; give what `prepare` gives."""
        file, path = self.hosts(node), self.namespace(node)
        file.parent.mkdir(parents=True)
        file.write_text(f"{_MARK.format(self.name)}\n{hosts}")
        result = namespace.made(path, prepare)
        os.write(self.descriptor, f"made {path.name} {namespace.identity(path)}\n".encode())
        return result

    def end_residents(self) -> None:
        """End all processes inside: they are asked, and after a while killed."""
        _end({identity for identity in self._ours().values() if identity is not None})

    def remove(self) -> None:
        """Remove what was made, and end what still runs inside; the relay has ended."""
        self.end_residents()
        for name in self._ours():
            namespace.remove(namespace.FOLDER / name)
            _remove_hosts(HOSTS / name, self.name)
        shutil.rmtree(STATE / self.name)
        os.close(self.descriptor)

    def _ours(self) -> dict[str, int | None]:
        words = map(str.split, (STATE / self.name / "record").read_text().splitlines())
        made = {name: int(*identity) if identity else None for _, name, *identity in words}
        present = {name: namespace.identity(namespace.FOLDER / name) for name in made}
        # Another namespace may have the name by now.
        return {
            name: present[name]
            for name, was in made.items()
            if was is None or present[name] in (was, None)
        }


def remove_leftovers(name: str | None = None) -> list[str]:
    """Remove what runs left that could not clean up, or one of them only; tell their names.

    OSError when this process may not.
    """
    removed: dict[str, None] = {}
    with _locked():
        for folder in sorted(STATE.iterdir()):
            if not folder.is_dir() or name not in (None, folder.name):
                continue
            try:
                descriptor = lock(folder, name="record")
            except BlockingIOError:  # it runs
                continue
            EmulationRecord(folder.name, descriptor).remove()
            removed[folder.name] = None
        for path in sorted(HOSTS.glob(f"{PREFIX}*")):
            owner = path.name.removeprefix(PREFIX).partition("-")[0]
            if not (STATE / owner).exists() and _remove_hosts(path, owner):
                removed[owner] = None
    return list(removed)


@contextmanager
def _locked() -> Iterator[None]:
    STATE.mkdir(mode=0o755, exist_ok=True)
    with os.fdopen(lock(STATE, wait=True)):
        yield


def _remove_hosts(folder: Path, owner: str) -> bool:
    """Remove a file of names if it is this owner's, and its folder unless others use it."""
    with suppress(FileNotFoundError):
        if not (folder / "hosts").read_text().startswith(_MARK.format(owner)):
            return False
        (folder / "hosts").unlink()
    with suppress(OSError):
        folder.rmdir()
    return True


def _end(identities: set[int]) -> None:
    for signal_ in (signal.SIGTERM, signal.SIGKILL):
        with ExitStack() as descriptors:
            ending: set[Any] = set()
            for process in [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]:
                if process == os.getpid() or not namespace.houses(identities, process):
                    continue
                with suppress(ProcessLookupError):
                    descriptor = os.pidfd_open(process)
                    descriptors.callback(os.close, descriptor)
                    # The number may be another's by now.
                    if namespace.houses(identities, process):
                        signal.pidfd_send_signal(descriptor, signal_)
                        ending.add(descriptor)
            while ending and (ended := wait(ending, _GRACE_S)):
                ending.difference_update(ended)
