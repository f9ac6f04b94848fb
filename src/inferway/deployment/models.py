"""Runner of a variant: a model's file, a model behind another server, or a class of the user's."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    ValidationInfo,
    WithJsonSchema,
)

from inferway.deployment.errors import must, parsed, refuse, refuse_where, shown
from inferway.deployment.own_class import OWN_CLASS, file_of_class
from inferway.deployment.section import UNWRITTEN, File, Name, ReadAs, Section, says, text_schema
from inferway.deployment.units import Bytes, Count, PositiveSeconds
from inferway.protocol.address import parse_model

if TYPE_CHECKING:
    from inferway.catalog.zoo import Profile
    from inferway.protocol import Signature
    from inferway.runtime import AwaitedRuntime, PythonRuntime

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
    ) -> AwaitedRuntime:
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


@dataclass(frozen=True)
class OwnClass:
    """A class in a Python file: where the file is, its name, and the deployment file's folder."""

    path: Path
    name: str
    folder: Path = Path()


def _own_class(value: Any, info: ValidationInfo) -> OwnClass:
    if isinstance(value, OwnClass):
        return value
    if not isinstance(value, str) or "\0" in value or not re.match(OWN_CLASS, value):
        raise refuse(f"expected FILE.py:CLASS, such as ./mine.py:Model, got {shown(value)}")
    folder = (info.context or {}).get("folder", Path())
    path = file_of_class(value, folder)
    return OwnClass(path.absolute(), value.rpartition(":")[2], folder.absolute())


def _as_text(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value


ClassName = Annotated[
    OwnClass, PlainValidator(_own_class), text_schema(OWN_CLASS, "./mine.py:Model")
]
EnvironmentVariable = Annotated[
    str,
    AfterValidator(
        must(
            re.compile(r"[^=\0]+").fullmatch,
            "expected the name of an environment variable, such as OMP_NUM_THREADS, got {0!r:.40}",
        )
    ),
]
EnvironmentValue = Annotated[
    str,
    AfterValidator(must(lambda value: "\0" not in value, "a value cannot hold a null character")),
    BeforeValidator(_as_text),
    WithJsonSchema({"type": ["string", "number"]}),
]


@dataclass(frozen=True)
class Python(Section):
    """A class of the user's own that answers, run in processes of its own."""

    target: Annotated[ClassName, says("FILE.py:CLASS, the file relative to this one.", "class")]
    timeout_s: Annotated[
        PositiveSeconds,
        says(
            "Longest time of one call; its process is killed then, and another starts.", "timeout"
        ),
    ] = 30.0
    environment: Annotated[
        dict[EnvironmentVariable, EnvironmentValue],
        says("Environment variables of its processes, besides the server's."),
    ] = field(default_factory=dict)
    memory_bytes: Annotated[
        Bytes | None,
        says("Resident memory above which a process is replaced between two calls.", "memory"),
    ] = None
    files: Annotated[
        tuple[File, ...], says("Further files that are part of the model, such as its weights.")
    ] = ()
    # What a profile has found that it takes and gives; None where none says it.
    signature: Annotated[Any, *UNWRITTEN] = None

    @property
    def digest(self) -> str:
        """SHA-256 of its file and of all `files` together.

        Raises
        ------
        OSError
            When one of them cannot be read.
        """
        from inferway.runtime.python import digest_of_files

        return digest_of_files([self.target.path, *self.files])

    def runtime(
        self, *, signature: Signature | None = None, name: str = "", log: Any = None
    ) -> PythonRuntime:
        """Start the first of its processes.

        Parameters
        ----------
        signature
            Of the task's other variants, if known.
        name, log
            Of the variant, and who is told what it prints; see `PythonRuntime`.

        Raises
        ------
        ValueError
            When the class cannot be used.
        """
        from inferway.runtime import PythonCode, PythonRuntime

        code = PythonCode(
            self.target.path,
            self.target.name,
            self.target.folder,
            self.timeout_s,
            self.memory_bytes,
            self.environment,
        )
        expected = self.signature if signature is None else signature
        return PythonRuntime(code, signature=expected, name=name, log=log)


ModelUri = Annotated[
    Model, ReadAs(Annotated[str, Field(min_length=1)], lambda uri: Model(None, uri))
]
ClassOrPython = Annotated[
    Python,
    ReadAs(
        Annotated[
            Annotated[ClassName, Tag("class")] | Annotated[Python, Tag("section")],
            Discriminator(lambda value: "class" if isinstance(value, str) else "section"),
        ],
        lambda value: Python(value) if isinstance(value, OwnClass) else value,
    ),
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


class Provider(NamedTuple):
    """An execution provider of ONNX Runtime, and its options as ONNX Runtime takes them."""

    name: str
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        options = ", ".join(f"{key}: {value}" for key, value in self.options)
        return f"{self.name} {{{options}}}" if options else self.name


def _provider(value: str | dict[str, dict[str, str]]) -> Provider:
    if isinstance(value, str):
        return Provider(value)
    ((name, options),) = value.items()
    return Provider(name, tuple(options.items()))


def _option(value: Any) -> str:
    refuse_where(
        (
            not isinstance(value, str | bool | int | float),
            f"expected a word, a number, true or false, got {shown(value)}",
        )
    )
    return str(value)  # as ONNX Runtime writes what Python gives it


def _told_apart(providers: tuple[Provider, ...]) -> tuple[Provider, ...]:
    names = [one.name for one in providers]
    twice = next((name for name in names if names.count(name) > 1), "")
    refuse_where((bool(twice), f"{twice} is given twice"))
    return providers


_Option = Annotated[
    str,
    PlainValidator(_option),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]
_WithOptions = Annotated[
    dict[Name, dict[str, _Option]],
    AfterValidator(
        must(
            lambda one: len(one) == 1,
            "expected one execution provider, {{NAME: {{OPTION: VALUE}}}}, got {0!r:.80}",
        )
    ),
]
StatedProviders = Annotated[
    tuple[
        Annotated[
            Provider,
            ReadAs(
                Annotated[
                    Annotated[Name, Tag("name")] | Annotated[_WithOptions, Tag("options")],
                    Discriminator(lambda value: "options" if isinstance(value, dict) else "name"),
                ],
                _provider,
            ),
        ],
        ...,
    ],
    Field(min_length=1),
    AfterValidator(_told_apart),
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
