"""A model that is the user's own Python class, run in processes of its own: its workers.

A worker is killed and started anew without the server, or another worker, losing anything. Arrays
go through memory that both see; a call is one small message each way.
"""

from __future__ import annotations

import atexit
import hashlib
import queue
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from inferway.protocol import Signature
from inferway.runtime.artifact import ArtifactError
from inferway.runtime.runtime import Arrays
from inferway.runtime.server import Fault
from inferway.runtime.worker_calls import Ended, WorkerCalls
from inferway.runtime.worker_process import CLOSE_S, PythonCode, WorkerError, WorkerProcess

# Longest wait of a call for a worker that is being started.
_WAIT_S: Final = 30.0
# How often it is seen how much memory a worker takes.
_LOOK_S: Final = 0.25
# The first restart after a crash is at once; then the wait doubles.
_FIRST_DELAY_S: Final = 0.25
_LONGEST_DELAY_S: Final = 30.0


def digest_of_files(files: Iterable[Path]) -> str:
    """Hash the content of files, in their order, into one digest.

    Raises
    ------
    OSError
        When one cannot be read.
    """
    whole = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return f"sha256:{whole.hexdigest()}"


class PythonRuntime:
    """A Python class in one worker or more; each call takes one that is free.

    A worker that dies, or is killed because a call took too long, costs the request in its hands
    and no other: a new one takes its place, after repeated crashes with growing delay.

    Parameters
    ----------
    code
        The class.
    signature
        Of the task's other variants; None where it is not known.
    name
        Of the variant, for the console where there is no log.
    log
        Told what the class prints, raises, and how its workers end; None writes that to standard
        error.

    Attributes
    ----------
    signature
        Inputs and outputs.
    restarts
        How many workers were started in the place of another.

    Raises
    ------
    UnsaidSignatureError
        When neither the class nor anything else says the signature.
    ArtifactError
        When the class cannot be loaded; one sentence says why.
    """

    backend: Final = "python"

    def __init__(
        self,
        code: PythonCode,
        *,
        signature: Signature | None = None,
        name: str = "",
        log: Any = None,
    ) -> None:
        self.code, self._log = code, log or _Console(name or code.path.name)
        self.warmed_s: float | None = None
        self.restarts = 0
        self._closed = threading.Event()
        self._lock = threading.Lock()
        # None wakes those who wait where there is no worker to wait for.
        self._free: queue.SimpleQueue[WorkerProcess | None] = queue.SimpleQueue()
        self._workers: list[WorkerProcess] = []
        # Places that a worker has, or will have; those that are to be given up; failed in a row.
        self._places, self._surplus, self._crashes = 1, 0, 0
        # Why no worker is there soon; empty where one is, or is being started.
        self._down = ""
        self._threads: list[threading.Thread] = []
        try:
            self._calls = WorkerCalls(code.timeout_s, self._give_back)
        except OSError as error:
            raise _unstarted(code, error) from error
        try:
            first = self._started(signature)
            self.signature = first.signature
            self._names = [tensor.name for tensor in self.signature.inputs]
            self._add(first)
        except BaseException:
            self._calls.close()
            raise
        _OPEN.add(self)

    @property
    def workers(self) -> list[int]:
        """Process ids of the workers that live."""
        return [worker.pid for worker in list(self._workers)]

    def reserve(self, count: int) -> None:
        """Have so many workers, each ready; those that are too many end when they are free.

        Raises
        ------
        ArtifactError
            When one cannot be started.
        """
        with self._lock:
            missing = count - self._places
            self._places = count
        if missing < 0:
            self._surplus -= missing
            for _ in range(-missing):
                with suppress(queue.Empty):
                    if (worker := self._free.get_nowait()) is not None:
                        self._give_back(worker)
        failures: list[ArtifactError] = []

        def start() -> None:
            try:
                self._add(self._started_again())
            except ArtifactError as error:
                failures.append(error)

        starting = []
        for _ in range(missing):
            thread = threading.Thread(target=start, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads: one after the other
                start()
            else:
                starting.append(thread)
        for thread in starting:
            thread.join()
        if failures:
            with self._lock:
                self._places -= len(failures)
            raise failures[0]

    def run(self, inputs: Arrays) -> Arrays:
        """Answer one batch; see `inferway.runtime.Runtime.run`.

        Raises
        ------
        WorkerError
            When a worker failed at it, took too long, or there is none.
        """
        arrays = [inputs[name] for name in self._names]
        until_s = 0.0
        while True:
            worker, until_s = self._taken(until_s)
            try:
                outputs = worker.ask(arrays)
            finally:
                self._give_back(worker)
            if outputs is not None:
                return outputs

    def ask(self, batches: Sequence[Arrays], ended: Ended) -> bool:
        """Have a worker answer batches, one after the other, without a thread that waits for them.

        An event loop calls this, for one runtime always the same.

        Parameters
        ----------
        batches
            Each as the inputs of `run`, 255 at most.
        ended
            Called on the loop for each batch in its order, after this has returned, with the
            outputs or what went wrong, and the time that the worker took, s. With neither where the
            worker ended before it took the batch, which may be run again then.

        Returns
        -------
        bool
            False where no worker is free now: `run` waits for one.
        """
        try:
            worker = self._free.get_nowait()
        except queue.Empty:
            return False
        if worker is None:  # it is to wake a thread
            self._free.put(None)
            return False
        if worker.over:
            return False
        begun, names = False, self._names
        try:
            calls = [[inputs[name] for name in names] for inputs in batches]
            begun = self._calls.begin(worker, calls, ended)
        finally:
            if not begun:
                self._give_back(worker)
        return begun

    def close(self) -> None:
        """End the workers, each after the call that it has; returns at once."""
        if self._closed.is_set():
            return
        self._closed.set()
        for worker in list(self._workers):
            worker.finish()
        self._free.put(None)
        self._calls.close()

    def kill(self) -> None:
        """End the workers now, whatever they do, as well as `close`; any thread may call this."""
        self.close()
        for worker in list(self._workers):
            worker.kill()

    def wait(self) -> None:
        """Wait until the workers of a closed runtime have gone: some seconds at most."""
        for thread in self._threads:
            thread.join(CLOSE_S + 1.0)

    def _taken(self, until_s: float) -> tuple[WorkerProcess, float]:
        """Take a worker that lives, and until when its successor may be waited for."""
        while True:
            if self._closed.is_set():
                self._free.put(None)  # for the next who waits
                raise RuntimeError("the runtime is closed; load the model again to run it")
            try:
                worker = self._free.get_nowait()
            except queue.Empty:
                if self._down and not self._workers:
                    self._free.put(None)  # for the next who waits
                    raise WorkerError(Fault.UNREACHABLE, self._down, unserved=True) from None
                now_s = time.monotonic()
                until_s = until_s or now_s + _WAIT_S
                try:
                    worker = self._free.get(timeout=max(0.0, until_s - now_s))
                except queue.Empty:
                    said = f"no worker has been free for {_WAIT_S:g} s"
                    raise WorkerError(Fault.UNAVAILABLE, said, unserved=True) from None
            if worker is not None and not worker.over:
                return worker, until_s

    def _give_back(self, worker: WorkerProcess) -> None:
        if worker.over:
            return
        if self._closed.is_set():
            worker.finish()
        elif self._surplus:
            with self._lock:
                worker.surplus = self._surplus > 0 and not worker.over
                self._surplus -= worker.surplus
            if worker.surplus:
                worker.finish()
                return
            self._free.put(worker)
        else:
            if self._is_too_large(worker):
                self._retire(worker)
            self._free.put(worker)

    def _is_too_large(self, worker: WorkerProcess) -> bool:
        limit, now_s = self.code.memory_bytes, time.monotonic()
        if limit is None or worker.retired or now_s < worker.looked_s + _LOOK_S:
            return False
        worker.looked_s = now_s
        size = worker.resident_bytes()
        if size <= limit:
            return False
        self._log.warning(
            "a worker is replaced: it takes more than its `memory`",
            pid=worker.pid,
            bytes=size,
            limit=limit,
        )
        return True

    def _retire(self, worker: WorkerProcess) -> None:
        """Have another worker started in the place of one, which answers until then."""
        replacer = threading.Thread(target=self._replace, args=(worker,), daemon=True)
        worker.retired = True
        try:
            replacer.start()
        except RuntimeError:  # no thread: it is tried when its memory is looked at again
            worker.retired = False
        else:
            self._watched_by(replacer)

    def _watched_by(self, thread: threading.Thread) -> None:
        with self._lock:
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]

    def _replace(self, worker: WorkerProcess) -> None:
        successor = self._successor("", 0.0)
        if successor is None:
            return
        with self._lock:
            # Its place may have been given up meanwhile.
            wanted = not worker.surplus
            worker.over = True
        if not wanted:
            self._end(successor)
            return
        self._free.put(successor)
        worker.finish()
        self._keep(successor)

    def _started(self, expected: Signature | None) -> WorkerProcess:
        """Start a worker; ArtifactError when that fails."""
        try:
            worker = WorkerProcess(self.code, self._log, self._calls.bell)
            self._workers.append(worker)
            try:
                if self._closed.is_set():
                    raise ArtifactError(f"{self.code}: the runtime is closed")
                worker.begin(expected)
            except BaseException:
                self._end(worker)
                raise
        except ArtifactError:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            raise _unstarted(self.code, error) from error
        return worker

    def _end(self, worker: WorkerProcess) -> None:
        self._workers.remove(worker)
        worker.kill()
        worker.wait()

    def _started_again(self) -> WorkerProcess:
        worker = self._started(self.signature)
        if worker.signature == self.signature:
            return worker
        self._end(worker)
        raise ArtifactError(
            f"{self.code}: its signature {worker.signature} is not what it was before, "
            f"{self.signature}"
        )

    def _add(self, worker: WorkerProcess) -> None:
        """Have a worker answer, and its end seen; ArtifactError when no thread can do that."""
        keeper = threading.Thread(
            target=self._keep, args=(worker,), name=f"worker {worker.pid}", daemon=True
        )
        try:
            keeper.start()
        except RuntimeError as error:
            self._end(worker)
            raise _unstarted(self.code, error) from error
        self._watched_by(keeper)
        self._free.put(worker)

    def _keep(self, worker: WorkerProcess) -> None:
        """Wait for a worker's end and start the next one in its place, until all are to end."""
        while True:
            worker.wait()
            self._workers.remove(worker)
            if self._closed.is_set() or worker.surplus or worker.retired:
                return
            self._log.warning("a worker ended", pid=worker.pid, reason=worker.ending)
            if worker.proven:
                self._crashes = 0
            successor = self._successor(worker.ending, self._delay_s())
            if successor is None:
                return
            worker = successor
            self._free.put(worker)

    def _successor(self, reason: str, delay_s: float) -> WorkerProcess | None:
        """Start a worker in the place of another, as often as that takes; None when closed."""
        while True:
            if delay_s:
                self._down = f"{reason}; another one is started in {delay_s:g} s"
                self._free.put(None)
            if self._closed.wait(delay_s):
                return None
            self._down = ""
            try:
                worker = self._started_again()
            except ArtifactError as error:
                if self._closed.is_set():
                    return None
                reason, delay_s = str(error), self._delay_s() or _FIRST_DELAY_S
                self._log.error("a worker could not be started", reason=reason)
            else:
                self.restarts += 1
                self._log.info("a worker was started again", pid=worker.pid)
                return worker

    def _delay_s(self) -> float:
        """Count a crash; the wait before the next start."""
        self._crashes += 1
        if self._crashes == 1:
            return 0.0
        return float(min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2 ** (min(self._crashes, 20) - 2)))


def _unstarted(code: PythonCode, error: Exception) -> ArtifactError:
    return ArtifactError(f"{code}: its worker cannot be started: {error}")


# At the end of this process, the workers of those that are open are waited for.
_OPEN: Final[WeakSet[PythonRuntime]] = WeakSet()


def kill_workers() -> None:
    """End the workers of all runtimes now: calls that they have fail, and none starts again."""
    for runtime in list(_OPEN):
        runtime.kill()


@atexit.register
def _end_all() -> None:
    left = list(_OPEN)
    for runtime in left:
        runtime.close()
    for runtime in left:
        runtime.wait()


class _Console:
    """A log for those who have none: lines on standard error."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _say(self, event: str, **more: Any) -> None:
        words = more.get("line") or more.get("traceback") or more.get("reason") or ""
        said = str(words) if "line" in more else f"{event}: {words}" if words else event
        print(f"{self._name}: {said}", file=sys.stderr)

    info = warning = error = _say
