"""A folder of models, read as the deployment file that `inferway init` writes of it.

As model servers keep them: ``MODEL/VERSION/model.onnx``, where the model is the task and the
version the variant; or ``TASK/VARIANT/1/model.onnx``, of which the highest number counts, as for
Triton. Each variant's folder may have the one form or the other. A ``model.py`` in place of
``model.onnx`` has a class ``Model`` of the user's own. Nothing is run or parsed here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from inferway.deployment.errors import DeploymentError, Problem
from inferway.deployment.models import ModelError, signature_of
from inferway.deployment.source import Source, read
from inferway.deployment.tasks import Task

MODEL: Final = "model.onnx"
FORM: Final = f"MODEL/VERSION/{MODEL}"
_CODE: Final = "model.py"
_CLASS: Final = "Model"
_FILES: Final = (MODEL, _CODE)
# What other servers keep beside models, and Python beside code.
_KNOWN: Final = frozenset(("config.pbtxt", "labels.txt", "__pycache__"))
_NUMBER: Final = re.compile(r"[1-9][0-9]*")  # as Triton reads a version
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./-]*/[A-Za-z0-9_./-]*")
_MOST_LEFT: Final = 10  # files left alone that are named


class _RefusedError(Exception):
    """What stands in a folder where it cannot: where, and why."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{_shown(path)} {why}")


def source_of(path: Path) -> Source:
    """Read a deployment file, or a folder of models as the file that `inferway init` writes.

    Models are named from the folder around it, each with its digest.

    Raises
    ------
    DeploymentError
        If there is no such file or folder, it is not YAML, or not of the form above.
    """
    with suppress(OSError):  # which reading it says
        if path.is_dir():
            return _Folder(path).source()
    return read(path)


class _Folder:
    """One walk through a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._problems: list[str] = []
        self._left: list[Path] = []

    def source(self) -> Source:
        tasks = {}
        with self._noted():
            for folder in self._folders(self._path):
                with self._noted():
                    tasks[folder.name] = {"variants": self._variants(folder)}
        if not tasks and not self._problems:
            self._problems.append(f"{_shown(self._path)} holds no model: each stands at {FORM}")
        if self._problems:
            raise DeploymentError(self._path, [Problem(0, "", one) for one in self._problems])
        return Source(self._path, {"tasks": tasks}, top=0, remarks=list(self._remarks()))

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Go on with the rest where something is refused, so that all is said at once."""
        try:
            yield
        except _RefusedError as refused:
            self._problems.append(str(refused))

    def _variants(self, task: Path) -> dict[str, dict[str, Any]]:
        """Find the variants of a task, by name, as the file would have them."""
        found, before = {}, len(self._problems)
        for folder in self._folders(task):
            with self._noted():
                if (file := self._model_of(folder)) is None:
                    self._left.append(folder)
                else:
                    found[folder.name] = self._written(file)
        if (own := self._held(task)) is not None:
            put = f"put it into a folder of its own, as {_shown(task / '1' / own.name)}"
            raise _RefusedError(own, f"has no version: {put}")
        if not found and len(self._problems) == before:
            version = task / "VERSION" / MODEL
            raise _RefusedError(task, f"holds no model: put one at {_shown(version)}")
        return found

    def _held(self, folder: Path) -> Path | None:
        """Find the file of a model in a folder."""
        held = [folder / name for name in _FILES if os.path.lexists(folder / name)]
        if len(held) > 1:
            raise _RefusedError(folder, f"holds {' and '.join(_FILES)}: keep the one or the other")
        return held[0] if held else None

    def _model_of(self, variant: Path) -> Path | None:
        """Find the file of a variant: in its folder, or in that of its highest version."""
        own, versions = None, {}
        for folder in self._folders(variant):
            number = _NUMBER.fullmatch(folder.name)
            if number and (file := self._held(folder)) is not None:
                versions[int(folder.name)] = file
            else:
                self._left.append(folder)
        if (own := self._held(variant)) is not None and versions:
            why = f"holds {own.name} and versions of it: keep the one or the others"
            raise _RefusedError(variant, why)
        if versions:
            own = versions[max(versions)]
            self._left += self._folders(own.parent)
        return own

    def _written(self, file: Path) -> dict[str, Any]:
        """Write a variant as the file has it."""
        self._within(file)
        if not file.is_file():
            raise _RefusedError(file, "is no file: a model is one file, with its weights inside")
        name = self._from_around(file)
        if file.name == _CODE:
            python: dict[str, Any] = {"class": f"{name}:{_CLASS}"}
            if beside := self._beside(file):
                python["files"] = [self._from_around(one) for one in beside]
            return {"python": python}
        try:
            with file.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:
            raise _unreadable(file, error) from None
        return {"model": name, "digest": f"sha256:{digest}"}

    def _from_around(self, file: Path) -> str:
        """Name a file from the folder around this one."""
        return _relative(str(self._path.resolve().name / file.relative_to(self._path)))

    def _beside(self, code: Path) -> list[Path]:
        """List all other files of a class's folder, which are part of the model."""
        folder, found = code.parent, []
        self._left = [one for one in self._left if not one.is_relative_to(folder)]
        for one in sorted(folder.rglob("*")):
            parts = one.relative_to(folder).parts
            if any(part.startswith(".") or part == "__pycache__" for part in parts):
                continue
            self._within(one)
            if one.is_file() and one != code:
                if not str(one.relative_to(folder)).isprintable():
                    raise _RefusedError(one, "has a name that cannot be written: rename it")
                found.append(one)
        return found

    def _folders(self, folder: Path) -> list[Path]:
        """List the folders in a folder, by name; what is no folder is left alone."""
        found = []
        self._within(folder)
        try:
            for one in sorted(folder.iterdir()):
                if one.name.startswith(".") or one.name in _KNOWN:
                    continue
                if one.is_dir():
                    if not one.name.isprintable():
                        raise _RefusedError(one, "has a name that cannot be written: rename it")
                    found.append(one)
                elif one.name not in _FILES or folder == self._path:
                    self._left.append(one)
        except OSError as error:
            raise _unreadable(folder, error) from None
        return found

    def _within(self, path: Path) -> None:
        """Refuse a link to somewhere else: a folder is served as what lies in it."""
        try:
            real = path.resolve()
        except RuntimeError:  # of a link that leads to itself
            raise _RefusedError(path, "is a link that leads to itself") from None
        if not real.is_relative_to(self._path.resolve()):
            raise _RefusedError(
                path, f"is a link to {_shown(real)}, outside of the folder: copy it in"
            )

    def _remarks(self) -> Iterator[str]:
        left = [_shown(one) for one in sorted(self._left)]
        more = len(left) - _MOST_LEFT
        names = ", ".join(left[:_MOST_LEFT]) + (f" and {more} more" if more > 0 else "")
        if left:
            yield f"left alone, as {'they are' if len(left) > 1 else 'it is'} no {FORM}: {names}"


