"""Folders out of which a deployment may be taken, with all the files that it names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from inferway.deployment.errors import Place
    from inferway.deployment.source import Source

OUTSIDE = "outside of the folders to apply from, which `serve --apply-from` names"


class Bounds:
    """Tells what lies within some folders, wherever links and ``..`` lead.

    Parameters
    ----------
    folders
        With all that is below them.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders = tuple(dict.fromkeys(folder.resolve() for folder in folders))

    def hold(self, path: Path) -> bool:
        """Whether a file lies within, be it there or not."""
        try:
            real = path.resolve()
        except (OSError, RuntimeError, ValueError):  # a circle of links, or no path
            return False
        return any(real.is_relative_to(folder) for folder in self.folders)

    def files(self, source: Source) -> dict[str, Path]:
        """Find the files that a deployment file names, by field, before anything opens them.

        Any of its words may be one: a policy's file is code that would be run.

        Raises
        ------
        DeploymentError
            When one lies outside.
        """
        from inferway.deployment.errors import DeploymentError, Problem, field_name

        found: dict[str, Path] = {}
        problems = []
        folder = source.folder
        for place, word in _words(source.data, ()):
            for path in _paths(word, folder):
                if not self.hold(path):
                    problems.append(Problem(source.line(place), field_name(place), f"is {OUTSIDE}"))
                    break
                if path.is_file():
                    found[field_name(place)] = path
        if problems:
            raise DeploymentError(source.path, problems)
        return found


def _words(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _words(inner, (*place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _words(inner, (*place, index))


def _paths(word: str, folder: Path) -> Iterator[Path]:
    """Give all the paths that a word may stand for: plain, a URI's, a file's with a class."""
    if "\0" in word:
        return  # no path, as whoever opens it says
    names = [word]
    if word.lower().startswith("file:"):
        try:
            names.append(unquote(urlsplit(word).path))
        except ValueError:
            names.append(unquote(word.partition(":")[2]))
    if ":" in word:
        names.append(word.rpartition(":")[0])
    for name in names:
        path = folder / name
        # Most words are names, of which only a link could lead elsewhere.
        if "/" in name or name == ".." or path.is_symlink() or path.is_file():
            yield path
