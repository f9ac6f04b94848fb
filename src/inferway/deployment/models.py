"""Finds the models that variants name and checks what their files say of themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from inferway.deployment.deployment import Model

if TYPE_CHECKING:
    from inferway.catalog.profile import Profile
    from inferway.runtime.signature import Signature

__all__ = ["ModelError", "find", "signature_of"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


class ModelError(ValueError):
    """A model that cannot be used, with one sentence that says why."""


def find(uri: str, folder: Path, digest: str | None = None) -> tuple[Model, Profile | None]:
    """Find the file behind a model's URI, and its profile where it comes from a zoo.

    Parameters
    ----------
    uri
        ``zoo://ZOO/VARIANT``; ``file:///absolute``; ``file:relative`` or a plain path, both
        relative to `folder`.
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
    path = _path(uri, folder)
    if not path.is_file():
        raise ModelError(f"no such model file: {path}")
    return Model(path, uri, digest), None


def signature_of(model: Model) -> Signature:
    """Check a model's file (size, digest, format) and return its signature.

    Raises
    ------
    ModelError
        If the file fails a check.
    """
    from inferway.runtime.artifact import ArtifactError, inspect

    try:
        return inspect(model.path, digest=model.digest)
    except ArtifactError as error:
        raise ModelError(str(error)) from None


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
            f"models come from zoo://ZOO/VARIANT, file:///PATH or a path relative to this file, "
            f"not from {parts.scheme}:"
            + ("; a model behind a server is a `remote`" * parts.scheme.startswith("http"))
        )
    if parts.netloc not in {"", "localhost"}:
        raise ModelError(
            f"{uri} names the host {parts.netloc}; write file:/// and an absolute path"
        )
    return folder / unquote(parts.path)
