"""A worker as the server sees it: its process, the way to it, what it prints and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np

from inferway.protocol import DTYPES, Signature, Tensor
from inferway.protocol.schema import datatype_of
from inferway.runtime import worker as process
from inferway.runtime.artifact import ArtifactError
from inferway.runtime.bell import Bell
from inferway.runtime.runtime import Arrays
from inferway.runtime.server import Fault, RemoteError

# Longest wait for one answer, unless told otherwise.
TIMEOUT_S: Final = 30.0
# Longest time in which a worker is made: it may load gigabytes.
START_S: Final = 300.0
# A worker that is to end may close its model for so long.
CLOSE_S: Final = 5.0
# What a process has printed last is read for so long.
_LAST_WORDS_S: Final = 1.0
_LONGEST_LINE: Final = 2000
_LINES_PER_S: Final = 200
_LEFT_OUT: Final = "printed lines were left out"
_PIECE: Final = 64 * 1024
# Keys of the server and of commands, which no model needs.
_SECRET: Final = ("INFERWAY_KEYS", "INFERWAY_KEY")
_SCRIPT: Final = str(Path(process.__file__))
_NUMBERS: Final = count(1)


class UnsaidSignatureError(ArtifactError):
    """A class that does not say what it takes and gives, where nothing else says it either."""


class WorkerError(RemoteError):
    """A call to a worker that gave no answer."""


@dataclass(frozen=True)
class PythonCode:
    """A class and how its workers are run.

    Attributes
    ----------
    path
        The file that defines the class.
    name
        Of the class.
    folder
        The workers' working directory.
    timeout_s
        Longest time of a call.
    memory_bytes
        Resident memory above which a worker is replaced between two calls; None for no limit.
    environment
        Variables that the workers have besides those of this process, whose keys they have not.
    """

    path: Path
    name: str
    folder: Path = field(default_factory=Path)
    timeout_s: float = TIMEOUT_S
    memory_bytes: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"


class WorkerProcess:
    """One process with a class in it, and this process's end of what joins them.

    Parameters
    ----------
    code
        The class.
    log
        Told what the process prints and what the class raises.
    bell
        Where the process tells of the end of a call that an event loop began.

    Attributes
    ----------
    number
        Of this process alone, on the bell.
    over
        Whether it takes no more calls.
    retired, surplus
        Whether its end is no crash: another one takes its place, or none does.
    proven
        Whether it has given outputs.
    ending
        How it ended, once it has.
    took_s
        How long the process took over the last call that it answered.
    looked_s
        When somebody last looked at its memory.

    Raises
    ------
    OSError, RuntimeError, ValueError
        When no process, or no thread that hears it, can be started; nothing of it is left.
    """

    signature: Signature

    def __init__(self, code: PythonCode, log: Any, bell: Bell) -> None:
        self.code, self._log, self._bell = code, log, bell
        self.number = next(_NUMBERS)
        self.over = self.retired = self.surplus = self.proven = False
        # Where the inputs of each call under way begin, and end; where the next answer begins.
        self._begins: list[int] = []
        self._given_bytes = self._answer_at = 0
        self.ending, self.looked_s, self.took_s = "", 0.0, 0.0
        self._late = self._killed = False
        self._gone = threading.Event()
        # Held during a call, whose files must stay open, and while the process id is its own.
        self._busy, self._mine = threading.Lock(), threading.Lock()
        self._timer: threading.Timer | None = None
        with ExitStack() as undo, ExitStack() as handed_on:
            self._given, self._answered = (
                process.SharedMemory(_closed_by(undo, process.anonymous_file())) for _ in range(2)
            )
            self._stream, theirs = socket.socketpair()
            undo.callback(self._stream.close)
            handed_on.callback(theirs.close)
            lifeline, self._lifeline = os.pipe()
            _closed_by(handed_on, lifeline)
            _closed_by(undo, self._lifeline)
            printed, output = os.pipe()
            _closed_by(undo, printed)
            _closed_by(handed_on, output)
            passed = (theirs.fileno(), lifeline, self._given.file, self._answered.file, bell.file)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-X", "faulthandler", _SCRIPT, *map(str, passed)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=code.folder,
                env=_environment(code),
                pass_fds=passed,
                start_new_session=True,  # Ctrl-C is the server's alone
            )
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self.pid = self._process.pid
            self._reader = threading.Thread(
                target=_hear, args=(printed, log, self.pid), name=f"prints {self.pid}", daemon=True
            )
            self._reader.start()
            undo.pop_all()

    def begin(self, expected: Signature | None) -> None:
        """Have the class made, and agree on its signature.

        Raises
        ------
        ArtifactError
            When it cannot be used.
        """
        deadline_s = time.monotonic() + START_S
        with suppress(BrokenPipeError):  # it has ended: the reply says how
            process.send_message(
                self._stream, {"file": str(self.code.path), "class": self.code.name}
            )
        declared = self._reply(deadline_s)
        self.signature = signature = _agreed(self.code, declared, expected)
        inputs, outputs = (
            [
                (one.name, "O" if one.datatype == "BYTES" else one.dtype.str, one.shape)
                for one in side
            ]
            for side in (signature.inputs, signature.outputs)
        )
        self._inputs, self._outputs = (
            process.TensorLayout([(name, dtype, len(shape)) for name, dtype, shape in side])
            for side in (inputs, outputs)
        )
        with suppress(BrokenPipeError):
            process.send_message(
                self._stream, {"inputs": inputs, "outputs": outputs, "number": self.number}
            )
        self._reply(deadline_s)
        self._allow(self.code.timeout_s)

    def _reply(self, deadline_s: float) -> dict[str, Any]:
        self._allow(max(1e-3, deadline_s - time.monotonic()))
        try:
            reply = process.receive_message(self._stream)
        except BlockingIOError:
            raise ArtifactError(f"{self.code}: it did not start within {START_S:g} s") from None
        except OSError:
            reply = None
        if reply is None:
            self._expire()
            self.wait()
            raise ArtifactError(f"{self.code}: {self.ending} before it was ready")
        if "error" in reply:
            if trace := reply.get("trace"):
                self._log.error("the class cannot be used", traceback=trace)
            raise ArtifactError(f"{self.code}: {reply['error']}")
        return reply

    def _allow(self, seconds: float) -> None:
        """Have the stream wait for so long at most: the kernel's own time limit costs no call."""
        whole = int(seconds)
        limit = struct.pack("ll", whole, max(1, int((seconds - whole) * 1e6)))
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def ask(self, arrays: list[Any]) -> Arrays | None:
        """Have one call answered; None where the process ended before it took it.

        Raises
        ------
        WorkerError
            When there is no answer.
        """
        if not self.send([arrays], process.BY_STREAM):
            return None
        try:
            try:
                answered = self._stream.recv(1) != b""
            except BlockingIOError:
                raise self.late() from None
            except OSError:
                answered = False
            return self.result(answered=answered)
        finally:
            self.end()

    def send(self, calls: Sequence[list[Any]], way: bytes) -> bool:
        """Begin calls, whose ends are told the way that is said; False where none is begun.

        Then `result` tells what came of each, in their order, and `end` is called in any case.
        """
        self._busy.acquire()
        try:
            if not self._gone.is_set():
                self._begins, at = [], 0
                for arrays in calls:
                    self._begins.append(at)
                    at = self._inputs.write(arrays, self._given, at)
                self._given_bytes, self._answer_at = at, 0
                self._stream.send(way)
                return True
        except OSError:
            self.over = True
        except BaseException:
            self._busy.release()
            raise
        self._busy.release()
        return False

    def result(self, *, answered: bool) -> Arrays | None:
        """Tell what came of the next call, which has been answered, or whose process ends.

        None where that has not taken it.

        Raises
        ------
        WorkerError
            When there is no answer.
        """
        begin = self._begins.pop(0)
        if not answered:
            self.over = True
            self._gone.wait(CLOSE_S)
            if not self._given.is_taken(begin):
                return None
            raise WorkerError(Fault.BROKEN, self.ending or "its worker has gone")
        try:
            self.took_s = self._answered.took_s(self._answer_at)
            failure, self._answer_at = self._answered.failure(self._answer_at)
            if failure is None:
                outputs, self._answer_at = self._outputs.read(
                    self._answered, self._answer_at, copy=True
                )
                self.proven = True
                return outputs
            reason = str(failure["error"])
        except (ValueError, TypeError, LookupError, struct.error) as error:
            self.kill()
            raise WorkerError(Fault.BROKEN, f"its worker answered nonsense: {error}") from None
        if trace := failure.get("trace"):
            self._log.error("predict raised an exception", pid=self.pid, traceback=trace)
        raise WorkerError(Fault.BROKEN, reason)

    def end(self) -> None:
        """Leave calls behind: what they were given, and what they have answered, may go."""
        self._given.give_back(self._given_bytes)
        self._answered.give_back(self._answer_at)
        self._busy.release()

    def late(self) -> WorkerError:
        """Kill the process because the next call takes too long, and say so."""
        self._begins.pop(0)
        self._late = True
        self.kill()
        return WorkerError(
            Fault.LATE,
            f"predict took longer than its `timeout`, {self.code.timeout_s:g} s, so its worker "
            "was killed",
        )

    def resident_bytes(self) -> int:
        """Tell how much memory the process takes; 0 where that cannot be seen."""
        import psutil

        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def finish(self) -> None:
        """Have it end after the call that it has; it is killed if it takes too long after that."""
        self.over = True
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_WR)
        self._expire(CLOSE_S + (self.code.timeout_s if self._busy.locked() else 0.0))

    def _expire(self, seconds: float = CLOSE_S) -> None:
        """Have it killed if it has not ended soon."""
        timer = threading.Timer(seconds, self.kill)
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:  # no thread can be started
            self.kill()
        else:
            self._timer = timer

    def kill(self) -> None:
        """End it, and whatever it has started, now."""
        self.over = True
        with self._mine:
            if not self._gone.is_set():
                self._killed = True
                self._kill_group()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for its end, see to it that nothing of it is left, and remember how it ended."""
        if self._gone.is_set():
            return
        if hasattr(os, "waitid"):  # which leaves the process id to it
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        self.over = True
        with self._mine:
            self._kill_group()  # what it has started
            code = self._process.wait()
            if self._late:
                self.ending = "predict took too long"
            elif self._killed and code == -signal.SIGKILL:
                self.ending = "its worker was to end and was killed"
            else:
                self.ending = f"its worker {_ended(code)}"
            self._gone.set()
        self._bell.ring(self.number)
        if self._timer is not None:
            self._timer.cancel()
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)  # whoever waits for an answer need not
        with self._busy:
            self._let_go()
        self._reader.join(_LAST_WORDS_S)

    def _let_go(self) -> None:
        self._stream.close()
        os.close(self._lifeline)
        self._given.close()
        self._answered.close()


def _closed_by(stack: ExitStack, file: int) -> int:
    stack.callback(os.close, file)
    return file


def _environment(code: PythonCode) -> dict[str, str]:
    """Tell a worker's variables: the keys to this server are none unless the file names them."""
    ours = {name: value for name, value in os.environ.items() if name not in _SECRET}
    # One thread each, as of our own models, unless somebody says otherwise.
    return {"OMP_NUM_THREADS": "1", **ours, **code.environment}


