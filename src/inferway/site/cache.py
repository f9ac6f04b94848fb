"""The cache of compiled code: a folder, and the hash of the files that an entry may contain.

Many processes write and read the folder, whose size is bounded. Numba inlines by type: an entry
contains what its own module imports, and what the modules of its arguments' classes import. Only
the syntax tree counts, without docstrings, comments and annotations, none of which reaches the
compiler.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from inferway.files import home_folder, syntax_tree, write_whole

PACKAGE = __name__.partition(".")[0]
# Size of the folder above which the files go that were not used for longest.
_MOST_BYTES = 1 << 29
# A file's time of last use is renewed after this, and a file half written is given up.
_FRESH_S = 3600.0
_HASH_BYTES = 32


def cache_root() -> Path | None:
    """The folder of compiled entries; None where the user has no home."""
    try:
        return home_folder("cache") / "compiled"
    except RuntimeError:
        return None


def read(file: Path) -> bytes | None:
    """Read what was kept, or None. A file that is damaged counts as none."""
    try:
        content = file.read_bytes()
        if time.time() - file.stat().st_mtime > _FRESH_S:
            with suppress(PermissionError):  # where another user keeps it for this one
                os.utime(file)
    except OSError:
        return None
    kept = content[_HASH_BYTES:]
    return kept if hashlib.sha256(kept).digest() == content[:_HASH_BYTES] else None


def write(file: Path, content: bytes) -> None:
    """Keep it. Who reads the file sees the old content or the new. May raise OSError."""
    write_whole(file, hashlib.sha256(content).digest() + content, mode=0o600)


def prune(root: Path) -> None:
    """Remove what was not used for longest, where there is too much.

    Others may do the same meanwhile: a file that is gone counts as removed, and one that is being
    read stays readable.
    """
    files, total = [], 0
    for file in root.iterdir():
        with suppress(OSError):
            state = file.lstat()
            if file.suffix == ".nbc":
                files.append((state.st_mtime, state.st_size, file))
                total += state.st_size
            elif file.name.startswith(".") and time.time() - state.st_mtime > _FRESH_S:
                file.unlink()
    for _, size, file in sorted(files):
        if total <= _MOST_BYTES:
            break
        total -= size
        with suppress(OSError):
            file.unlink()


_FOLDER = Path(__file__).parents[1]
# Layers of this package that compile: of the others only constants can be in compiled code.
_COMPILED = tuple(
    f"{PACKAGE}.{layer}"
    for layer in ("site", "dispatch", "placement", "twin", "learning.routed", "learning.arrivals")
)
# Files whose trees are remembered on disk: parsing takes longer than all else at a start.
_KEPT = 4096
_FOREIGN = tuple(
    f"{Path(folder).resolve()}{os.sep}"
    for folder in {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib")}
)


class ModuleSource(NamedTuple):
    """One file."""

    digest: str  # Of its syntax tree
    imports: tuple[tuple[str, str], ...]  # Modules, each with a name from it, or an empty one
    globals: tuple[str, ...]  # Names that it reads


def digest_of(modules: Iterable[str], memory: Path | None = None) -> str:
    """Hash of all code that a function may contain, 64 hexadecimal digits.

    The modules are the function's own and those of its arguments' classes; those outside this
    package are loaded. The digests of files are remembered in the folder, if it can be written.
    """
    digest = hashlib.sha256()
    for name, source in sorted(reachable(modules, memory).items()):
        digest.update(f"{name}\0{source.digest}\0".encode())
        # What a user's file computes when it is loaded is not in its text.
        values = [] if _is_own(name) else [*_values(name, source.globals)]
        for module, imported in source.imports:
            if _is_own(module) and not _compiles(module):
                values += _values(module, (imported,))
        for variable, value in values:
            digest.update(variable.encode() + b"\0" + value + b"\0")
    return digest.hexdigest()


def reachable(modules: Iterable[str], memory: Path | None = None) -> dict[str, ModuleSource]:
    """The files of these modules and of all that they import, by the modules' names.

    The standard library and installed packages are left out; their versions stand for them.
    """
    found: dict[str, ModuleSource] = {}
    roots = frozenset(modules)
    seen, left = set(roots), list(roots)
    file = None if memory is None else memory / "sources"
    parsed = _remembered(file)
    before = len(parsed)
    while left:
        name = left.pop()
        path = _file(name, wherever=name in roots)
        if path is None or (_is_own(name) and not _compiles(name)):
            continue
        text = path.read_bytes()
        mark = hashlib.sha256(text).hexdigest()
        if mark not in parsed:
            parsed[mark] = _parsed(text)
        found[name] = source = parsed[mark]
        named = {_module_of(*one) for one in source.imports}
        if not _is_own(name):
            named |= set(_homes(name, source.globals))
        left += named - seen
        seen |= named
    if file is not None and len(parsed) > before:
        with suppress(OSError):
            write(file, msgspec.json.encode(dict(list(parsed.items())[-_KEPT:])))
    return found


@cache
def _remembered(file: Path | None) -> dict[str, ModuleSource]:
    """Parsed files by the hash of their content, kept on disk between processes.

    Processes that write at the same time lose each other's additions, and parse once more.
    """
    with suppress(msgspec.DecodeError):
        content = file and read(file)
        return msgspec.json.decode(content or b"{}", type=dict[str, ModuleSource])
    return {}


def _module_of(module: str, name: str) -> str:
    """The module that an import leads to: the name from it, where that is one."""
    inner = f"{module}.{name}"
    return inner if name and _file(inner) is not None else module


def code_digest(text: bytes) -> str:
    """Hash of a file's syntax tree; of the text where there is none."""
    return _parsed(text).digest


