"""Tensor data to arrays and back: JSON numbers, raw little-endian bytes, length-prefixed BYTES.

Source: Open Inference Protocol v2 and its binary tensor extension.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

import msgspec
import numpy as np
import simdjson
from numpy.typing import NDArray

from inferway.protocol.schema import DTYPES, RefusalError
from inferway.unreadable import UNREADABLE, fault

Raw = bytes | bytearray | memoryview
T = TypeVar("T")


class Wording(NamedTuple):
    """Sentences for what is wrong with a tensor's data, of an input or of an output.

    `lenient` reading takes lists nested in any way, null for NaN, and any byte but 0 for true.
    """

    error: Callable[[str], ValueError]
    lenient: bool
    sentences: Mapping[str, str]

    def wrong(self, what: str, **values: Any) -> ValueError:
        """Make the error that says what is wrong."""
        return self.error(self.sentences[what].format(**values))


INPUT: Final = Wording(
    lambda reason: RefusalError(400, reason),
    lenient=False,
    sentences={
        "kind": "the data of input {name!r} is not {datatype}: {fault}",
        "count": "input {name!r} has {given} elements, its shape {shape} says {size}",
        "range": "the data of input {name!r} is out of the range of {datatype}",
        "size": "input {name!r} has {given} bytes of binary data; {datatype} of shape {shape} has "
        "{size}",
        "cut": "element {given} of input {name!r} is longer than its binary data",
        "ended": "the binary data of input {name!r} ends at element {given} of {size}",
        "left": "the binary data of input {name!r} goes on after element {size}",
        "depth": "the data of input {name!r} is nested {depth} deep; expected a flat list or the "
        "shape {shape}",
        "shape": "the data of input {name!r} is not of its shape {shape}",
        "form": "the data of input {name!r} is not {datatype}, or not of its shape {shape}",
        "flag": "the binary data of input {name!r} holds a BOOL that is not 0 or 1",
    },
)
_WIRE: Final = {name: dtype.newbyteorder("<") for name, dtype in DTYPES.items()}
_ELEMENT: Final[dict[str, type]] = {
    "BOOL": bool, "FP16": float, "FP32": float, "FP64": float, "BYTES": str,
}  # fmt: skip
_FORMAT: Final = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b",
    "INT16": "h", "INT32": "i", "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
_LENGTH: Final = struct.Struct("<I")
# What simdjson calls the numbers that it gives as an array, and NumPy.
_NUMBERS: Final[dict[str, tuple[Literal["d", "i", "u"], str]]] = {
    name: ("d", "<f8") if name.startswith("FP") else ("u", "<u8") if "U" in name else ("i", "<i8")
    for name in DTYPES
    if name not in ("BOOL", "BYTES")
}
# Longer JSON, and longer lists in it, are read piece by piece.
LARGE: Final = 128 * 1024
# Shorter lists are read element by element: fewer libraries take part, whose code has to come into
# the processor's caches for each request.
_BRIEF: Final = 1024
_PIECE: Final = 64 * 1024
# Elements that are written in one step: a millisecond.
_PART: Final = 8 * 1024
_CONTENT: Final = bytes(set(range(256)) - set(b'[],"'))
# A thread's own: what it has read is lost when it reads on.
_parser: Final = threading.local()


def from_json(
    name: str,
    datatype: str,
    shape: tuple[int, ...],
    data: msgspec.Raw | bytes,
    wording: Wording = INPUT,
) -> NDArray[Any]:
    """Decode a JSON array, flat or nested as the shape says; the name is for messages.

    A `RefusalError` of an input, or what the wording says, where elements have another type, are
    out of the datatype's range, or are too many or few.
    """
    text, size, lenient = bytes(data), math.prod(shape), wording.lenient
    numbers = _flat_numbers(datatype, text)
    if numbers is not None and numbers.size == size:
        return numbers.reshape(shape)
    depth = _depth(text)
    element: Any = _ELEMENT.get(datatype, int)
    if not lenient:
        _check_form(name, datatype, shape, text)
    elif element is float:
        element = float | None  # JSON has no NaN and no infinities; servers write null
    about = {"name": name, "datatype": datatype, "shape": [*shape], "size": size}
    try:
        values = _decoder(element, max(1, depth))(text)
    except UNREADABLE as error:
        raise wording.wrong("kind", fault=fault(error), **about) from None
    for level in range(1, depth):
        if not lenient and any(len(inner) != shape[level] for inner in values):
            raise wording.wrong("shape", **about)
        values = list(chain.from_iterable(values))
    if len(values) != size:
        raise wording.wrong("count" if lenient else "shape", given=len(values), **about)
    if datatype == "BYTES":
        return objects([value.encode() for value in values]).reshape(shape)
    if lenient and None in values:
        values = [math.nan if value is None else value for value in values]
    try:
        # Half the time of np.array, and it refuses what is out of range.
        packed = struct.pack(f"<{size}{_FORMAT[datatype]}", *values)
    except (OverflowError, struct.error):
        raise wording.wrong("range", **about) from None
    return np.frombuffer(packed, _WIRE[datatype]).reshape(shape)


def long_from_json(
    name: str, datatype: str, shape: tuple[int, ...], text: bytes
) -> Generator[int, None, NDArray[Any]]:
    """Decode a long valid list of any but BYTES as `from_json` does, in steps; yields zeros."""
    # Brackets and commas are compared with those of the shape, and the rest is one flat list.
    size, depth, frame = math.prod(shape), _check_form(name, datatype, shape, text), b""
    for count in reversed(shape if depth > 1 else (size,)):
        frame = b"[%s]" % ((frame + b",") * count)[:-1]
    array = np.empty(size, _WIRE[datatype])
    start = seen = done = 0
    while start < len(text):
        cut = text.find(b",", start + _PIECE)
        piece = text[start:cut] if cut >= 0 else text[start:]
        part = piece.translate(None, _CONTENT)
        if not frame.startswith(part, seen):
            raise INPUT.wrong("form", name=name, datatype=datatype, shape=[*shape])
        seen += len(part) + 1
        count = part.count(b",") + 1
        flat = b"[%s]" % piece.translate(None, b"[]")
        array[done : done + count] = from_json(name, datatype, (count,), flat)
        done += count
        start += len(piece) + 1
        yield 0
    if done != size:
        raise INPUT.wrong("shape", name=name, shape=[*shape])
    return array.reshape(shape)


class LazyTensor(msgspec.Struct, frozen=True, gc=False):
    """Data of an input in JSON that nobody needs before the model does."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: msgspec.Raw

    def decoded(self) -> NDArray[Any]:
        """Decode it; malformed data is a `RefusalError`."""
        text, given = bytes(self.data), (self.name, self.datatype, self.shape)
        if len(text) > LARGE and self.datatype != "BYTES":
            return finished(long_from_json(*given, text))
        return from_json(*given, text)


