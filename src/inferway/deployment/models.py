"""Runner of a variant: a model's file, wherever it comes from, or a model behind another server."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import AfterValidator, Discriminator, Field, Tag

from inferway.deployment.errors import must, parsed
from inferway.deployment.section import ReadAs, Section, says, text_schema
from inferway.deployment.units import Count, PositiveSeconds
from inferway.protocol.address import parse_model

if TYPE_CHECKING:
    from inferway.catalog.zoo import Profile
    from inferway.protocol import Signature
    from inferway.runtime import RemoteRuntime

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


class ModelError(ValueError):
    """A model that cannot be used, with one sentence that says why."""


@dataclass(frozen=True)
class Model:
    """The file behind a variant: where it is, as it was named, and its digest if known.

    `path` is None for a model of another host, until a node has fetched it; such a model has a
    digest.
    """

    path: Path | None
    uri: str
    digest: str | None = None


_NO_VARIABLE = (
    "expected the name of an environment variable, such as INFERWAY_KEY; the key itself "
    "does not belong in this file"
)
Variable = Annotated[
    str, AfterValidator(must(lambda name: name.isidentifier() and name.isascii(), _NO_VARIABLE))
]


Url = Annotated[
    str,
    AfterValidator(parsed(parse_model)),
    text_schema("^https?://[^/]+/(.*/)?v2/models/.+", "http://127.0.0.1:8080/v2/models/digits"),
]


@dataclass(frozen=True)
class Remote(Section):
    """A model behind a server of the Open Inference Protocol: Triton, MLServer, OVMS, Inferway."""

    url: Annotated[
        Url,
        says(
            "The model's URL: http://HOST:PORT/v2/models/NAME, with "
            "/versions/VERSION if it has some."
        ),
    ]
    concurrency: Annotated[
        Count | None,
        says(
            "Most requests at the server at once; the number of instances where a node lists none."
        ),
    ] = None
    timeout_s: Annotated[PositiveSeconds, says("Longest wait for one answer.", "timeout")] = 10.0
    key: Annotated[
        Variable | None,
        says("Name of the environment variable that holds the server's bearer key."),
    ] = None

    def runtime(
        self, *, signature: Signature | None = None, timeout_s: float | None = None
    ) -> RemoteRuntime:
        """Make the runtime of the variant; nothing is asked of its server yet.

        Parameters
        ----------
        signature
            Of the task's other variants, if known.
        timeout_s
            Longest wait for one answer, where it is shorter than the remote's own.

        Raises
        ------
        ValueError
            When the environment does not hold the key.
        """
        from inferway.runtime.remote import RemoteRuntime

        options: dict[str, Any] = {}
        if self.key is not None:
            options["key"] = os.environ.get(self.key, "").strip()
            if not options["key"]:
                raise ValueError(
                    f"the environment variable {self.key}, which is to hold the server's key, is "
                    "not set"
                )
        limit_s = self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)
        return RemoteRuntime(
            parse_model(self.url), timeout_s=limit_s, signature=signature, **options
        )


ModelUri = Annotated[
    Model, ReadAs(Annotated[str, Field(min_length=1)], lambda uri: Model(None, uri))
]
UrlOrRemote = Annotated[
    Remote,
    ReadAs(
        Annotated[
            Annotated[Url, Tag("url")] | Annotated[Remote, Tag("section")],
            Discriminator(lambda value: "url" if isinstance(value, str) else "section"),
        ],
        lambda value: Remote(value) if isinstance(value, str) else value,
    ),
]


def located(model: Model, folder: Path, digest: str | None = None) -> tuple[Model, Profile | None]:
    """Find the file behind a model's URI, and its profile where it comes from a zoo.

    Parameters
    ----------
    model
        Its URI is ``zoo://ZOO/VARIANT``; ``file:///absolute``; ``file:relative`` or a plain path,
        both relative to `folder`; ``https://HOST/PATH`` with a `digest`, whose file is not looked
        at.
    folder
        The deployment file's.
    digest
        Stated by the file, or None.

    Raises
    ------
    ModelError
        If there is none, or the digest contradicts the profile.
    """
    uri = model.uri
    if uri.startswith("zoo://"):
        from inferway.catalog import zoo

        try:
            path, profile = zoo.resolve(uri)
        except ValueError as error:
            raise ModelError(str(error)) from None
        if digest is not None and digest != profile.digest:
            raise ModelError(f"the digest of {uri} is {profile.digest}, not {digest}")
        return Model(path, uri, profile.digest), profile
    if "\0" in uri and not uri.lower().startswith("https:"):
        raise ModelError("a path cannot hold a null character")
    if not _SCHEME.match(uri):
        path = folder / uri
    else:
        try:
            parts = urlsplit(uri)
            if parts.scheme == "https":
                parts.port  # noqa: B018 - raises for what is no port
        except ValueError as error:
            raise ModelError(f"{uri} is not a URI: {error}") from None
        if parts.scheme == "https":
            _check_elsewhere(uri, parts, digest)
            return replace(model, digest=digest), None
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
        path = folder / unquote(parts.path)
    if not path.is_file():
        raise ModelError(f"no such model file: {path}")
    return Model(path, uri, digest), None


def _check_elsewhere(uri: str, parts: SplitResult, digest: str | None) -> None:
    """Refuse what no node could fetch."""
    faults = (
        (
            not parts.hostname or not parts.path.strip("/"),
            f"{uri} names no file; write https://HOST/PATH",
        ),
        (
            parts.username is not None or parts.password is not None,
            "a model's URI must hold no user name or password",
        ),
        (
            "/v2/models/" in parts.path,
            "a model behind a server is a `remote`; a `model` is a file",
        ),
        (digest is None, f"{uri} comes from another host, so it needs its `digest`"),
    )
    for wrong, sentence in faults:
        if wrong:
            raise ModelError(sentence)


def signature_of(model: Model) -> Signature:
    """Check a model's file (size, digest, format) and return its signature.

    Raises
    ------
    ModelError
        If the file fails a check, or is not on this machine.
    """
    if model.path is None:
        raise ModelError(f"{model.uri} is not on this machine")
    try:
        status = model.path.stat()
        version = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    except OSError:  # which reading it says
        version = (0, 0, 0, 0)
    return _inspected(model.path, model.digest, version)


@lru_cache(maxsize=256)
def _inspected(path: Path, digest: str | None, version: tuple[int, ...]) -> Signature:
    """Check a file once for as long as it is the same: several tasks, or points of a sweep."""
    from inferway.runtime.artifact import ArtifactError, inspect

    try:
        return inspect(path, digest=digest)
    except ArtifactError as error:
        raise ModelError(str(error)) from None
