"""A server beside the program that starts it: in a script, a test or a notebook."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Final

import uvloop

from inferway.deployment import Deployment, measured
from inferway.live.options import ServerOptions
from inferway.live.server import Server
from inferway.live.threads import reads_threads

# How soon Ctrl-C is noticed: a thread that waits without a limit hears nothing.
_POLL_S: Final = 0.1


class Running(AbstractContextManager["Running"]):
    """A server that runs in a thread of its own; a context manager that stops it at its end.

    Parameters
    ----------
    server
        One that was not started yet.

    Raises
    ------
    ServeError, WarmUpError, PortError
        When it cannot start.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="inferway-server", daemon=True)
        self._thread.start()
        self._started.result()

    @property
    def url(self) -> str:
        """URL to which requests go, such as ``http://127.0.0.1:8000``."""
        return self.server.url

    @property
    def admin_url(self) -> str:
        """URL of metrics and status."""
        return f"http://{self.server.admin_host}:{self.server.admin_port}"

    def wait(self) -> None:
        """Wait until the server ends; Ctrl-C ends it."""
        try:
            while self._thread.is_alive():
                self._thread.join(_POLL_S)
        except KeyboardInterrupt:
            self.stop()

    def stop(self) -> None:
        """Accept nothing more, finish what is in flight, and return when the server has gone."""
        if self._thread.is_alive() and self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: self.server.end(delay=False))
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        tasks = ", ".join(self.server.sites)
        state = f"{tasks} on {self.url}" if self._thread.is_alive() else "stopped"
        return f"<inferway server: {state}>"

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            self._loop = runner.get_loop()
            try:
                runner.run(self.server.start())
            except BaseException as error:
                self._started.set_exception(error)
                return
            self._started.set_result(None)
            runner.run(self._serve())

    async def _serve(self) -> None:
        # The process does other work as well, so that only threads of the server's own count.
        if reads_threads():
            self.server.meter.begin(self.server.threads_cpu_s)
        await self.server.ended()


def serve(
    deployment: Deployment,
    *,
    block: bool = False,
    **options: Any,
) -> Running:
    """Serve a deployment from this process.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    block
        Whether to wait until the server ends, by Ctrl-C for example.
    options
        Of `inferway.live.ServerOptions`; ports are any free ones and `log_level` is ``warning`` by
        default.

    Returns
    -------
    Running
        When the server is ready: ``with inferway.serve(d) as server: ...`` stops it at the end.

    Raises
    ------
    ServeError, WarmUpError, PortError
        When the deployment, a model or a policy cannot be served, or a port is taken.
    """
    quiet: dict[str, Any] = {"http_port": 0, "admin_port": 0, "log_level": "warning"}
    running = Running(Server(measured(deployment), ServerOptions(**quiet | options)))
    if block:
        running.wait()
    return running