def from_bytes(
    name: str,
    datatype: str,
    shape: tuple[int, ...],
    data: Raw,
    start: int,
    size: int,
    wording: Wording = INPUT,
) -> NDArray[Any]:
    """Read an array from `size` raw bytes of `data` at `start`.

    A `RefusalError` of an input, or what the wording says, where the bytes are not as many as shape
    and datatype say, or no BOOL or BYTES.
    """
    count = math.prod(shape)
    if datatype == "BYTES":
        return objects(_strings(name, data, start, start + size, count, wording)).reshape(shape)
    dtype = _WIRE[datatype]
    if size != (needed := count * dtype.itemsize):
        about = {"name": name, "datatype": datatype, "shape": [*shape]}
        raise wording.wrong("size", size=needed, given=size, **about)
    if datatype == "BOOL":
        flags = np.frombuffer(data, np.uint8, count, start)
        if wording.lenient:
            return flags.astype(np.bool_).reshape(shape)
        if flags.max() > 1:
            raise wording.wrong("flag", name=name)
        return flags.view(np.bool_).reshape(shape)
    array = np.frombuffer(data, dtype, count, start)
    if not array.flags.aligned:
        array = array.copy()  # models read whole words
    return array.reshape(shape)


def _strings(
    name: str, data: Raw, start: int, end: int, count: int, wording: Wording
) -> list[bytes]:
    """Read elements of BYTES, each after its length."""
    elements = []
    for i in range(count):
        fitting = start + 4 <= end
        length = _LENGTH.unpack_from(data, start)[0] if fitting else 0
        start += 4 + length
        if not fitting or start > end:
            raise wording.wrong("cut" if fitting else "ended", name=name, given=i, size=count)
        elements.append(bytes(data[start - length : start]))
    if start != end:
        raise wording.wrong("left", name=name, size=count)
    return elements


