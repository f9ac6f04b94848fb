"""Which sites serve now, and which are on their way out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferway.live.assembly import check_served, sites_of
from inferway.live.errors import ServeError
from inferway.live.growths import Growths
from inferway.live.headroom import Headroom
from inferway.live.site import Site
from inferway.live.succession import inherit, retire
from inferway.live.threads import run_detached
from inferway.live.tracing import Tracer

if TYPE_CHECKING:
    from inferway.deployment import Deployment
    from inferway.dispatch.recording import Losses


class Roster:
    """The sites of a server, through every deployment that it is told to serve.

    Parameters
    ----------
    route
        Called with the sites that requests go to from now on.
    changed
        Called when a task may have become ready, or not ready, by itself.
    settle
        Called when new sites are ready to take over.
    log
        Where events go.
    record
        A folder for recordings, or None.
    times
        A file of measured service times, or None.
    tracer
        Makes spans, or None.
    now
        The clock of sites made here, seconds.
    headroom, growths
        What bounds the memory of their runs, and says what these take; None where nothing does.
    """

    def __init__(
        self,
        route: Callable[[Sequence[Site]], None],
        changed: Callable[[], None],
        settle: Callable[[], None],
        log: Any,
        *,
        record: Path | None = None,
        times: Path | None = None,
        tracer: Tracer | None = None,
        now: Callable[[], float] = time.monotonic,
        headroom: Headroom | None = None,
        growths: Growths | None = None,
    ) -> None:
        self._headroom, self._growths = headroom, growths
        self.sites: Sequence[Site] = ()
        self._route, self._changed, self._settle, self._log = route, changed, settle, log
        self._record, self._times, self._tracer, self._now = record, times, tracer, now
        self._losses: dict[str, Losses] = {}
        """By task, what could not be recorded, by whatever site."""
        self.retiring: dict[Site, asyncio.Task[None]] = {}
        """Replaced sites that still have requests."""
        self._applying = asyncio.Lock()
        self._over = False
        """Whether all sites are being stopped: nobody takes over any more."""

    async def start(self, given: Deployment | Sequence[Site]) -> None:
        """Load and warm up the first sites.

        Raises
        ------
        ServeError, WarmUpError
            When a model or a policy cannot be loaded or run.
        """
        if isinstance(given, Sequence):
            self.sites = given
        else:
            self.sites = await self._made(given)
        if self._record is not None:
            for site in self.sites:
                try:
                    self._begin_recording(site, self._record / site.task)
                except (ValueError, OSError) as error:
                    reason = getattr(error, "strerror", None) or error
                    raise ServeError(
                        f"nothing can be recorded in {self._record}: {reason}"
                    ) from error
        self._route(self.sites)
        await self._warm_up(self.sites)

    async def apply(self, deployment: Deployment, ended: Callable[[], bool]) -> None:
        """Serve another deployment from now on; no request is lost.

        What is new is loaded and warmed up beside what serves; then it takes over, and the old
        instances end when they have answered what they have.

        Parameters
        ----------
        deployment
            The other one.
        ended
            Says whether the server is ending.

        Raises
        ------
        ServeError, WarmUpError
            When it cannot be served; nothing has changed then.
        """
        async with self._applying:
            if ended():
                raise ServeError("the server is starting or ending; nothing can be applied now")
            check_served(deployment)
            for site in self.sites:
                await site.remember()
            sites = await self._made(deployment)
            try:
                await self._warm_up(sites)
                if ended():
                    raise ServeError("the server is ending; nothing has been applied")
                self._settle()
            except BaseException:
                for site in sites:
                    await site.stop()
                raise
            # From here to the new routes nothing waits: every request finds the old or the new.
            heirs = {site.task: site for site in sites}
            for old in self.sites:
                heir = heirs.get(old.task)
                if heir is not None:
                    inherit(heir, old)
            if self._record is not None:
                self._record_on(self._record, sites)
            retired, self.sites = self.sites, sites
            self._route(sites)
            for old in retired:
                self.retiring[old] = asyncio.create_task(self._retire(old))
            self._log.info("applied", tasks={site.task: list(site.pool.variants) for site in sites})

    async def replace(self, task: str, site: Site | None) -> asyncio.Task[None] | None:
        """Let another site serve one task from now on, or none; no request is lost.

        Parameters
        ----------
        task
            Which one.
        site
            Not started yet; None where nothing can answer the task any more.

        Returns
        -------
        asyncio.Task or None
            Ends when the old site has answered all that it has and is gone; None where there was
            none.

        Raises
        ------
        ServeError, WarmUpError
            When the new one cannot be run, or the server is ending; nothing has changed then.
        """
        async with self._applying:
            if site is not None:
                try:
                    await self._warm_up((site,))
                    if self._over:
                        raise ServeError("the server is ending; nothing has been replaced")
                except BaseException:
                    await site.stop()
                    raise
            old = next((one for one in self.sites if one.task == task), None)
            if old is not None and site is not None:
                inherit(site, old)
            if self._record is not None and site is not None:
                self._record_on(self._record, (site,))
            others = [one for one in self.sites if one is not old]
            self.sites = others if site is None else [*others, site]
            self._route(self.sites)
            if old is None:
                return None
            self.retiring[old] = leaving = asyncio.create_task(self._retire(old))
            return leaving

    async def all(self) -> list[Site]:
        """Every site that may still have requests; those that retire are waited for no more.

        They are about to be stopped: from now on no other takes over.
        """
        self._over = True
        retiring, sites = list(self.retiring.values()), [*self.sites, *self.retiring]
        for task in retiring:
            task.cancel()
        if retiring:
            await asyncio.wait(retiring)
        return sites

    async def _made(self, deployment: Deployment) -> Sequence[Site]:
        return await run_detached(
            sites_of,
            deployment,
            self._times,
            self._now,
            self._headroom,
            self._growths,
            self._log,
        )

    async def _warm_up(self, sites: Sequence[Site]) -> None:
        for site in sites:
            if self._tracer is not None:
                site.trace(self._tracer.request)
            site.told = self._tell
            for name in await site.start():
                self._log.warning("not warmed up: free input axes", instance=name)

    def _tell(self, instance: str, healthy: bool, reason: str) -> None:
        if healthy:
            self._log.info("healthy again", instance=instance)
        else:
            self._log.warning("unhealthy", instance=instance, reason=reason)
        self._changed()

    async def _retire(self, old: Site) -> None:
        await retire(old)
        del self.retiring[old]

    def _record_on(self, folder: Path, sites: Sequence[Site]) -> None:
        # A recording has one fleet and one policy: what is new gets a folder of its own.
        for site in sites:
            self._begin_recording(site, _following(folder, site.task), patient=True)

    def _begin_recording(self, site: Site, own: Path, *, patient: bool = False) -> None:
        from inferway.dispatch.recording import Losses

        folder, task = own.parent, site.task
        site.pool.record(
            own,
            self._log,
            following=lambda: _following(folder, task),
            losses=self._losses.setdefault(task, Losses()),
            patient=patient,
        )


def _following(folder: Path, task: str) -> Path:
    """Name the folder of a task's next section."""
    number = 2
    while (own := folder / f"{task}.{number}").exists():
        number += 1
    return own
