"""Which sites serve now, and which are on their way out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferway.live.assembly import check_served, pools_of
from inferway.live.errors import ServeError
from inferway.live.growths import Growths
from inferway.live.headroom import Headroom
from inferway.live.options import ServerOptions
from inferway.live.pool import Pool
from inferway.live.site import Site
from inferway.live.threads import run_detached

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
    options
        Say what is recorded, kept and traced, and have the clock of sites made here.
    headroom, growths
        What bounds the memory of their runs, and says what these take; None where nothing does.
    """

    def __init__(
        self,
        route: Callable[[Sequence[Site]], None],
        changed: Callable[[], None],
        settle: Callable[[], None],
        log: Any,
        options: ServerOptions | None = None,
        *,
        headroom: Headroom | None = None,
        growths: Growths | None = None,
    ) -> None:
        self._headroom, self._growths = headroom, growths
        self.sites: Sequence[Site] = ()
        self._route, self._changed, self._settle, self._log = route, changed, settle, log
        self._options = options or ServerOptions()
        self._record = self._options.record
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
            for site in given:
                self._watch(site)
        else:
            self.sites = [self._new(pool) for pool in await self._made(given)]
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
        for site in self.sites:
            await self._warm_up(site, site.pool)

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
            pools = await self._made(deployment)
            present = {site.task: site for site in self.sites}
            sites = [present.get(pool.task) or self._new(pool) for pool in pools]
            try:
                for site, pool in zip(sites, pools, strict=True):
                    await self._warm_up(site, pool)
                if ended():
                    raise ServeError("the server is ending; nothing has been applied")
                self._settle()
            except BaseException:
                for site, pool in zip(sites, pools, strict=True):
                    await site.discard(pool)
                raise
            # From here to the new routes nothing waits: every request finds the old or the new.
            for site, pool in zip(sites, pools, strict=True):
                if site.pool is not pool:
                    site.swap(pool)
            if self._record is not None:
                for site in sites:
                    self._record_on(self._record, site)
            gone = [site for site in self.sites if site not in sites]
            self.sites = sites
            self._route(sites)
            for old in gone:
                self.retiring[old] = asyncio.create_task(self._retire(old))
            self._log.info("applied", tasks={site.task: list(site.pool.variants) for site in sites})

    async def replace(
        self, task: str, pool: Pool | None
    ) -> tuple[Site | None, asyncio.Task[None] | None]:
        """Let another fleet serve one task from now on, or none; no request is lost.

        Parameters
        ----------
        task
            Which one.
        pool
            Not started yet; None where nothing can answer the task any more.

        Returns
        -------
        Site or None
            That serves the task now.
        asyncio.Task or None
            Ends when the fleet before has answered all that it has and is gone; None where there
            was none.

        Raises
        ------
        ServeError, WarmUpError
            When the new one cannot be run, or the server is ending; nothing has changed then.
        """
        async with self._applying:
            old = next((one for one in self.sites if one.task == task), None)
            if pool is None:
                self.sites = [one for one in self.sites if one is not old]
                self._route(self.sites)
                if old is None:
                    return None, None
                self.retiring[old] = leaving = asyncio.create_task(self._retire(old))
                return None, leaving
            site = old or self._new(pool)
            try:
                await self._warm_up(site, pool)
                if self._over:
                    raise ServeError("the server is ending; nothing has been replaced")
            except BaseException:
                await site.discard(pool)
                raise
            ending = None if old is None else site.swap(pool)
            if self._record is not None:
                self._record_on(self._record, site)
            if old is None:
                self.sites = [*self.sites, site]
            self._route(self.sites)
            return site, ending

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

    async def _made(self, deployment: Deployment) -> Sequence[Pool]:
        return await run_detached(
            pools_of,
            deployment,
            self._options.times,
            self._options.now,
            self._headroom,
            self._growths,
            self._log,
        )

    def _new(self, pool: Pool) -> Site:
        site = Site(pool)
        self._watch(site)
        return site

    def _watch(self, site: Site) -> None:
        if self._options.tracer is not None:
            site.trace(self._options.tracer.request)
        site.told = self._tell

    async def _warm_up(self, site: Site, pool: Pool) -> None:
        for name in await (site.start() if site.pool is pool else site.prepare(pool)):
            self._log.warning("not warmed up: free input axes", instance=name)

    def _tell(self, instance: str, healthy: bool, reason: str) -> None:
        if healthy:
            self._log.info("healthy again", instance=instance)
        else:
            self._log.warning("unhealthy", instance=instance, reason=reason)
        self._changed()

    async def _retire(self, old: Site) -> None:
        await old.retire()
        del self.retiring[old]

    def _record_on(self, folder: Path, site: Site) -> None:
        # A recording has one fleet and one policy: what is new gets a folder of its own.
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
