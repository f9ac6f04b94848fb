"""The page's end of the twin's process: it is started, asked, and told whom to answer no more."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from inferway.dashboard.question import (
    LONGEST,
    Ask,
    Cancel,
    Doing,
    Done,
    ObservedTask,
    Order,
    Prepare,
    Question,
    Said,
    WhatIfError,
    framed,
)

_WAITING: Final = 16
"""Questions that may wait for their turn."""
SUPERSEDED: Final = "a newer question took its place"


class SupersededError(WhatIfError):
    """A question whose place a newer one of the same page has taken."""


@dataclass
class _Pending:
    number: int
    asker: str
    result: asyncio.Future[dict[str, Any]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class TwinProcess:
    """The twin in a process of its own: nothing that it does keeps the page from its events.

    All methods but the constructor belong to the event loop.

    Parameters
    ----------
    changed
        Called when `state` is another.
    """

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()
        self._pending: dict[int, _Pending] = {}
        self._number = self._ready = self._wanted = 0
        self._words, self._compiling, self._since_s = "", False, time.monotonic()
        self._left = False

    @property
    def state(self) -> dict[str, Any]:
        """Tell whether it is ready, and else what it does, for how long, and how much is done."""
        busy = bool(self._words)
        state = "compiling" if self._compiling else "busy" if busy else "ready"
        if self._process is None:
            state = "off"
        elif self._ready < self._wanted and state == "ready":
            state = "starting"
        return {
            "state": state,
            "words": self._words,
            "done": self._ready,
            "of": self._wanted,
            "for_s": round(time.monotonic() - self._since_s, 1),
        }

    async def begin(self) -> None:
        """Start the process, where it does not run."""
        async with self._beginning:
            if self._process is not None:
                return
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "inferway.dashboard.twin_process"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=2**20,
                start_new_session=True,  # Ctrl-C is for the page, which ends this one
            )
            self._reading = asyncio.create_task(self._read(self._process))

    def leave(self) -> None:
        """Answer nobody any more, and tell whoever waits so."""
        self._left = True
        self._refuse("the page is ending")

    def _refuse(self, sentence: str) -> None:
        for one in self._pending.values():
            if not one.result.done():
                one.result.set_exception(WhatIfError(sentence))
        self._pending.clear()

    async def end(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    async def prepare(self, told: ObservedTask) -> str:
        """Compile what a task needs; returns why that cannot be, or nothing."""
        self._wanted += 1
        try:
            await self._order(lambda number: Prepare(number, told), asker="")
        except WhatIfError as error:
            return str(error)
        finally:
            self._ready += 1
            self._changed()
        return ""

    async def ask(self, asker: str, question: Question, told: ObservedTask) -> dict[str, Any]:
        """Answer a question; one that the same asker has asked before is answered no more.

        Raises
        ------
        SupersededError
            When the same asker has asked something newer meanwhile.
        WhatIfError
            When it cannot be answered.
        """
        for older in [*self._pending.values()]:
            if older.asker == asker and not older.result.done():
                older.result.set_exception(SupersededError(SUPERSEDED))
                self._send(Cancel(older.number))
        if len(self._pending) >= _WAITING:
            raise WhatIfError("too many questions wait for the twin: ask again in a moment")
        return await self._order(lambda number: Ask(number, question, told), asker)

    async def _order(self, made: Callable[[int], Order], asker: str) -> dict[str, Any]:
        await self.begin()
        if self._left:
            raise WhatIfError("the page is ending")
        self._number += 1
        pending = self._pending[self._number] = _Pending(self._number, asker)
        self._send(made(pending.number))
        return await pending.result

    def _send(self, order: Order) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        message = framed(order)
        if len(message) > LONGEST:
            raise WhatIfError("what the server tells is too much for the twin")
        with suppress(OSError, RuntimeError):  # it has ended, as its reader says
            process.stdin.write(message)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        decoder: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(Said)
        with suppress(asyncio.IncompleteReadError):
            while True:
                size = int.from_bytes(await process.stdout.readexactly(4), "big")
                self._take(decoder.decode(await process.stdout.readexactly(size)))
        if self._process is process:
            self._process = None
            self._words, self._compiling = "", False
        self._refuse("the twin's process has ended: ask again")
        self._changed()

    def _take(self, said: Said) -> None:
        if isinstance(said, Doing):
            if said.compiling != self._compiling or not self._words:
                self._since_s = time.monotonic()
            self._words, self._compiling = said.words, said.compiling
        elif isinstance(said, Done):
            self._words, self._compiling = "", False
            pending = self._pending.pop(said.number, None)
            if pending is not None and not pending.result.done():
                if said.document is not None:
                    pending.result.set_result(said.document)
                else:
                    sentence = said.error or "the question was canceled"
                    pending.result.set_exception(WhatIfError(sentence))
        self._changed()
