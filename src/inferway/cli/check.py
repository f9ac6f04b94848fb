"""``inferway check``: what is wrong with a deployment file, and what is unwise in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferway.cli import terminal
from inferway.cli.failure import REFUSED
from inferway.cli.file import File, existing, say_recalled

if TYPE_CHECKING:
    from inferway.deployment import Deployment
    from inferway.experiments.findings import CheckResult

_SHOWN = 200
"""Lines of one kind; whoever mends these sees others the next time."""

Strict = Annotated[bool, typer.Option("--strict", help="Fail on warnings as well.")]


def check(file: File, strict: Strict = False, json: terminal.Json = False) -> None:
    """Check a deployment file: errors, warnings, and what cannot be run live."""
    import inferway

    errors: list[dict[str, Any]] = []
    found: CheckResult | None = None
    deployment = None
    path = existing(file)
    try:
        deployment = inferway.load(path)
        say_recalled(deployment)
        found = inferway.check(deployment)
    except inferway.DeploymentError as error:
        errors = [_entry(path, one.line, one.field, one.sentence) for one in error.problems]
    wrong = bool(errors)
    warnings: list[dict[str, Any]] = []
    unserved: list[str] = []
    notes: list[str] = []
    size: dict[str, int] | None = None
    if deployment is not None and found is None:
        from inferway.experiments.findings import cautions

        # Those found before an error may explain it.
        before = sorted(cautions(deployment), key=lambda one: one.line)
        warnings = [_entry(path, one.line, one.field, one.message) for one in before]
        alone = deployment.network is None
        unserved = deployment.unserved() if alone else deployment.unserved_at_node()
    if found is not None:
        # A target that cannot be reached is warned of by its file as well: once is enough.
        errors = [_entry(path, one.line, one.field, one.message) for one in found.refused]
        fields = {(one.kind, one.field) for one in found.refused}
        warnings = [
            _entry(path, one.line, one.field, one.message)
            for one in found.warnings
            if (one.kind, one.field) not in fields
        ]
        unserved = list(found.unserved)
        notes, size = list(found.notes), found.size
    if json:
        terminal.document(
            {
                "schema": 1,
                "tasks": _tasks(deployment),
                "network": None if size is None else {**size, "notes": notes},
                "errors": errors,
                "warnings": warnings,
                "unserved": unserved,
            }
        )
    else:
        said = [f"network: {note}" for note in notes]
        _tell(path, errors, warnings, [*said, *unserved])
    if errors and not wrong:
        raise typer.Exit(REFUSED)
    if errors or (strict and warnings):
        raise typer.Exit(1)


def _entry(path: Path, line: int, field: str, message: str) -> dict[str, Any]:
    # Line 0 is the file as a whole.
    return {"file": str(path), "line": line or None, "field": field, "message": message}


def _tasks(deployment: Deployment | None) -> dict[str, Any]:
    if deployment is None:
        return {}
    return {
        name: {
            "variants": list(task.variants),
            "accuracy_target": task.accuracy_target,
            "deadline_s": task.deadline_s,
            "policy": deployment.policy_of(task).policy,
        }
        for name, task in deployment.tasks.items()
    }


def _tell(
    path: Path, errors: list[dict[str, Any]], warnings: list[dict[str, Any]], notes: list[str]
) -> None:
    for kind, entries in (("error", errors), ("warning", warnings)):
        for one in entries[:_SHOWN]:
            where = f"{one['file']}:{one['line']}" if one["line"] else one["file"]
            field = f"{one['field']}: " if one["field"] else ""
            print(f"{where}: {kind}: {field}{one['message']}")
        if len(entries) > _SHOWN:
            print(f"{path}: and {_count(entries[_SHOWN:], kind)} more; --json lists all")
    for sentence in notes:
        print(f"{path}: note: {sentence}")
    print(f"{path}: {_count(errors, 'error')}, {_count(warnings, 'warning')}")


def _count(entries: list[dict[str, Any]], noun: str) -> str:
    return f"{len(entries) or 'no'} {noun}{'' if len(entries) == 1 else 's'}"