def _parsed(text: bytes) -> ModuleSource:
    try:
        tree = syntax_tree(text)
    except (SyntaxError, ValueError):
        return ModuleSource(hashlib.sha256(text).hexdigest(), (), ())
    imports = tuple(sorted(set(_imports(tree))))
    names = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "kind"):
                setattr(node, field, None)
            elif isinstance(value, list):
                value[:] = [part for part in value if not _is_prose(part)]
    canonical = ast.dump(tree).encode("utf-8", "surrogatepass")
    return ModuleSource(hashlib.sha256(canonical).hexdigest(), imports, tuple(sorted(names)))


def _is_prose(node: Any) -> bool:
    """Tell whether it is a docstring, or runs for the type checker only."""
    match node:
        case ast.Expr(value=ast.Constant()) | ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=[]):
            return True
    return False


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Imports made when the file is imported: functions that import are not compiled."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, "") for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from ((module, alias.name) for alias in names)
            case ast.ImportFrom() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.expr():
                pass
            case _ if not _is_prose(node):
                yield from _imports(node)


def _is_own(module: str) -> bool:
    return module == PACKAGE or module.startswith(f"{PACKAGE}.")


def _compiles(module: str) -> bool:
    return module.startswith(_COMPILED)


@cache
def _own_file(module: str) -> Path | None:
    path = _FOLDER.joinpath(*module.split(".")[1:])
    files = path.with_suffix(".py"), path / "__init__.py"
    return next((file for file in files if file.is_file()), None)


def _file(module: str, *, wherever: bool = False) -> Path | None:
    if _is_own(module):
        return _own_file(module)
    file = getattr(sys.modules.get(module), "__file__", None)
    if not file or not file.endswith(".py"):
        return None
    path = Path(file).resolve()
    return path if wherever or not str(path).startswith(_FOREIGN) else None


def _values(module: str, names: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    loaded = vars(sys.modules[module]) if module in sys.modules else {}
    for name in names:
        if name in loaded and not name.startswith("__"):
            value = _frozen(loaded[name])
            if value is not None:
                yield name, value


def _homes(module: str, names: tuple[str, ...]) -> Iterator[str]:
    """Modules of the functions and classes that a loaded module reads, however it came to them."""
    loaded = vars(sys.modules[module]) if module in sys.modules else {}
    for name in names:
        value = loaded.get(name)
        home = value.__name__ if isinstance(value, ModuleType) else None
        home = home or getattr(value, "__module__", None)
        if isinstance(home, str):
            yield home


def _frozen(value: Any) -> bytes | None:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    if isinstance(value, tuple):
        parts = [_frozen(part) for part in value]
        return b"(" + b",".join(part or b"?" for part in parts) + b")"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        return repr(value).encode("utf-8", "surrogatepass")
    return None
