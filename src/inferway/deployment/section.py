"""Sections of a deployment file, and the kinds of values that are no quantities."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticKnownError, PydanticOmit, core_schema

from inferway.deployment.units import refuse
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


def says(description: str, key: str | None = None) -> Any:
    """Describe a field, and name its key in the file where that is another."""
    return Field(alias=key, description=description)


class _Unwritten:
    """Refuses a field as an unknown key, and leaves it out of the schema."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._refuse)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        raise PydanticOmit

    @staticmethod
    def _refuse(value: Any) -> None:
        raise PydanticKnownError("extra_forbidden")


UNWRITTEN: Final = _Unwritten()
"""Marks a field that no file gives: it is filled in when the whole file is known."""


class ReadAs:
    """Reads a value of the file as one type, and turns it into what the field holds."""

    def __init__(self, written: Any, turn: Callable[[Any], Any]) -> None:
        self.written, self.turn = written, turn

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        inner = handler.generate_schema(self.written)
        return core_schema.no_info_after_validator_function(self.turn, inner)


def _name(value: str) -> str:
    plain = all(c.isalnum() or c in "._-" for c in value)
    if not plain or not 0 < len(value) <= 200 or value[0] in ".-":
        raise refuse(
            f'"{value[:40]}" cannot be a name; use letters, digits, dots, dashes and underscores'
        )
    return value


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise refuse(f"expected true or false, got {value!r}")
    return value


def _against_folder(value: Any, info: ValidationInfo) -> Path:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise refuse("expected a path, relative to this file")
    folder: Path = (info.context or {}).get("folder", Path())
    return folder / value


def _existing(exists: Callable[[Path], bool], noun: str) -> AfterValidator:
    def check(path: Path) -> Path:
        if not exists(path):
            raise refuse(f"no such {noun}: {path}")
        return path

    return AfterValidator(check)


# Names become parts of URLs and metric labels, so they hold neither slashes nor spaces.
Name = Annotated[str, AfterValidator(_name)]
Switch = Annotated[bool, BeforeValidator(_switch), WithJsonSchema({"type": "boolean"})]
_RELATIVE = BeforeValidator(_against_folder)
_TEXT = WithJsonSchema({"type": "string", "description": "A path, relative to this file."})
# A path that something later writes or reads: it need not be there yet.
FuturePath = Annotated[Path, _RELATIVE, _TEXT]
File = Annotated[Path, _existing(Path.is_file, "file"), _RELATIVE, _TEXT]
Folder = Annotated[Path, _existing(Path.is_dir, "folder"), _RELATIVE, _TEXT]

_SOURCE: Final = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?(:[0-9]{1,5})?")


def _address(value: Any) -> str:
    if not isinstance(value, str):
        raise refuse(f"expected an address such as edge-1.example.org:8000, got {value!r}")
    try:
        split(value)
    except ValueError as error:
        raise refuse(str(error)) from None
    return value


def _host(value: str) -> str:
    if not _SOURCE.fullmatch(value):
        raise refuse(
            f'"{value[:60]}" is no host; write it as models.example.org, *.example.org or '
            "models.example.org:8443"
        )
    return value.lower()


# An address without a port reads as a number where it is one, so that is said as well.
HostPort = Annotated[
    str,
    BeforeValidator(_address),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": rf"^(?:{LABELS}|\[[0-9A-Fa-f:.]+\])(?::[0-9]{{1,5}})?$",
            "examples": ["edge-1.example.org", "10.0.0.7:8000", "[fd00::7]:8000"],
        }
    ),
]
Host = Annotated[
    str,
    AfterValidator(_host),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": f"^{_SOURCE.pattern}$",
            "examples": ["models.example.org", "*.example.org"],
        }
    ),
]
