"""Letters on their way to one neighbor, sent from a thread of their own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Outbox:
    """Sends in order, and waits for a slow link so that nobody else does.

    Parameters
    ----------
    neighbor
        Whom the letters are for.
    publish
        Sends a letter of a kind; blocks while the link is full; raises when it cannot.
    failed
        Called from the thread with the kind and size of a letter that could not be sent.
    limit_bytes
        Most that may wait.
    """

    def __init__(
        self,
        neighbor: str,
        publish: Callable[[str, bytes], None],
        failed: Callable[[str, int], None],
        limit_bytes: int,
    ) -> None:
        self._publish, self._failed, self._limit = publish, failed, limit_bytes
        self._waiting: queue.SimpleQueue[tuple[str, bytes] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._bytes = 0
        # A link that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"to {neighbor}", daemon=True)
        self._thread.start()

    def put(self, kind: str, data: bytes) -> bool:
        """Take a letter; False where too much waits already."""
        with self._lock:
            if self._bytes + len(data) > self._limit:
                return False
            self._bytes += len(data)
        self._waiting.put((kind, data))
        return True

    def close(self, patience_s: float) -> None:
        """Send what waits, for at most so long."""
        self._waiting.put(None)
        self._thread.join(patience_s)

    def _run(self) -> None:
        while (letter := self._waiting.get()) is not None:
            kind, data = letter
            try:
                self._publish(kind, data)
            except Exception:  # the session may close at any moment
                self._failed(kind, len(data))
            with self._lock:
                self._bytes -= len(data)
