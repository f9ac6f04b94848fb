"""A container without a runtime: a root of its own that is read only, and a user who is not root.

Namespaces of mounts, and chroot, are what a runtime uses, too. The image's programs are this
machine's, mounted read-only; its environment and its user are those of `deploy/Containerfile`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[3]
CONTAINERFILE: Final = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8")
(USER,) = (int(one) for one in re.findall(r"^USER (\d+):", CONTAINERFILE, re.MULTILINE))
(ENVIRONMENT,) = re.findall(r"^ENV ((?:.*\\\n)*.*)$", CONTAINERFILE, re.MULTILINE)
SOURCE: Final = "/opt/inferway/src"
# What Python and its libraries need of a machine.
SYSTEM: Final = ("/usr", "/bin", "/lib", "/lib64", "/sbin")
FILES: Final = ("/etc/ld.so.cache", "/etc/nsswitch.conf", "/etc/localtime")
DEVICES: Final = ("null", "zero", "full", "random", "urandom")

# First the folder that becomes the root and the file of names, then the command.
_BEGIN: Final = """\
set -eu; umask 022
mount -t tmpfs -o mode=755 root "$0"
mkdir "$0/etc" "$0/dev" "$0/proc" "$0/tmp"
cp "$1" "$0/etc/hosts"
shift
mount --rbind /proc "$0/proc"
"""
_END: Final = f"""\
mount -o remount,ro "$0"
exec chroot "$0" setpriv --reuid {USER} --regid {USER} --clear-groups --no-new-privs \\
    --bounding-set=-all env -i "$@"
"""


class Mount(NamedTuple):
    """A place inside."""

    path: str
    source: Path | None = None  # a folder or a file outside; None for one in memory
    writable: bool = True


def command(
    folder: Path,
    hosts: Path,
    mounts: Sequence[Mount],
    arguments: Sequence[str],
    environment: Mapping[str, str],
) -> list[str]:
    """Give the command that runs the image with these arguments; it becomes the program itself.

    `folder` is empty, and stays so for everybody else. It has to be run as root.
    """
    lines = [_BEGIN]
    for path in SYSTEM:
        if Path(path).is_symlink():
            lines.append(f'cp -P {path} "$0{path}"\n')
        elif Path(path).is_dir():
            lines.append(_mounted(Mount(path, Path(path), writable=False)))
    lines += [f'cp {path} "$0/etc/"\n' for path in FILES if Path(path).exists()]
    lines += [
        f'touch "$0/dev/{name}"; mount --bind /dev/{name} "$0/dev/{name}"\n' for name in DEVICES
    ]
    programs = [
        Mount(path, Path(path), writable=False)
        for path in dict.fromkeys((sys.base_prefix, sys.prefix))
        if not any(Path(path).is_relative_to(one) for one in SYSTEM)
    ]
    programs.append(Mount(SOURCE, ROOT / "src", writable=False))
    # The outer ones first: the checkout may lie in /tmp, which is a volume inside.
    lines += [_mounted(one) for one in sorted([*programs, *mounts], key=lambda one: one.path)]
    variables = {
        **dict(word.split("=", 1) for word in shlex.split(ENVIRONMENT.replace("\\\n", " "))),
        "HOME": "/",
        "PYTHONPATH": SOURCE,
        **environment,
    }
    words = [f"{name}={value}" for name, value in variables.items()]
    words += [sys.executable, "-m", "inferway", *arguments]
    script = "".join(lines) + _END
    return ["unshare", "--mount", "sh", "-c", script, str(folder), str(hosts), *words]


def _mounted(one: Mount) -> str:
    place = f'"$0"{shlex.quote(one.path)}'
    if one.source is None:
        return f"mkdir -p {place}; mount -t tmpfs -o mode=1777 memory {place}\n"
    source = shlex.quote(str(one.source))
    if one.source.is_dir():
        made = f"mkdir -p {place}"
    else:
        made = f'mkdir -p "$(dirname {place})"; touch {place}'
    ends = "" if one.writable else f"; mount -o remount,bind,ro {place}"
    return f"{made}; mount --bind {source} {place}{ends}\n"


def owned(folder: Path) -> Path:
    """Make a folder that the image's user may write to, as a volume is."""
    folder.mkdir(parents=True)
    os.chown(folder, USER, USER)
    return folder
