"""The profile of a deployment file: what `inferway profile --write` has measured, kept beside it.

It stands in ``FILE.profile.json`` for FILE, and what FILE says itself counts more.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from inferway.catalog.profile import TaskProfile
from inferway.deployment.own_class import OWN_CLASS
from inferway.files import write_whole
from inferway.unreadable import UNREADABLE, fault

SCHEMA: Final = 1
SUFFIX: Final = ".profile.json"


class ProfileError(ValueError):
    """A profile that cannot be read, with one sentence that says why."""


class DeploymentProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that was measured of a deployment file.

    Attributes
    ----------
    schema
        Of the file.
    machines
        Processor, cores and system, by their hash.
    tasks
        By name.
    """

    schema: int = SCHEMA
    machines: dict[str, dict[str, Any]] = {}
    tasks: dict[str, TaskProfile] = {}


def profile_path(file: Path) -> Path:
    """Name the profile of a deployment file; no two files share one."""
    named = file if file.name not in ("", "..") else file.resolve()
    return named.with_name(named.name + SUFFIX)


def read_profile(file: Path) -> DeploymentProfile | None:
    """Read the profile of a deployment file; None where there is none.

    Raises
    ------
    ProfileError
        When it cannot be read.
    """
    path = profile_path(file)
    try:
        status = path.stat()
        return _read(path, status.st_mtime_ns, status.st_size)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProfileError(f"{path}: cannot read the profile: {error.strerror}") from None


def write_profile(file: Path, profile: DeploymentProfile) -> Path:
    """Write the profile of a deployment file, whole; where it is."""
    path = profile_path(file)
    content = msgspec.json.format(msgspec.json.encode(profile), indent=1)
    write_whole(path, content + b"\n")
    return path


@lru_cache(maxsize=64)
def _read(path: Path, changed_ns: int, size: int) -> DeploymentProfile:
    """Read a profile once for as long as its file is not written anew."""
    anew = "measure anew with `inferway profile --write`, or remove it"
    try:
        content = path.read_bytes()
        schema = msgspec.json.decode(content, type=_Schema).schema
        if schema != SCHEMA:
            raise ProfileError(f"{path}: schema {schema} is not {SCHEMA}; {anew}")
        return msgspec.json.decode(content, type=DeploymentProfile)
    except ProfileError:
        raise
    except UNREADABLE as error:
        raise ProfileError(f"{path}: the profile is malformed ({fault(error)}); {anew}") from None


class _Schema(msgspec.Struct):
    schema: int


def file_digest(path: Path) -> str:
    """Hash a model's file, as ``sha256:`` and 64 hexadecimal digits; once while it is as it was."""
    status = path.stat()
    return _hashed(path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def function_digest(kind: str | None, folder: Path) -> str | None:
    """Hash the file of a function ``./FILE.py:FUNCTION``, which is not run.

    None for what is none; empty where the file cannot be read.
    """
    if kind is None or not re.match(OWN_CLASS, kind):
        return None
    try:
        return file_digest(folder / kind.rpartition(":")[0])
    except OSError:
        return ""


@lru_cache(maxsize=256)
def _hashed(path: Path, *version: int) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
