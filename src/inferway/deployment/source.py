"""A YAML file as plain data, with the line of every key and value.

Read through ruamel.yaml's composer, which gives the syntax tree with line marks and builds no
objects: tags never construct anything. YAML 1.2's core schema decides what a scalar is, so ``no``
is a word and ``012`` is twelve.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

from inferway.deployment.errors import DeploymentError, Place, Problem, field_name

LARGEST_FILE = 2 * 2**20  # bytes
# Of commas, brackets, braces and line breaks. Each value needs one of them, and reading one value
# takes some 40 us, so that this bounds the time; counting them first takes none.
MOST_MARKS = 50_000
MOST_PROBLEMS = 100  # that are told of one file; of the others, how many there are
_MARKS = ",[{\n\r\x85\u2028\u2029"
MOST_VALUES = 200_000  # after aliases are expanded: a bomb of aliases grows without bound
DEEPEST = 60

_YAML_ERRORS: Final = {
    "\\t": "a tab where YAML needs spaces; indent with spaces",
    "another document": "a second document (---) starts here; a deployment file holds one",
}
# Unquoted scalars by YAML 1.2's core schema (chapter 10.3 of the specification): the first pattern
# that fits the whole text says what it is; a text that fits none is a word.
_SCALARS: Final[tuple[tuple[str, Callable[[str], Any]], ...]] = (
    ("|~|null|Null|NULL", lambda text: None),
    ("true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    ("[-+]?[0-9]{1,30}", int),
    ("0o[0-7]{1,28}|0x[0-9a-fA-F]{1,28}", lambda text: int(text, 0)),
    (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", float),
    (r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", lambda text: float(text.replace(".", ""))),
)


@dataclass
class Source:
    """The data of a file and where each part of it stands.

    Attributes
    ----------
    path
        The file, as named by the caller.
    data
        The document: a mapping of plain Python values.
    problems
        Duplicate keys first, then whatever is noted; `MOST_PROBLEMS` at most.
    lines
        Line (from 1) of every key and list item, by its place.
    top
        Line of what has none of its own; 0 where there is no file.
    more
        Number of problems noted beyond those.
    remarks
        What else is to be told to whoever named the file.
    profiled
        Whether the profile beside the file or folder, if any, fills in what it leaves out.
    """

    path: Path
    data: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    lines: dict[Place, int] = field(default_factory=dict)
    top: int = 1
    more: int = 0
    remarks: list[str] = field(default_factory=list)
    profiled: bool = True

    @property
    def folder(self) -> Path:
        """The folder that relative paths in the file start from."""
        return self.path.resolve().parent

    def line(self, place: Place) -> int:
        """Line (from 1) of the key or list item at `place`, or of the nearest one around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, self.top)

    @cached_property
    def field_lines(self) -> Mapping[str, int]:
        """Line of every key and list item by its field, such as ``network.tree[2].rtt``."""
        return {field_name(place): line for place, line in self.lines.items()}

    def note(self, place: Place, sentence: str | Callable[[], str], line: int = 0) -> None:
        """Note what is wrong at `place`, or that there is more where so much is wrong already.

        Reading goes on, so that all problems are said at once.
        """
        if self.full:
            self.more += 1
            return
        text = sentence if isinstance(sentence, str) else sentence()
        self.problems.append(Problem(line or self.line(place), field_name(place), text))

    @property
    def full(self) -> bool:
        """Tell whether so much is wrong that the rest is only counted."""
        return len(self.problems) >= MOST_PROBLEMS


def given(data: Mapping[str, Any]) -> Source:
    """Take a deployment as Python data instead of a file: what YAML holds, and NumPy's numbers.

    Raises
    ------
    DeploymentError
        If a key is no word, or a value is nothing that a file could say.
    """
    return Source(Path("deployment"), _plain(data, ()), top=0, profiled=False)


