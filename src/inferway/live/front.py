"""Pages of the admin listener that people and dashboards open: its root, and the history."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Final, Protocol
from urllib.parse import parse_qs, urlsplit

import msgspec

from inferway.dispatch.promise import Promise
from inferway.dispatch.totals import Totals
from inferway.live.admin import PAGES, totals
from inferway.live.answers import AnswerBook
from inferway.live.assigned import DeviceAssignment
from inferway.live.canary import CanaryStatus
from inferway.live.explain import KEPT
from inferway.live.history import ROWS, Every, History
from inferway.live.http.exchange import ACCEPT, Exchange, Handler
from inferway.live.request import Outcome
from inferway.live.site import TaskSite
from inferway.protocol import RefusalError
from inferway.protocol.messages import encode
from inferway.version import __version__

DECISIONS: Final = 20
"""Requests of each task that ``/decisions`` tells."""
_HTML: Final = b"text/html; charset=utf-8"
# No scripts, no styles, no images, no frames around it: it is words and tables.
_ALONE: Final = (
    b"Content-Security-Policy: default-src 'none'; frame-ancestors 'none'; base-uri 'none'\r\n"
    b"X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
    b"Cache-Control: no-store\r\n"
)
_VERDICTS: Final = {
    "kept": "kept",
    "at-risk": "at risk",
    "missed": "missed",
    "unknown": "too few answers to say",
}


class ShownServer(Protocol):
    """What the root page is of: a server, or what stands for one in tests."""

    dashboard: str

    @property
    def url(self) -> str:
        """Where its inference listener is."""
        ...

    @property
    def served(self) -> Callable[[], list[TaskSite]]:
        """Lists the tasks that a fleet answers."""
        ...


def front_page(server: ShownServer) -> Handler:
    """Make what answers the root: a page without scripts for browsers, its paths for programs."""

    def answer(exchange: Exchange) -> None:
        if b"text/html" in exchange.headers.get(ACCEPT, b""):
            page = page_of(server.served(), server.dashboard)
            exchange.respond(200, page.encode(), _HTML, _ALONE)
            return
        found = {
            "schema": 1,
            "version": __version__,
            "pages": list(PAGES),
            "inference": server.url,
            "dashboard": server.dashboard or None,
        }
        exchange.respond(200, msgspec.json.encode(found))

    return answer


def history_page(history: History) -> Handler:
    """Make what answers ``/history?since=SECONDS&every=second``."""

    def answer(exchange: Exchange) -> None:
        try:
            every, since_s = _asked(exchange.target)
        except RefusalError as refusal:
            exchange.refuse(refusal.status, refusal.reason)
            return
        exchange.respond(200, msgspec.json.encode(history.page(every, since_s)))

    return answer


def decisions_page(
    sites: Callable[[], Mapping[str, TaskSite]],
    assignment: Callable[[], DeviceAssignment | None] = lambda: None,
) -> Handler:
    """Make what answers ``/decisions``: of each task, the most surprising of its last requests.

    Where devices are given out anew, the last moves and their reasons, too.
    """
    answering: set[asyncio.Task[None]] = set()

    async def tell(exchange: Exchange) -> None:
        told = {}
        try:
            for name, site in [*sites().items()]:
                told[name] = site.log.decisions(DECISIONS, site.now())
                await asyncio.sleep(0)  # requests have their turn between two tasks
        except Exception:
            exchange.refuse(500, "the decisions cannot be told")
            raise
        moved = assignment()
        devices = {} if moved is None else {"placement": [*moved.decisions]}
        exchange.respond(200, msgspec.json.encode({"schema": 1, "tasks": told, **devices}))

    def answer(exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(tell(exchange))
        answering.add(task)
        task.add_done_callback(answering.discard)

    return answer


def explanation_page(
    sites: Callable[[], Mapping[str, TaskSite]],
) -> Callable[[Exchange, bytes], None]:
    """Make what answers ``/decisions/TASK/REQUEST``: why it was answered as it was."""

    def answer(exchange: Exchange, rest: bytes) -> None:
        name, _, identity = rest.partition(b"/")
        site = sites().get(name.decode("utf-8", "replace"))
        found = None if site is None else site.log.explain(identity)
        if found is None:
            exchange.refuse(404, f"no such request among the last {KEPT} of such a task")
        else:
            exchange.respond(200, encode(found))

    return answer


def _asked(target: bytes) -> tuple[Every, float]:
    """Read which samples are asked for; RefusalError with what would be right."""
    given = parse_qs(urlsplit(target.decode("latin-1")).query, keep_blank_values=True)
    for name in given.keys() - {"since", "every"}:
        raise RefusalError(400, f"there is no parameter {name[:64]!r}; since and every are")
    length = given.get("every", ["second"])[-1]
    every = next((one for one in ROWS if one == length), None)
    if every is None:
        raise RefusalError(400, f"every is {length[:64]!r}, expected second or minute")
    text = given.get("since", ["0"])[-1]
    try:
        since_s = float(text)
    except ValueError:
        since_s = math.nan
    if not math.isfinite(since_s):
        raise RefusalError(400, f"since is {text[:64]!r}, expected seconds since 1970")
    return every, since_s


def page_of(sites: Sequence[TaskSite], dashboard: str = "") -> str:
    """Write the page: each task's promise, its variants, and where there is more."""
    if dashboard:
        more = f'<p>A live page: <a href="{escape(dashboard)}">{escape(dashboard)}</a></p>'
    else:
        more = "<p>A live page: <code>inferway dashboard URL</code>, with this address.</p>"
    links = " · ".join(f'<a href="{path}">{path}</a>' for path in PAGES[1:])
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="color-scheme" content="light dark">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>Inferway {__version__}</title></head><body><h1>Inferway</h1>",
            *(_section(site) for site in sites),
            _totals(totals(sites)),
            "" if sites else "<p>No task is served now.</p>",
            more,
            f"<p>{links}</p></body></html>",
        ]
    )


