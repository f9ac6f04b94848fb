"""Finds the models that variants name and checks what their files say of themselves."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from inferway.deployment.deployment import Model

if TYPE_CHECKING:
    from inferway.catalog.profile import Profile
    from inferway.protocol import Signature

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


class ModelError(ValueError):
    """A model that cannot be used, with one sentence that says why."""


def find(uri: str, folder: Path, digest: str | None = None) -> tuple[Model, Profile | None]:
    """Find the file behind a model's URI, and its profile where it comes from a zoo.

    Parameters
    ----------
    uri
        ``zoo://ZOO/VARIANT``; ``file:///absolute``; ``file:relative`` or a plain path, both
        relative to `folder`; ``https://HOST/PATH`` with a `digest`, whose file is not looked at.
    folder
        The deployment file's.
    digest
        What the file stated, or None.

    Raises
    ------
    ModelError
        If there is none, or the digest contradicts the profile.
    """
    if uri.startswith("zoo://"):
        from inferway.catalog import zoo

        try:
            path, profile = zoo.resolve(uri)
        except ValueError as error:
            raise ModelError(str(error)) from None
        if digest is not None and digest != profile.digest:
            raise ModelError(f"the digest of {uri} is {profile.digest}, not {digest}")
        return Model(path, uri, profile.digest), profile
    if uri.lower().startswith("https:"):
        _check_elsewhere(uri, digest)
        return Model(None, uri, digest), None
    path = _path(uri, folder)
    if not path.is_file():
        raise ModelError(f"no such model file: {path}")
    return Model(path, uri, digest), None


def signature_of(model: Model) -> Signature:
    """Check a model's file (size, digest, format) and return its signature.

    Raises
    ------
    ModelError
        If the file fails a check, or is not here.
    """
    if model.path is None:
        raise ModelError(f"{model.uri} is not on this machine")
    try:
        found = model.path.stat()
        changed = found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    except OSError:  # which reading it says
        changed = (0, 0, 0, 0)
    return _inspected(model.path, model.digest, changed)


@lru_cache(maxsize=256)
def _inspected(path: Path, digest: str | None, changed: tuple[int, ...]) -> Signature:
    """Check a file once for as long as it is the same: several tasks, or points of a sweep."""
    from inferway.runtime.artifact import ArtifactError, inspect

    try:
        return inspect(path, digest=digest)
    except ArtifactError as error:
        raise ModelError(str(error)) from None


def _check_elsewhere(uri: str, digest: str | None) -> None:
    """Refuse what no node could fetch."""
    try:
        parts = urlsplit(uri)
        parts.port  # noqa: B018 - raises for what is no port
    except ValueError as error:
        raise ModelError(f"{uri} is not a URI: {error}") from None
    if not parts.hostname or not parts.path.strip("/"):
        raise ModelError(f"{uri} names no file; write https://HOST/PATH")
    if parts.username is not None or parts.password is not None:
        raise ModelError("a model's URI must hold no user name or password")
    if "/v2/models/" in parts.path:
        raise ModelError("a model behind a server is a `remote`; a `model` is a file")
    if digest is None:
        raise ModelError(f"{uri} comes from another host, so it needs its `digest`")


def _path(uri: str, folder: Path) -> Path:
    if "\0" in uri:
        raise ModelError("a path cannot hold a null character")
    if not _SCHEME.match(uri):
        return folder / uri
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise ModelError(f"{uri} is not a URI: {error}") from None
    if parts.scheme != "file":
        raise ModelError(
            f"models come from zoo://ZOO/VARIANT, file:///PATH, https://HOST/PATH or a path "
            f"relative to this file, not from {parts.scheme}:"
            + ("; a model behind a server is a `remote`" * parts.scheme.startswith("http"))
        )
    if parts.netloc not in {"", "localhost"}:
        raise ModelError(
            f"{uri} names the host {parts.netloc}; write file:/// and an absolute path"
        )
    return folder / unquote(parts.path)