def _hear(file: int, log: Any, pid: int) -> None:
    """Log what a worker prints, line by line, until nobody can print there any more.

    Long lines are cut, and of many in a second the rest is counted.
    """
    rest, second, logged, left_out = b"", 0, 0, 0
    try:
        while piece := os.read(file, _PIECE):
            *lines, rest = (rest + piece).split(b"\n")
            rest = rest[: _LONGEST_LINE + 1]
            if (now := int(time.monotonic())) != second:
                if left_out:
                    log.warning(_LEFT_OUT, pid=pid, lines=left_out)
                second, logged, left_out = now, 0, 0
            room = _LINES_PER_S - logged
            for line in lines[:room]:
                log.info("printed", pid=pid, line=_cut(line))
            logged += len(lines[:room])
            left_out += len(lines[room:])
        if rest:
            log.info("printed", pid=pid, line=_cut(rest))
        if left_out:
            log.warning(_LEFT_OUT, pid=pid, lines=left_out)
    finally:
        os.close(file)


def _cut(line: bytes) -> str:
    text = line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip("\r")
    return text + "..." if len(line) > _LONGEST_LINE else text


def _ended(code: int) -> str:
    """Say how a process ended."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", as the system does where memory runs out" if -code == signal.SIGKILL else ""
    return f"was ended by {name}{hint}"


def signature_of_class(model: type, expected: Signature | None = None) -> Signature:
    """Read from a class of this process what it takes and gives, as from a worker's.

    Raises
    ------
    ArtifactError
        When what it says is no signature, or it says none and none is expected.
    """
    name = f"class {model.__name__}"
    try:
        declared = {side: process.declared(model, side) for side in ("inputs", "outputs")}
    except process.RefusedError as error:
        raise ArtifactError(f"{name}: {error}") from None
    return _agreed(name, declared, expected)


def _agreed(code: object, declared: Mapping[str, Any], expected: Signature | None) -> Signature:
    """Make the signature of what a class says, in the order that is expected where it is that."""
    sides = {side: declared[side] for side in ("inputs", "outputs")}
    lacking = [side for side, said in sides.items() if said is None]
    if len(lacking) == 2:
        if expected is None:
            raise UnsaidSignatureError(
                f"{code} has no `inputs` and `outputs`, and nothing else says what the task takes "
                "and gives; write them into the class, such as "
                'inputs = {"x": ("FP32", [-1, 64])}'
            )
        return expected
    if lacking:
        raise ArtifactError(f"{code} has no `{lacking[0]}`; it needs both or neither")
    inputs, outputs = (
        tuple(_tensor(f"{code}: its `{side}` says of", *one) for one in said)
        for side, said in sides.items()
    )
    signature = Signature(inputs, outputs)
    if expected is None or _tensors(signature) != _tensors(expected):
        return signature
    return expected  # tensors go by name, so that the order of the class says nothing


def _tensors(signature: Signature) -> tuple[set[Tensor], set[Tensor]]:
    return {*signature.inputs}, {*signature.outputs}


def _tensor(says: str, name: str, dtype: str, shape: list[int]) -> Tensor:
    if dtype not in DTYPES:
        try:
            known = np.dtype(dtype)
            named = "BYTES" if known.kind in "OSU" else datatype_of(known.newbyteorder("="))
        except (TypeError, KeyError):
            raise ArtifactError(
                f"{says} {name!r} the type {dtype!r:.40}; expected one of {', '.join(DTYPES)}, or "
                "NumPy's name of one"
            ) from None
    else:
        named = dtype
    if not shape or shape[0] != -1:
        raise ArtifactError(
            f"{says} {name!r} the shape {shape}, whose first axis is not the batch; write "
            f"{[-1, *shape]} if that is the shape of a row"
        )
    if any(axis < 1 and axis != -1 for axis in shape):
        raise ArtifactError(
            f"{says} {name!r} the shape {shape}; an axis is 1 or more long, or -1 for any length"
        )
    return Tensor(name, named, tuple(shape))
