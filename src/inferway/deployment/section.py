"""What every section of a deployment file has in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationInfo,
    WithJsonSchema,
)

from inferway.deployment.quantities import refuse


class Section(BaseModel):
    """A mapping of the file with known keys: others are refused, and it never changes.

    A string below a field describes it; `schema` reads these strings, and no start has to.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        populate_by_name=False,
    )


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


def _must_be_file(path: Path) -> Path:
    if not path.is_file():
        raise refuse(f"no such file: {path}")
    return path


def _must_be_folder(path: Path) -> Path:
    if not path.is_dir():
        raise refuse(f"no such folder: {path}")
    return path


# Names become parts of URLs and metric labels, so they hold neither slashes nor spaces.
Name = Annotated[str, AfterValidator(_name)]
Switch = Annotated[bool, BeforeValidator(_switch), WithJsonSchema({"type": "boolean"})]
_TEXT = WithJsonSchema({"type": "string", "description": "A path, relative to this file."})
# A path that something later writes or reads: it need not be there yet.
Place = Annotated[Path, BeforeValidator(_against_folder), _TEXT]
File = Annotated[Path, AfterValidator(_must_be_file), BeforeValidator(_against_folder), _TEXT]
Folder = Annotated[Path, AfterValidator(_must_be_folder), BeforeValidator(_against_folder), _TEXT]
