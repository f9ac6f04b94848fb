"""Feedback on a task's answers, and the accuracy that it comes to, over HTTP."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable

import msgspec

from inferway.live.answers import AnswerBook
from inferway.live.canary import CanaryStatus
from inferway.live.feedback import FeedbackItem, Joined, VariantAccuracy
from inferway.live.http.compression import unpacking
from inferway.live.http.exchange import ENCODING, RETRY, Exchange, Limits
from inferway.live.security.keys import Role
from inferway.live.site import TaskSite
from inferway.profiling.confidence_sequence import LEVEL
from inferway.protocol import RefusalError
from inferway.protocol.schema import long_json
from inferway.protocol.tensors import finished
from inferway.unreadable import UNREADABLE, fault


class TaskAccuracy(msgspec.Struct, frozen=True):
    """Accuracy of a task by variant, as profiles say and as feedback says.

    Attributes
    ----------
    task
        Its name.
    level
        Probability with which each interval holds at every time at once.
    variants
        Those that are served.
    node
        Of a network, the node whose own answers and labels these are.
    canary
        What has become of the task's canary; left out where it has none.
    """

    task: str
    level: float
    variants: dict[str, VariantAccuracy]
    node: str | msgspec.UnsetType = msgspec.UNSET
    canary: CanaryStatus | msgspec.UnsetType = msgspec.UNSET


class Deleted(msgspec.Struct, frozen=True):
    """The outcome of a deletion: whose answer, with its feedback, is kept no more.

    Attributes
    ----------
    deleted
        X-Request-Id of the answer.
    """

    deleted: str


class FeedbackPages:
    """Answers what is asked and said of one task's accuracy."""

    def __init__(self, site: TaskSite, limits: Limits) -> None:
        self._site, self._limits = site, limits
        self._answering: set[asyncio.Task[None]] = set()

    def take(self, exchange: Exchange) -> None:
        """Take feedback, one or a list."""
        self._beside(exchange, lambda book: book.join(self._read(exchange)))

    def delete(self, exchange: Exchange, identity: bytes) -> None:
        """Delete an answer and its feedback."""

        def gone(book: AnswerBook) -> Deleted:
            name = identity.decode("latin-1")
            if not book.forget(name):
                raise RefusalError(
                    404, f"no answer {name[:128]!r} of task {self._site.task!r} is kept"
                )
            return Deleted(name)

        self._beside(exchange, gone)

    def tell(self, exchange: Exchange) -> None:
        """Tell the accuracy by variant."""
        site, book = self._site, self._site.answers
        if book is None:
            exchange.refuse(404, self._off)
            return
        node = msgspec.UNSET if site.node is None else site.node.name
        trial = None if site.present is None else site.present.canary
        canary = msgspec.UNSET if trial is None else trial.status
        said = TaskAccuracy(site.task, LEVEL, book.measured, node, canary)
        exchange.respond(200, msgspec.json.encode(said))

    @property
    def _off(self) -> str:
        return (
            f"task {self._site.task!r} keeps no answers; give it `feedback` in the deployment file"
        )

    def _read(self, exchange: Exchange) -> list[FeedbackItem]:
        body: bytes | bytearray = exchange.body
        limit = self._limits.json_bytes
        if (encoding := exchange.headers.get(ENCODING)) is not None:
            body = finished(unpacking(exchange.body, encoding, limit))
        if len(body) > limit:
            raise RefusalError(413, long_json(limit))
        try:
            items = msgspec.json.decode(body, type=list[FeedbackItem] | FeedbackItem)
        except UNREADABLE as error:
            raise RefusalError(400, f"the feedback is not valid: {fault(error)}") from None
        return items if isinstance(items, list) else [items]

    def _beside(self, exchange: Exchange, work: Callable[[AnswerBook], Joined | Deleted]) -> None:
        """Answer with what a thread works out, for it waits for the disk."""
        book = self._site.answers
        if not exchange.roles & Role.FEEDBACK:  # a server without keys lets everybody in here
            exchange.refuse(
                403,
                "feedback is taken with a key only; start the server with keys, one of them "
                "feedback=KEY",
            )
        elif book is None:
            exchange.refuse(404, self._off)
        else:
            task = asyncio.get_running_loop().create_task(_work(exchange, book, work))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)


async def _work(
    exchange: Exchange, book: AnswerBook, work: Callable[[AnswerBook], Joined | Deleted]
) -> None:
    try:
        done = await asyncio.to_thread(work, book)
    except RefusalError as refusal:
        exchange.refuse(refusal.status, refusal.reason)
    except sqlite3.Error as error:
        exchange.refuse(503, f"nothing can be written down now: {error}", RETRY)
    except Exception:
        exchange.refuse(500, "the feedback could not be taken")
        raise
    else:
        exchange.respond(200, msgspec.json.encode(done))