def _totals(found: Totals | None) -> str:
    if found is None:
        return ""
    rows = [
        (what, f"{value:.{digits}f}")
        for what, value, digits in (
            ("accuracy", found.accuracy, 4),
            ("goodput", found.goodput, 4),
            ("rejected, late or lost", found.violation_ratio, 4),
            *((f"answers of {name}", part, 4) for name, part in found.shares.items()),
        )
        if math.isfinite(value)
    ]
    return "<h2>All tasks</h2>" + _table("Since the start", ("", "part"), rows) if rows else ""


def _section(site: TaskSite) -> str:
    promise, stats, pool = site.promise, site.stats, site.pool
    variants = [
        (
            name,
            "-" if (accuracy := pool.accuracy[k]) is None else f"{accuracy:.4g}",
            f"{answered:,}",
            f"{stats.latency_sum_s[column] / answered * 1e3:.3g} ms" if answered else "",
            f"{sum(pool.health.healthy[servers])} of {servers.stop - servers.start}",
            f"{sum(map(len, pool.queues[servers]))}",
        )
        for k, (name, column) in enumerate(zip(pool.variants, pool.columns, strict=True))
        for servers in [slice(*pool.first[k : k + 2])]
        for answered in [stats.outcomes[Outcome.ANSWERED][column]]
    ]
    ended = [
        (outcome.name.lower(), f"{count:,}")
        for outcome in Outcome
        if (count := stats.total(outcome))
    ]
    heads = ("variant", "accuracy", "answers", "mean time", "healthy", "queue")
    return "".join(
        [
            f"<h2>{escape(site.task)}</h2>",
            "" if site.ready else "<p>This task is not ready.</p>",
            "" if promise is None else _promise(promise),
            _table("Who answers", heads, variants),
            "" if site.answers is None else _by_labels(site.answers),
            "" if pool.canary is None else _canary(pool.canary.status),
            _table("Requests since the start", ("ended", "requests"), ended) if ended else "",
        ]
    )


def _by_labels(book: AnswerBook) -> str:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.4g}"

    heads = (
        *("variant", "by profile", "labels", "by labels", "limits", "compared", "agree"),
        *("by both", "limits", "estimate", "drift"),
    )
    return _table(
        "Accuracy",
        heads,
        [
            (
                name,
                number(one.profile),
                f"{one.labels:,}",
                number(one.mean),
                f"{one.low:.3f} to {one.high:.3f}",
                f"{one.compared:,}",
                number(one.agreement),
                number(one.joint),
                f"{one.joint_low:.3f} to {one.joint_high:.3f}",
                number(one.estimate),
                "-"
                if one.alarm is None
                else f"{one.alarm.before:.3f} to {one.alarm.after:.3f} "
                f"({datetime.fromtimestamp(one.alarm.at):%Y-%m-%d %H:%M})",
            )
            for name, one in book.measured.items()
        ],
    )


def _canary(told: CanaryStatus) -> str:
    terms = (
        f"{100.0 * told.share:.3g} % of the requests",
        f"at least {told.at_least:g} by {told.labels:,} labels",
        f"{told.requests:,}",
        told.state,
        told.reason or "-",
    )
    heads = ("variant", "gets", "needs", "requests", "state", "reason")
    return _table("Canary", heads, [(told.variant, *terms)])


def _promise(promise: Promise) -> str:
    mean = "" if promise.mean is None else f"{promise.mean:.4f}"
    return _table(
        "The promise",
        ("promise", "target", promise.mean_name, "balance", "answers"),
        [
            (
                _VERDICTS[promise.state],
                f"{promise.target:g}",
                mean,
                f"{promise.balance:+.4g}",
                f"{promise.answers:,}",
            )
        ],
    )


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for first, *cells in rows
    )
    return f'<table border="1"><caption>{caption}</caption><tr>{head}</tr>{body}</table>'