def _unreadable(path: Path, error: OSError) -> _RefusedError:
    return _RefusedError(path, f"cannot be read: {error.strerror or error}")


def _shown(path: Path) -> str:
    """Write a path whose name may be no text, or hold what moves a terminal's cursor."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(path))


def _relative(path: str) -> str:
    """Write a relative path so that nothing before a colon is taken for a scheme."""
    return f"./{path}" if ":" in path else path


def written(tasks: Mapping[str, Task], remarks: Sequence[str], folder: Path, file: Path) -> str:
    """Write the deployment file of a folder of models, with what is left to its author.

    Parameters
    ----------
    tasks
        Of the deployment that the folder is read as.
    remarks
        What of the folder is no part of it, as its source has found.
    folder
        As its user named it.
    file
        Where the text is going to be; models are named from there.
    """
    name = _shown(file)
    lines = [
        f"# Written by `inferway init {_shown(folder)}`. Lines with # are for you to fill in.",
        f"# `inferway check {name}` says what is missing or wrong; `inferway serve {name}` serves.",
    ]
    lines += [f"# {remark[0].upper()}{remark[1:]}" for remark in remarks]
    lines.append("tasks:")
    for task in tasks.values():
        lines += _task_lines(task, folder, file)
    names = [f"{task.name}/{name}" for task in tasks.values() for name in task.variants]
    lines += [
        "# How many copies of each variant run at once; one of each if nothing is said.",
        "# nodes:",
        f"#   here: {{instances: {{{', '.join(f'{name}: 1' for name in names)}}}}}",
        "# How requests come, for `drive`, `simulate` and `plan`.",
        "# workload:",
        *(f"#   {name}: {{arrivals: {{process: poisson, rate: 100/s}}}}" for name in tasks),
    ]
    return "\n".join(lines) + "\n"


def _task_lines(task: Task, folder: Path, file: Path) -> Iterator[str]:
    yield f"  {task.name}:"
    if (signature := _signature(task)) is not None:
        yield f"    # {signature}"
    yield "    # Mean accuracy to keep, which needs the accuracy of every variant:"
    yield "    # accuracy_target: 0.95"
    yield "    # Time by which each request is to be answered:"
    yield "    # deadline: 300 ms"
    yield "    variants:"
    for number, variant in enumerate(task.variants.values()):
        yield f"      {variant.name}:"
        if (python := variant.python) is not None:
            place = f"{_named(python.target.path, folder, file)}:{python.target.name}"
            shown = json.dumps(place, ensure_ascii=False)
            if python.files:
                yield "        python:"
                yield f"          class: {shown}"
                yield "          # What is measured holds while these and the class are the same."
                files = [_named(one.absolute(), folder, file) for one in python.files]
                yield f"          files: {json.dumps(files, ensure_ascii=False)}"
            else:
                yield f"        python: {shown}"
        if (model := variant.model) is not None and model.path is not None:
            name = _named(model.path, folder, file)
            plain = _PLAIN.fullmatch(name)
            yield f"        model: {name if plain else json.dumps(name, ensure_ascii=False)}"
            yield f"        digest: {model.digest}"
        if not number:
            name = _shown(file)
            yield f"        # `inferway profile {name} --data TEST --write` measures accuracies,"
            yield f"        # into {name}.profile.json; one that stands here goes before."
        yield "        # accuracy: 0.9"


def _signature(task: Task) -> str | None:
    for variant in task.variants.values():
        if variant.model is not None:
            with suppress(ModelError):  # whoever loads it says what is wrong
                return str(signature_of(variant.model))
    return None


def _named(path: Path, folder: Path, file: Path) -> str:
    """Name a model from where the file is going to be: relative, unless it lies elsewhere."""
    base, inner = file.absolute().parent, path.relative_to(folder.resolve())
    path = folder.absolute() / inner
    elsewhere = folder.is_absolute() and not path.is_relative_to(base)
    return str(path) if elsewhere else _relative(os.path.relpath(path, base))