def _plain(value: Any, place: Place) -> Any:
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise _refused("deployment", 0, f"a key must be a word, not {key!r}", place)
        return {key: _plain(one, (*place, key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, (*place, index)) for index, one in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        return value.tolist()
    if not isinstance(value, str | bool | int | float):
        sentence = f"expected what a file could say, not a {type(value).__name__}"
        raise _refused("deployment", 0, sentence, place)
    return value


def _refused(path: Path | str, line: int, sentence: str, place: Place = ()) -> DeploymentError:
    return DeploymentError(path, [Problem(line, field_name(place), sentence)])


def read(path: Path | str) -> Source:
    """Read a deployment file's YAML.

    Raises
    ------
    DeploymentError
        If there is no such file, it is not UTF-8, not YAML, or not one mapping.
    """
    path = Path(path)
    text = _text(path)
    if (marks := sum(map(text.count, _MARKS))) > MOST_MARKS:
        sentence = f"{marks:,} lines, commas and brackets are too many for a deployment file"
        raise _refused(path, 0, f"{sentence} ({MOST_MARKS:,})")
    yaml = YAML(typ="safe", pure=True)
    # YAML 1.2 lets an anchor be set again; Python's warnings are nothing for whoever wrote it.
    yaml.composer.warn_double_anchors = False
    line = 0
    try:
        root = yaml.compose(text)
    except RecursionError:
        line, sentence = 1, f"values are nested more than {DEEPEST} deep"
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = str(error.problem or error.context or "")
        known = (said for part, said in _YAML_ERRORS.items() if part in problem)
        line, sentence = mark.line + 1 if mark else 1, next(known, f"not YAML: {problem}")
    except (YAMLError, ValueError) as error:
        sentence = f"not YAML: {str(error).splitlines()[0]}"
    except Exception as error:  # its reader also raises what its own statements run into
        sentence = f"not YAML that can be read: {shorten(str(error), 99)}"
    else:
        if isinstance(root, MappingNode):
            return _Reading(path).source(root)
        sentence = "the file is empty; a deployment needs at least `tasks:`"
        if root is not None:
            line = root.start_mark.line + 1
            sentence = "expected keys such as `tasks:` at the top of the file"
    raise _refused(path, line, sentence)


def _text(path: Path) -> str:
    try:
        size = path.stat().st_size
        if path.is_dir():
            sentence = "this is a folder, not a deployment file"
        elif size > LARGEST_FILE:
            sentence = f"{size} bytes are too many for a deployment file (2 MiB)"
        else:
            with path.open("rb") as file:
                # As much as it may have, whatever the file system says of its size.
                return file.read(LARGEST_FILE).decode("utf-8-sig")
    except FileNotFoundError:
        sentence = "no such file"
    except UnicodeDecodeError as error:
        sentence = f"not UTF-8 text: byte {error.start + 1} cannot be read"
    except (OSError, ValueError) as error:
        sentence = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    raise _refused(path, 0, sentence)


class _Reading:
    """One pass over the syntax tree; counts values, so that aliases cannot blow up."""

    def __init__(self, path: Path) -> None:
        self._source = Source(path)
        self._count = 0
        self._open: set[int] = set()  # ids of the nodes being read: an alias to one is a cycle

    def source(self, root: Node) -> Source:
        self._source.data = self._value(root, ())
        return self._source

    def _value(self, node: Node, place: Place) -> Any:
        self._count += 1
        tag = str(node.tag)
        if self._count > MOST_VALUES:
            sentence = f"more than {MOST_VALUES} values once aliases (*name) are expanded"
            raise self._refused(node, sentence)
        if len(place) > DEEPEST:
            raise self._refused(node, f"values are nested more than {DEEPEST} deep")
        if id(node) in self._open:
            raise self._refused(node, "an alias (*name) contains itself")
        if not tag.startswith("tag:yaml.org,2002:") or "python" in tag:
            raise self._refused(node, f"the tag {tag} is refused; write plain values", place)
        if isinstance(node, ScalarNode):
            text = self._text(node)
            quoted = node.style is not None or tag == "tag:yaml.org,2002:str"
            fits = (read for like, read in _SCALARS if re.fullmatch(like, text))
            return text if quoted else next(fits, str)(text)
        self._open.add(id(node))
        mapping = isinstance(node, MappingNode)
        value = (self._mapping if mapping else self._sequence)(node, place)
        self._open.discard(id(node))
        return value

    def _sequence(self, node: Node, place: Place) -> list[Any]:
        for index, item in enumerate(node.value):
            self._source.lines[(*place, index)] = item.start_mark.line + 1
        return [self._value(item, (*place, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node: Node, place: Place) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode):
                raise self._refused(key_node, "a key must be a word, not a list")
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise self._refused(key_node, "YAML 1.2 has no merge key (<<); write the keys out")
            # A name such as 1 or true is still a name here.
            key = self._text(key_node)
            inner = (*place, key)
            if key in result:
                first = self._source.line(inner)
                self._source.note(inner, f"{key} is given twice, first on line {first}", line)
                continue
            # Keep the first line of an alias's place: where it is used, not where it is anchored.
            self._source.lines[inner] = line
            value = self._value(value_node, inner)
            if value is None:
                self._source.note(inner, "has no value; give it one or leave the key out")
            else:
                result[key] = value
        return result

    def _text(self, node: ScalarNode) -> str:
        """Join escaped halves of a character, as JSON writes them; refuse a half alone."""
        try:
            return str(node.value).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise self._refused(node, "an escape (\\u...) names half a character") from None

    def _refused(self, node: Node, sentence: str, place: Place = ()) -> DeploymentError:
        return _refused(self._source.path, node.start_mark.line + 1, sentence, place)
