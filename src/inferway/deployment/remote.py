"""Variants that another server runs, as the file writes them and as they are reached."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Discriminator, Tag, WithJsonSchema

from inferway.deployment.quantities import Count, PositiveSeconds, refuse
from inferway.deployment.section import Section

if TYPE_CHECKING:
    from inferway.protocol import Signature
    from inferway.runtime import RemoteRuntime

_EXAMPLE = "http://127.0.0.1:8080/v2/models/digits"


def _url(value: str) -> str:
    from inferway.protocol.address import parse_model

    try:
        parse_model(value)
    except ValueError as error:
        raise refuse(str(error)) from None
    return value


def _variable(value: str) -> str:
    if not value.isidentifier() or not value.isascii():
        raise refuse(
            "expected the name of an environment variable, such as INFERWAY_KEY; the key itself "
            "does not belong in this file"
        )
    return value


Url = Annotated[
    str,
    AfterValidator(_url),
    WithJsonSchema(
        {"type": "string", "pattern": "^https?://[^/]+/(.*/)?v2/models/.+", "examples": [_EXAMPLE]}
    ),
]


class WrittenRemote(Section):
    """A model behind a server of the Open Inference Protocol: Triton, MLServer, OVMS, Inferway."""

    url: Url
    """The model's URL: http://HOST:PORT/v2/models/NAME, with /versions/VERSION if it has some."""
    concurrency: Count | None = None
    """Most requests at the server at once; the number of instances where a node lists none."""
    timeout: PositiveSeconds = 10.0
    """Longest wait for one answer."""
    key: Annotated[str, AfterValidator(_variable)] | None = None
    """Name of the environment variable that holds the server's bearer key."""


WrittenRemotes = Annotated[
    Annotated[Url, Tag("url")] | Annotated[WrittenRemote, Tag("section")],
    Discriminator(lambda value: "url" if isinstance(value, str) else "section"),
]


@dataclass(frozen=True)
class Remote:
    """Where another server runs a variant.

    Attributes
    ----------
    url
        Of the model.
    timeout_s
        Longest wait for one answer, s.
    concurrency
        Most requests there at once, which is most instances on a node; None for any number.
    key
        Name of the environment variable that holds the bearer key, or None.
    """

    url: str
    timeout_s: float = 10.0
    concurrency: int | None = None
    key: str | None = None


def remote_of(written: str | WrittenRemote) -> Remote:
    """Resolve what the file says."""
    if isinstance(written, str):
        return Remote(written)
    return Remote(written.url, written.timeout, written.concurrency, written.key)


def runtime_of(
    remote: Remote, *, signature: Signature | None = None, timeout_s: float | None = None
) -> RemoteRuntime:
    """Make the runtime of a remote variant; nothing is asked of its server yet.

    Parameters
    ----------
    remote
        Where it is.
    signature
        Of the task's other variants, if known.
    timeout_s
        In place of the remote's own.

    Raises
    ------
    ValueError
        When the environment does not hold the key.
    """
    from inferway.protocol.address import parse_model
    from inferway.runtime.remote import RemoteRuntime

    options: dict[str, Any] = {}
    if remote.key is not None:
        options["key"] = os.environ.get(remote.key, "").strip()
        if not options["key"]:
            raise ValueError(
                f"the environment variable {remote.key}, which is to hold the server's key, is "
                "not set"
            )
    limit_s = remote.timeout_s if timeout_s is None else min(timeout_s, remote.timeout_s)
    return RemoteRuntime(parse_model(remote.url), timeout_s=limit_s, signature=signature, **options)