def objects(elements: Sequence[bytes]) -> NDArray[np.object_]:
    """Make an array of elements of BYTES."""
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


def to_json(name: str, datatype: str, array: NDArray[Any]) -> list[Any]:
    """List the elements of an output, flat; NaN and infinities become null.

    A BYTES element that is not UTF-8 is a `RefusalError`.
    """
    try:
        return listed(datatype, array)
    except UnicodeDecodeError:
        raise RefusalError(
            400, f"output {name!r} holds bytes that are not UTF-8; request it as binary data"
        ) from None


def listed(datatype: str, array: NDArray[Any]) -> list[Any]:
    """List the elements of an array, flat; BYTES must be UTF-8."""
    values: list[Any] = array.ravel().tolist()
    if datatype != "BYTES":
        return values
    return [value if isinstance(value, str) else bytes(value).decode() for value in values]


def long_to_json(array: NDArray[Any]) -> Generator[int, None, msgspec.Raw]:
    """Write the elements of a large output of numbers, step by step; yields zeros."""
    flat, text = array.ravel(), bytearray()
    for start in range(0, flat.size, _PART):
        text += b"," if start else b"["
        text += msgspec.json.encode(flat[start : start + _PART].tolist())[1:-1]
        yield 0
    return msgspec.Raw(bytes(text + b"]"))


def to_bytes(datatype: str, array: NDArray[Any]) -> bytes:
    """Raw bytes of an output, little-endian, row by row."""
    if datatype != "BYTES":
        return array.astype(_WIRE[datatype], copy=False).tobytes()
    elements = map(raw, array.ravel().tolist())
    return b"".join(_LENGTH.pack(len(element)) + element for element in elements)


def raw(value: Any) -> bytes:
    """Bytes of an element of BYTES, which models may give as text."""
    return value.encode() if isinstance(value, str) else bytes(value)


def _check_form(name: str, datatype: str, shape: tuple[int, ...], text: bytes) -> int:
    """Check a list before anything is built, so that a huge one is cheap to refuse; its depth."""
    size, commas, depth = math.prod(shape), text.count(b","), _depth(text)
    if datatype != "BYTES" and commas != size - 1:
        given = commas + 1 if text.strip(b"[] \t\r\n") else 0
        raise INPUT.wrong("count", name=name, given=given, shape=[*shape], size=size)
    if depth not in (1, len(shape)):
        raise INPUT.wrong("depth", name=name, depth=depth, shape=[*shape])
    return depth


def _flat_numbers(datatype: str, text: bytes) -> NDArray[Any] | None:
    """Read a flat list of numbers; None where it is none, or they do not fit the datatype.

    No Python object is made for each: half the time for 1024 of them. The longer way says why one
    does not pass.
    """
    if datatype not in _NUMBERS or text.count(b"[") != 1:
        return None
    kind, wide = _NUMBERS[datatype]
    if len(text) < _BRIEF:
        try:
            elements = _decoder(float if kind == "d" else int, 1)(text)
            packed = struct.pack(f"<{len(elements)}{_FORMAT[datatype]}", *elements)
        except (*UNREADABLE, OverflowError, struct.error):
            return None
        return np.frombuffer(packed, _WIRE[datatype])
    try:
        if not hasattr(_parser, "parse"):
            # It keeps room for the longest text that it has read; longer ones take the other way.
            _parser.parse = simdjson.Parser(max_capacity=1024**2).parse
        numbers: Any = _parser.parse(text)
        values = np.frombuffer(numbers.as_buffer(of_type=kind), wide)
        if kind == "d":
            with np.errstate(over="raise"):
                return values.astype(_WIRE[datatype])
    except (ValueError, TypeError, RuntimeError, FloatingPointError):
        return None  # RuntimeError: an integer of more than 64 bits
    narrow = values.astype(_WIRE[datatype])
    return narrow if np.array_equal(narrow, values) else None


def _depth(text: bytes) -> int:
    head = text[:1024]
    return head.count(b"[", 0, len(head) - len(head.lstrip(b"[ \t\r\n")))


@lru_cache(maxsize=256)
def _decoder(element: Any, depth: int) -> Callable[[bytes], Any]:
    for _ in range(depth):
        element = list[element]
    return msgspec.json.Decoder(element).decode


def finished(steps: Generator[int, None, T]) -> T:
    """Take all steps of a work at once, and return what comes of it."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("T", end.value)
