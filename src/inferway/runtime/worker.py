"""The process of a Python variant: it holds the user's class and answers one call after the other.

`inferway.runtime.python` starts this file as a script and imports from it how arrays lie in shared
memory. It needs NumPy and nothing else of Inferway, so that a worker starts in the time that NumPy
takes. What either side says is JSON or numbers: nothing is unpickled.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

# Calls are sent as one byte on the stream: how many, each of whose ends is told by the bell, or
# this, which is one whose end is told on the stream.
BY_STREAM: Final = b"\0"
# Messages of the bell: twice the number of a worker, and one more where it has answered.
RING: Final = struct.Struct("<I")
# First byte of an answer in shared memory: outputs, or why there are none.
ANSWERED: Final = 0
FAILED: Final = 1
# Memory of tensors from here on goes back to the system after a call.
LARGE_BYTES: Final = 4 * 1024**2
_LEAST_BYTES: Final = 64 * 1024
# Tensors begin where wide instructions of the processor read fastest. Before the first of them
# stand a byte, of inputs whether they have been read, of an answer what it is; of an answer the
# time that it took, s; and shapes.
_ALIGNMENT: Final = 64
_HEAD: Final = 8
_TOOK: Final = struct.Struct("<f")
_TOOK_AT: Final = 4
_LENGTH: Final = struct.Struct("<I")
_LONGEST_REASON: Final = 300
_LONGEST_TRACE: Final = 20_000
_PIECE: Final = 64 * 1024

Arrays = dict[str, NDArray[Any]]


class SharedMemory:
    """Memory that two processes see, by a file descriptor that both have; it grows as needed.

    Parameters
    ----------
    file
        Of `anonymous_file`.
    """

    def __init__(self, file: int) -> None:
        self.file = file
        self._mapped: mmap.mmap | None = None

    def grown(self, size: int) -> mmap.mmap:
        """Have room for so many bytes to be written."""
        if self._mapped is None or size > len(self._mapped):
            size = max(_LEAST_BYTES, 1 << (size - 1).bit_length())
            os.ftruncate(self.file, size)
            self._mapped = mmap.mmap(self.file, size)
        return self._mapped

    def seen(self, size: int) -> mmap.mmap:
        """Have so many bytes that the other process has written."""
        if self._mapped is None or size > len(self._mapped):
            self._mapped = mmap.mmap(self.file, os.fstat(self.file).st_size)
        return self._mapped

    def give_back(self, size: int) -> None:
        """Free the pages after a call of so many bytes, where they are many."""
        if size >= LARGE_BYTES and self._mapped is not None and hasattr(mmap, "MADV_REMOVE"):
            self._mapped.madvise(mmap.MADV_REMOVE)

    def close(self) -> None:
        """Let go of the memory and its file, at once where no array looks at it any more."""
        if self._mapped is not None:
            with suppress(BufferError):
                self._mapped.close()
        os.close(self.file)

    def take(self, at: int) -> None:
        """Say that what was written there has been looked at."""
        self.seen(at + 1)[at] = 1

    def is_taken(self, at: int) -> bool:
        """Tell whether what was written there has been looked at by whoever reads it."""
        return self._mapped is not None and self._mapped[at] != 0

    def set_took(self, at: int, seconds: float) -> None:
        """Say how long the answer there took."""
        _TOOK.pack_into(self.seen(at + _HEAD), at + _TOOK_AT, seconds)

    def took_s(self, at: int) -> float:
        """Tell how long the answer there took."""
        took: float = _TOOK.unpack_from(self.seen(at + _HEAD), at + _TOOK_AT)[0]
        return took

    def write_failure(self, failure: Mapping[str, str], at: int) -> int:
        """Say, in the place of outputs, why there are none; where what comes next begins."""
        text = json.dumps(failure).encode()
        begin = at + _HEAD + _LENGTH.size
        end = begin + len(text)
        room = self.grown(end)
        _LENGTH.pack_into(room, at + _HEAD, len(text))
        room[begin:end] = text
        room[at] = FAILED
        return end + -end % _ALIGNMENT

    def failure(self, at: int) -> tuple[dict[str, Any] | None, int]:
        """Tell why there are no outputs, None where they are there, and where the next begins.

        Raises
        ------
        ValueError, LookupError, struct.error
            When nothing of that kind lies there.
        """
        begin = at + _HEAD + _LENGTH.size
        room = self.seen(begin)
        if room[at] != FAILED:
            return None, at
        end = begin + _LENGTH.unpack_from(room, at + _HEAD)[0]
        return json.loads(self.seen(end)[begin:end]), end + -end % _ALIGNMENT


def anonymous_file() -> int:
    """Open a file without a name for shared memory; no process can make it shorter."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile(prefix="inferway-") as file:
            return os.dup(file.fileno())
    made = os.memfd_create("inferway", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    # A mapping of what has been cut off would end the server with a bus error.
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return made


class TensorLayout:
    """Places of the inputs, or the outputs, of a call, one behind the other from a place on.

    Parameters
    ----------
    tensors
        Names, NumPy's names of the types (``O`` for BYTES), and numbers of axes.
    """

    def __init__(self, tensors: Sequence[tuple[str, str, int]]) -> None:
        self.tensors = [(name, np.dtype(dtype), axes) for name, dtype, axes in tensors]
        # Of each tensor, its shape and its bytes.
        self._form = struct.Struct("<" + "".join("q" * (axes + 1) for _, _, axes in self.tensors))
        head = _HEAD + self._form.size
        self._first = head + -head % _ALIGNMENT

    def write(self, arrays: Sequence[NDArray[Any]], memory: SharedMemory, at: int) -> int:
        """Copy arrays into shared memory, with what it takes to find them; where they end."""
        words: list[int] = []
        parts: list[tuple[Any, int, int]] = []
        head, at = at, at + self._first
        for array, (name, dtype, _) in zip(arrays, self.tensors, strict=True):
            words += array.shape
            # Only what is contiguous can be copied as bytes.
            part: Any = array
            if dtype.hasobject:
                part = pack_elements(name, array)
            elif array.dtype is not dtype or not array.flags.c_contiguous:
                part = np.ascontiguousarray(array, dtype)
            size = len(part) if dtype.hasobject else part.nbytes
            words.append(size)
            parts.append((part, at, at + size))
            at += size + -size % _ALIGNMENT
        room = memory.grown(at)
        room[head] = 0
        self._form.pack_into(room, head + _HEAD, *words)
        for part, begin, end in parts:
            room[begin:end] = part
        return at

    def read(self, memory: SharedMemory, at: int, *, copy: bool) -> tuple[Arrays, int]:
        """Find arrays in shared memory, or copies of them, by name; and where they end.

        Raises
        ------
        ValueError, TypeError, struct.error
            When what stands before them does not describe what lies there.
        """
        head, at, word = at, at + self._first, 0
        seen = memory.seen(at)
        words = self._form.unpack_from(seen, head + _HEAD)
        arrays: Arrays = {}
        for name, dtype, axes in self.tensors:
            shape, size = words[word : word + axes], words[word + axes]
            word += axes + 1
            if at + size > len(seen):
                seen = memory.seen(at + size)
            if dtype.hasobject:
                arrays[name] = unpack_elements(seen[at : at + size], shape)
            else:
                array: NDArray[Any] = np.ndarray(shape, dtype, seen, at)
                arrays[name] = array.copy() if copy else array
            at += size + -size % _ALIGNMENT
        return arrays, at


def pack_elements(name: str, array: NDArray[Any]) -> bytes:
    """Write elements of BYTES one behind the other, each after its length.

    Raises
    ------
    TypeError
        When one is neither bytes nor text.
    """
    parts = []
    for value in array.ravel().tolist():
        if isinstance(value, str):
            value = value.encode()
        elif not isinstance(value, bytes | bytearray | memoryview):
            kind = type(value).__name__
            raise TypeError(
                f"predict returned output {name!r} with an element of type {kind}; "
                "expected bytes or str"
            )
        parts.append(_LENGTH.pack(len(value)))
        parts.append(value)
    return b"".join(parts)


def unpack_elements(packed: bytes, shape: Sequence[int]) -> NDArray[np.object_]:
    """Read elements of BYTES.

    Raises
    ------
    ValueError, struct.error
        When they are not as many as the shape says.
    """
    elements, at = [], 0
    while at < len(packed):
        (length,) = _LENGTH.unpack_from(packed, at)
        at += 4 + length
        elements.append(packed[at - length : at])
    flat = np.empty(len(elements), np.object_)
    flat[:] = elements
    return flat.reshape(shape)


def send_message(stream: socket.socket, message: Mapping[str, Any]) -> None:
    """Send what is no array, as JSON after its length."""
    text = json.dumps(message).encode()
    stream.sendall(_LENGTH.pack(len(text)) + text)


def receive_message(stream: socket.socket) -> dict[str, Any] | None:
    """Receive it; None when the other side has gone.

    Raises
    ------
    BlockingIOError
        When the time that the stream allows has passed.
    """
    begun = b""
    while len(begun) < 4 or len(begun) < 4 + _LENGTH.unpack_from(begun)[0]:
        more = stream.recv(_PIECE)
        if not more:
            return None
        begun += more
    message: dict[str, Any] = json.loads(begun[4:])
    return message


class RefusedError(Exception):
    """A class that cannot be used, or an answer that is none, with one sentence that says why."""

    def message(self) -> dict[str, str]:
        """Write it as the worker tells it."""
        return {"error": str(self), "trace": _trace(self.__cause__)}


def main(arguments: Sequence[str]) -> None:
    """Answer calls until the server has gone or wants no more."""
    control, lifeline, given, answered, bell = map(int, arguments)
    for file in (control, lifeline, given, answered, bell):
        os.set_inheritable(file, False)
    _end_with(lifeline)
    _speak_by_lines()
    stream = socket.socket(fileno=control)
    hello = receive_message(stream)
    if hello is None:
        return
    try:
        model = made(hello["file"], hello["class"])
        said = {side: declared(model, side) for side in ("inputs", "outputs")}
        predict = getattr(model, "predict", None)
        if not callable(predict):
            raise RefusedError("it has no method `predict(self, inputs)`")
    except RefusedError as error:
        send_message(stream, error.message())
        return
    send_message(stream, said)
    agreed = receive_message(stream)
    if agreed is None:
        return
    try:
        _guarded("warm_up", getattr(model, "warm_up", None))
    except RefusedError as error:
        send_message(stream, error.message())
        return
    send_message(stream, {})
    _answer_all(stream, bell, predict, agreed, SharedMemory(given), SharedMemory(answered))
    with suppress(RefusedError):
        _guarded("close", getattr(model, "close", None))


def _answer_all(
    stream: socket.socket,
    bell: int,
    predict: Callable[[Arrays], Any],
    agreed: Mapping[str, Any],
    given: SharedMemory,
    answered: SharedMemory,
) -> None:
    inputs = TensorLayout([(name, dtype, len(shape)) for name, dtype, shape in agreed["inputs"]])
    outputs = TensorLayout([(name, dtype, len(shape)) for name, dtype, shape in agreed["outputs"]])
    shapes = {name: tuple(shape[1:]) for name, _, shape in agreed["outputs"]}
    first, rung = agreed["inputs"][0][0], RING.pack(2 * agreed["number"] + 1)
    while way := stream.recv(1):
        start = end = 0
        for _ in range(way[0] or 1):
            begun_s, begin = time.perf_counter(), end
            given.take(start)
            arrays, start = inputs.read(given, start, copy=False)
            rows = len(arrays[first])
            try:
                answer = predict(arrays)
            except BaseException as error:
                said = f"predict raised {_said(error)}"
                end = answered.write_failure({"error": said, "trace": _trace(error)}, end)
            else:
                try:
                    end = outputs.write(checked(answer, outputs, shapes, rows), answered, end)
                except (RefusedError, TypeError) as error:
                    end = answered.write_failure({"error": str(error)}, end)
                except Exception as error:
                    unsent = f"what predict returned cannot be sent: {_said(error)}"
                    end = answered.write_failure({"error": unsent}, end)
            # The last call's arrays must not stay until the next one comes.
            del arrays
            answer = None
            answered.set_took(begin, time.perf_counter() - begun_s)
            if way == BY_STREAM:
                stream.send(way)
            else:
                os.write(bell, rung)


def checked(
    answer: Any, outputs: TensorLayout, shapes: Mapping[str, tuple[int, ...]], rows: int
) -> list[NDArray[Any]]:
    """Hold what `predict` has returned against the signature; the outputs in its order."""
    if not isinstance(answer, dict):
        raise RefusedError(
            f"predict returned {_kind(answer)}; expected a dict of arrays by output's name"
        )
    found = []
    for name, dtype, _ in outputs.tensors:
        if name not in answer:
            given = ", ".join(map(repr, answer)) or "nothing"
            raise RefusedError(f"predict returned no output {name!r}; it returned {given}"[:300])
        array = answer[name]
        if not isinstance(array, np.ndarray):
            raise RefusedError(
                f"predict returned output {name!r} as {_kind(array)}; expected a NumPy array"
            )
        # Texts of fixed length are BYTES in another form.
        fits = array.dtype.kind in "OSU" if dtype.hasobject else array.dtype == dtype
        if not fits:
            expected = "an array of bytes or str" if dtype.hasobject else dtype.name
            raise RefusedError(
                f"predict returned output {name!r} as {array.dtype.name}; expected {expected}, "
                "and nothing is cast silently"
            )
        shape = (rows, *shapes[name])
        if array.shape != shape and (
            len(array.shape) != len(shape)
            or any(want not in (-1, have) for want, have in zip(shape, array.shape, strict=True))
        ):
            raise RefusedError(
                f"predict returned output {name!r} of shape {list(array.shape)} to {rows} "
                f"row{'s' * (rows != 1)}; expected {list(shape)}"
            )
        found.append(array)
    return found


def made(file: str, name: str) -> Any:
    """Import a class's file, whose folder is first where modules are looked for, and make one."""
    folder, base = os.path.split(file)
    stem = base.removesuffix(".py")
    sys.path.insert(0, folder)
    # A file may be called as a module that others want to import.
    known = stem in sys.modules or stem in sys.stdlib_module_names
    module_name = f"own_{stem}" if known else stem
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        # From its source: what is compiled may be an older text of the same second and length.
        source = Path(file).read_bytes()
        exec(compile(source, file, "exec", dont_inherit=True), vars(module))
    except BaseException as error:
        raise RefusedError(f"its file does not load: {_said(error)}") from error
    found = getattr(module, name, None)
    if not isinstance(found, type):
        raise RefusedError(f"its file has no class {name!r}")
    try:
        return found()
    except BaseException as error:
        raise RefusedError(f"{name}() raised {_said(error)}") from error


def declared(model: Any, side: str) -> list[Any] | None:
    """Read what a class says that it takes, or gives; None where it says nothing."""
    said = getattr(model, side, None)
    if said is None:
        return None
    such = 'such as {"x": ("FP32", [-1, 64])}'
    if not isinstance(said, dict) or not said:
        raise RefusedError(
            f"its `{side}` is {_kind(said)}; expected {{name: (dtype, shape)}}, {such}"
        )
    tensors = []
    for name, one in said.items():
        wrong = RefusedError(f"its `{side}` says of {name!r}: {one!r:.80}; expected {such}")
        if not isinstance(name, str) or not isinstance(one, tuple | list) or len(one) != 2:
            raise wrong
        dtype, shape = one
        if not isinstance(shape, tuple | list) or not all(
            axis is None or (isinstance(axis, int) and not isinstance(axis, bool)) for axis in shape
        ):
            raise wrong
        if not isinstance(dtype, str):
            try:
                dtype = np.dtype(dtype).str
            except TypeError:
                raise wrong from None
        tensors.append([name, dtype, [-1 if axis is None else int(axis) for axis in shape]])
    return tensors


def _guarded(name: str, function: Callable[[], object] | None) -> None:
    """Call what the user's class may have."""
    if function is None:
        return
    try:
        function()
    except BaseException as error:
        if name == "close":  # nobody else will say it
            traceback.print_exception(error)
        raise RefusedError(f"{name} raised {_said(error)}") from error


def _said(error: BaseException) -> str:
    """Write an error as Python's last line does, in one line."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # of the user's own making
        text = ""
    kind = type(error).__name__
    return (f"{kind}: {text}" if text else kind)[:_LONGEST_REASON]


def _trace(error: BaseException | None) -> str:
    if error is None:
        return ""
    frames = error.__traceback__
    if frames is not None and frames.tb_next is not None:
        frames = frames.tb_next  # the first is here
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
    except Exception:
        return ""
    return text.rstrip()[-_LONGEST_TRACE:]


def _kind(value: Any) -> str:
    """Name the type of a value as a sentence does."""
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _end_with(lifeline: int) -> None:
    """End this process, and those that it has started, when the server has gone.

    Linux kills them all by itself, whatever the user's code does at the time; a thread does it
    elsewhere.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgid(0))
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
        poll = select.poll()
        poll.register(lifeline, select.POLLIN)
        if not poll.poll(0):
            return
        os._exit(1)  # it went before it was watched

    def watch() -> None:
        os.read(lifeline, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _speak_by_lines() -> None:
    """Have each printed line go out at once, those of C libraries as well."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    with suppress(Exception):  # no other C library has to know it
        import ctypes

        library = ctypes.CDLL(None)
        standard = ctypes.c_void_p.in_dll(library, "stdout")
        library.setvbuf(standard, None, 1, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
