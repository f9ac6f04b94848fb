"""Sections of a deployment file, and the kinds of values that are no quantities."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError, core_schema

from inferway.deployment.errors import OF_KEYS, must, nearest, parsed, refuse, refuse_at, shown
from inferway.protocol.address import LABELS, split


class Section:
    """A mapping of the file with known keys; others are refused.

    Sections are frozen dataclasses: values of a file are checked and turned into SI units while it
    is read, and what is made in Python is taken as it stands.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    @classmethod
    def read(cls, value: Any) -> Self:
        """Make one of what a file would say.

        Raises
        ------
        pydantic.ValidationError
            If a file may not say it.
        """
        return TypeAdapter(cls).validate_python(value)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        def explained(value: Any, inner: Callable[[Any], Any]) -> Any:
            try:
                return inner(value)
            except ValidationError as error:
                raise _with_keys(error, source) from None

        inner: Any = dict(handler(source))  # a model keeps its own
        ref = inner.pop("ref", None)  # that of what is around it
        return core_schema.no_info_wrap_validator_function(explained, inner, ref=ref)


@functools.cache
def _keys(section: Any) -> tuple[str, ...]:
    return tuple(TypeAdapter(section).json_schema().get("properties", ()))


def _with_keys(error: ValidationError, section: Any) -> ValidationError:
    details: list[Any] = error.errors(include_url=False)
    own = [one for one in details if OF_KEYS.get(one["type"]) == len(one["loc"])]
    for one in own:
        one["ctx"] = {"keys": _keys(section)}
    if not own:
        return error
    for one in details:
        context = one.get("ctx", {})
        if "keys" in context or "sentence" in context:
            one["type"] = PydanticCustomError(one["type"], one["msg"], context)
    return ValidationError.from_exception_data(error.title, details)


def says(description: str, key: str | None = None) -> Any:
    """Describe a field, and name its key in the file where that is another."""
    return Field(alias=key, description=description)


def _unknown(value: Any) -> None:
    raise PydanticKnownError("extra_forbidden")


# Mark a field that no file gives: it is filled in when the whole file is known.
UNWRITTEN: Final = (PlainValidator(_unknown), SkipJsonSchema())  # type: ignore[type-arg]


class ReadAs:
    """Reads a value of the file as one type, and turns it into what the field holds."""

    def __init__(self, written: Any, turn: Callable[[Any], Any]) -> None:
        self.written, self.turn = written, turn

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        inner = handler.generate_schema(self.written)
        return core_schema.no_info_after_validator_function(self.turn, inner)


def check_kind(key: str, known: Collection[str], value: Any) -> Any:
    """Refuse a value that does not say by `key` which of several sections it is."""
    listed = ", ".join(known)
    if not isinstance(value, dict):
        raise refuse(f"expected keys such as {{{key}: {next(iter(known))}}}, got {shown(value)}")
    if key not in value:
        raise refuse(f"`{key}` is needed, one of {listed}")
    if not isinstance(value[key], str):
        raise refuse_at(key, f"expected one of {listed}, got {shown(value[key])}")
    if value[key] not in known:
        raise refuse_at(key, f"there is no {key} {value[key]}; {nearest(value[key], known)}")
    return value


def _path(noun: str, exists: Callable[[Path], bool]) -> tuple[BeforeValidator, WithJsonSchema]:
    def read(value: Any, info: ValidationInfo) -> Path:
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise refuse("expected a path, relative to this file")
        path: Path = (info.context or {}).get("folder", Path()) / value
        if not exists(path):
            raise refuse(f"no such {noun}: {path}")
        return path

    schema = {"type": "string", "description": "A path, relative to this file."}
    return BeforeValidator(read), WithJsonSchema(schema)


# Names become parts of URLs and metric labels, so they hold neither slashes nor spaces.
_NO_NAME: Final = '"{0:.40}" cannot be a name; use letters, digits, dots, dashes and underscores'
_NAME: Final = re.compile(r"(?![.-])[\w.-]{1,200}")
Name = Annotated[str, AfterValidator(must(_NAME.fullmatch, _NO_NAME))]
Switch = Annotated[
    bool,
    BeforeValidator(
        must(lambda value: isinstance(value, bool), "expected true or false, got {0!r}")
    ),
    WithJsonSchema({"type": "boolean"}),
]
# A path that something later writes or reads: it need not be there yet.
FuturePath = Annotated[Path, *_path("path", lambda path: True)]
File = Annotated[Path, *_path("file", Path.is_file)]
Folder = Annotated[Path, *_path("folder", Path.is_dir)]

_HOST: Final = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?(:[0-9]{1,5})?")
_ADDRESS: Final = rf"^(?:{LABELS}|\[[0-9A-Fa-f:.]+\])(?::[0-9]{{1,5}})?$"


def text_schema(pattern: str, *examples: str) -> WithJsonSchema:
    """Show editors a text by its pattern and good values."""
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": list(examples)})


# One without a port reads as a number where it is one, so that is said as well.
_NO_ADDRESS: Final = "expected an address such as edge-1.example.org:8000, got {0!r}"
HostPort = Annotated[
    str,
    BeforeValidator(parsed(split)),
    BeforeValidator(must(lambda value: isinstance(value, str), _NO_ADDRESS)),
    text_schema(_ADDRESS, "edge-1.example.org", "10.0.0.7:8000", "[fd00::7]:8000"),
]
_NO_HOST: Final = (
    '"{0:.60}" is no host; write it as models.example.org, *.example.org or models.example.org:8443'
)
Host = Annotated[
    str,
    AfterValidator(must(_HOST.fullmatch, _NO_HOST)),
    AfterValidator(str.lower),
    text_schema(f"^{_HOST.pattern}$", "models.example.org", "*.example.org"),
]

# Limits that pydantic leaves under its own names where a validator of ours comes first.
_KEYWORDS: Final = {"ge": "minimum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}


def tidy(node: Any) -> Any:
    """Drop from a JSON Schema what pydantic adds for its own use.

    That is titles, null for keys that are left out, and 60.0 as the default of a time.
    """
    if isinstance(node, list):
        return [tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {_KEYWORDS.get(key, key): tidy(value) for key, value in node.items()}
    if isinstance(kept.get("title"), str):
        del kept["title"]
    if "oneOf" in kept:
        kept.pop("discriminator", None)
    default = kept.get("default")
    if default is None or ("pattern" in kept and isinstance(default, float)):
        kept.pop("default", None)
    members = [one for one in kept.get("anyOf", ()) if one != {"type": "null"}]
    if len(members) == 1:
        del kept["anyOf"]
        # What is said at the key itself (its description) wins over what its type says.
        return {**members[0], **kept}
    return {**kept, "anyOf": members} if members else kept
