"""Record of what an emulation has made on this machine: it and nothing else is removed.

Each has a folder in /run/inferway with a record that its owner and its relay keep locked; a record
that nobody locks is of a run that both were killed in. Before something is made, the record says
so; /run is empty after the machine started anew, and then a file's first line says whose it is.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import select
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from inferway.lab import namespace
from inferway.live.store.cache import lock_folder

STATE: Final = Path("/run/inferway")
HOSTS: Final = Path("/etc/netns")
"""Where `ip netns exec` looks for files of a namespace that stand for those in /etc."""
PREFIX: Final = "inferway-"
_MARK: Final = "# Made by inferway for the emulated network {}, and removed with it."
_GRACE_S: Final = 2.0


class EmulationError(Exception):
    """A network that cannot be emulated or changed, with one sentence that says why."""


class Record:
    """The record of one emulation: its name, letters and digits, and the file, open and locked."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.name, self.descriptor = name, descriptor
        self._path = STATE / name / "record"

    @classmethod
    def begun(cls, name: str | None, nodes: Sequence[str]) -> Record:
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
            record = cls(name, os.open(folder / "record", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC))
            fcntl.flock(record.descriptor, fcntl.LOCK_EX)
        for node in nodes:
            for path in (record.namespace(node), HOSTS / f"{PREFIX}{name}-{node}"):
                if os.path.lexists(path):
                    record.remove()
                    raise EmulationError(
                        f"{path} exists, and it is not known to be inferway's: remove it, or give "
                        "the network another name"
                    )
        record._write("".join(f"name {PREFIX}{name}-{node}\n" for node in nodes))
        return record

    @property
    def control(self) -> Path:
        """The socket that the relay listens on."""
        return STATE / self.name / "control"

    def namespace(self, node: str) -> Path:
        """Tell where a node's namespace is named."""
        return namespace.FOLDER / f"{PREFIX}{self.name}-{node}"

    def hosts(self, node: str) -> Path:
        """Tell where the names are that a node knows."""
        return HOSTS / f"{PREFIX}{self.name}-{node}" / "hosts"

    def made(self, node: str) -> None:
        """Say that a node's namespace was made."""
        path = self.namespace(node)
        self._write(f"made {path.name} {namespace.identity(path)}\n")

    def name_hosts(self, node: str, lines: str) -> None:
        """Write the names that a node knows."""
        path = self.hosts(node)
        path.parent.mkdir(parents=True)
        path.write_text(f"{_MARK.format(self.name)}\n{lines}")

    def end_residents(self) -> None:
        """End all processes inside: they are asked, and after a while killed."""
        _end({identity for identity in self._ours().values() if identity is not None})

    def remove(self) -> None:
        """Remove what was made, and end what still runs inside; the relay has ended."""
        self.end_residents()
        ours = self._ours()
        for name in ours:
            namespace.remove(namespace.FOLDER / name)
            _remove_hosts(HOSTS / name, self.name)
        shutil.rmtree(STATE / self.name)
        os.close(self.descriptor)

    def _ours(self) -> dict[str, int | None]:
        """Tell which namespaces are ours, and which of them are there."""
        made: dict[str, int | None] = {}
        for line in self._path.read_text().splitlines():
            match line.split():
                case ["name", name]:
                    made[name] = None
                case ["made", name, identity]:
                    made[name] = int(identity)
        found = {name: namespace.identity(namespace.FOLDER / name) for name in made}
        # Another namespace may have the name by now.
        return {
            name: found[name]
            for name, was in made.items()
            if was is None or found[name] in (was, None)
        }

    def _write(self, lines: str) -> None:
        os.lseek(self.descriptor, 0, os.SEEK_END)
        os.write(self.descriptor, lines.encode())


def remove_leftovers(name: str | None = None) -> list[str]:
    """Remove what runs left that could not clean up, or one of them only; tell their names.

    OSError when this process may not.
    """
    removed = []
    with _locked():
        for folder in sorted(STATE.iterdir()):
            if not folder.is_dir() or name not in (None, folder.name):
                continue
            descriptor = os.open(folder / "record", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # it runs
                os.close(descriptor)
                continue
            Record(folder.name, descriptor).remove()
            removed.append(folder.name)
        for path in sorted(HOSTS.glob(f"{PREFIX}*")):
            owner = path.name.removeprefix(PREFIX).partition("-")[0]
            if not (STATE / owner).exists() and _remove_hosts(path, owner):
                removed.append(owner)
    return list(dict.fromkeys(removed))


@contextmanager
def _locked() -> Iterator[None]:
    """Let nobody else begin or remove a record meanwhile."""
    STATE.mkdir(mode=0o755, exist_ok=True)
    lock = lock_folder(STATE, wait=True)
    try:
        yield
    finally:
        os.close(lock)


def _remove_hosts(folder: Path, owner: str) -> bool:
    """Remove a file of names if it is this owner's, and its folder unless others use it."""
    hosts = folder / "hosts"
    try:
        if not hosts.read_text().startswith(_MARK.format(owner)):
            return False
        hosts.unlink()
    except FileNotFoundError:
        pass
    with suppress(OSError):
        folder.rmdir()
    return True


def _end(identities: set[int]) -> None:
    for signal_, patience_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
        ending = select.poll()
        descriptors = []
        for process in namespace.residents(identities):
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(process)
                descriptors.append(descriptor)
                # The number may be another's by now.
                if namespace.houses(identities, process):
                    signal.pidfd_send_signal(descriptor, signal_)
                    ending.register(descriptor, select.POLLIN)
        left = len(descriptors)
        while left and (ended := ending.poll(1000 * patience_s)):
            for descriptor, _ in ended:
                ending.unregister(descriptor)
                left -= 1
        for descriptor in descriptors:
            os.close(descriptor)
