"""The FILE that most commands take, and the folders that some write to."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated

import typer

from inferway.cli.failure import REFUSED, CommandError, reason
from inferway.cli.terminal import complain
from inferway.spelling import closest

if TYPE_CHECKING:
    from inferway.deployment import Deployment

File = Annotated[Path, typer.Argument(metavar="FILE", help="Deployment file (YAML).")]


def _policies(incomplete: str) -> list[str]:
    from inferway.dispatch.contract import POLICIES

    return [name for name in POLICIES if name.startswith(incomplete)]


Node = Annotated[
    str | None, typer.Option(help="Whose instances are meant, where there are several nodes.")
]
Seed = Annotated[int | None, typer.Option(min=0, help="The file's if not given.")]
Policy = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Dispatch policy in place of the file's: a name, or ./file.py:Class.",
        autocompletion=_policies,
    ),
]


def existing(path: Path) -> Path:
    """Return a path that is a file, or say what it might have been."""
    if path.is_file():
        return path
    if path.is_dir():
        raise CommandError(f"{path} is a folder, not a deployment file", REFUSED)
    sentence = f"there is no file {path}"
    near = path.parent if path.parent.is_dir() else Path()
    names = sorted(one.name for suffix in ("*.yaml", "*.yml") for one in near.glob(suffix))
    # Of names that all end alike, what stands before that counts.
    if alike := closest(path.stem, [Path(name).stem for name in names]):
        meant = next(name for name in names if Path(name).stem == alike)
        sentence += f"; did you mean {near / meant}?"
    raise CommandError(sentence, REFUSED)


def opened(path: Path, policy: str | None = None) -> Deployment:
    """Load a deployment file, and measure the models whose service times it leaves out.

    Parameters
    ----------
    path
        The file.
    policy
        Dispatches every task, in place of what the file says. A file name in it starts from the
        current folder, as file names on a command line do.
    """
    import inferway
    from inferway.deployment import measured

    deployment = inferway.load(existing(path))
    say_recalled(deployment)
    # What is wrong with the policy is said before anything is measured.
    return measured(deployment if policy is None else redirected(deployment, policy))


def say_recalled(deployment: Deployment) -> None:
    """Say from where and of when service times are that this machine's profiles of a zoo give."""
    variants = [one for task in deployment.tasks.values() for one in task.variants.values()]
    uris = {one.model.uri: one for one in variants if one.model is not None}
    zoos = {uri.split("/")[2] for uri in uris if uri.startswith("zoo://")}
    if not zoos:
        return
    from inferway.catalog import zoo

    for name in sorted(zoos):
        file, profiles = zoo.kept_profiles(name), zoo.profiles(name)
        taken = (
            one.mean_s == profile.mean_s
            for profile in profiles.values()
            if (variant := uris.get(f"{zoo.SCHEME}{name}/{profile.name}")) is not None
            for one in variant.service.values()
        )
        if file is not None and any(taken):
            day = datetime.fromtimestamp(file.stat().st_mtime).isoformat(" ", "minutes")
            complain(
                f"service times of {zoo.SCHEME}{name} are recalled: measured on this machine on "
                f"{day}, in {file}"
            )


def writable(folder: Path, option: str = "--out") -> None:
    """Make a folder and try to write there, before the work whose results it is for."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder, prefix=".inferway-"):
            pass
    except OSError as error:
        is_file = folder.exists() and not folder.is_dir()
        why = "it is no folder" if is_file else reason(error)
        raise CommandError(f"nothing can be written to {option} {folder}: {why}", REFUSED) from None


def saved(folder: Path, write: Callable[[], list[Path]]) -> tuple[list[Path], CommandError | None]:
    """Write files to a folder.

    Returns
    -------
    files, failure
        What was written; and what to raise, once all else that was found is shown.
    """
    try:
        return write(), None
    except OSError as error:
        return [], CommandError(f"not all could be written to {folder}: {reason(error)}")


def redirected(deployment: Deployment, policy: str) -> Deployment:
    """Dispatch every task by this policy; CommandError where there is none of the name."""
    from inferway.dispatch.contract import POLICIES, policy_class

    if policy not in POLICIES:
        if alike := closest(policy, POLICIES):
            raise CommandError(f"no policy {policy!r}; did you mean {alike!r}?", REFUSED)
        file, colon, name = policy.rpartition(":")
        policy = f"{Path(file).resolve()}{colon}{name}" if colon else policy
        try:
            policy_class(policy)
        except ValueError as error:
            raise CommandError(str(error), REFUSED) from error
    return deployment.with_(policy=policy)
