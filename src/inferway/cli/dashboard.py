"""``inferway dashboard``: a page that shows whether promises are kept, alone or beside others."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from inferway.cli import options, terminal
from inferway.cli.terminal import FAILED, CommandError, failing, says

HOST: Final = "127.0.0.1"
PORT: Final = 8004

Dashboard = Annotated[bool, says("Show it on a page, beside it.", "--dashboard")]
DashboardHost = Annotated[str, says("Address of that page.")]
DashboardPort = Annotated[int, says("Its port; 0: any free.", min=0, max=65535)]


def dashboard(
    urls: Annotated[
        list[str],
        typer.Argument(
            metavar="URL...", help="Admin listeners of servers and nodes: http://HOST:8002."
        ),
    ],
    host: Annotated[str, says("Address to listen on.")] = HOST,
    port: Annotated[int, says("Port of the page; 0: any free.", min=0, max=65535)] = PORT,
    key_file: Annotated[
        Path | None,
        options.file("Holds a key of the servers that may read; else INFERWAY_KEY."),
    ] = None,
    ca: Annotated[
        Path | None,
        options.file(
            "Authority of the servers' certificates; else those that the system trusts.",
            metavar="FILE.pem",
        ),
    ] = None,
    keys: Annotated[
        Path | None,
        options.file("Keys that open the page, as those of `serve`; else INFERWAY_KEYS."),
    ] = None,
    tls_cert: Annotated[Path | None, options.file("Certificate chain of the page, PEM.")] = None,
    tls_key: Annotated[Path | None, options.file("Its key, PEM.")] = None,
    json: terminal.Json = False,
) -> None:
    """Show on a page what servers and nodes promise, and whether they keep it."""
    check_extra()
    import asyncio

    from inferway.dashboard.application import bind, show, url_of
    from inferway.dashboard.reader import Reader
    from inferway.dashboard.watched import WatchedServer
    from inferway.live import PortError, ServeError
    from inferway.live.log import logger
    from inferway.live.security.keys import Guard, keys_from
    from inferway.loadgen import Access, DriveError

    where = list(dict.fromkeys(map(options.server, urls)))
    if (tls_cert is None) != (tls_key is None):
        raise CommandError("--tls-cert and --tls-key go together")
    certificate = None if tls_cert is None or tls_key is None else (tls_cert, tls_key)
    if certificate is not None:
        _check(*certificate)
    with failing(ServeError):
        opening = keys_from(keys)
        check_page(host, opened=opening is not None)
    with failing(DriveError):
        access = Access(options.key(key_file, "read") or None, ca)
    try:
        listener = bind(host, port)
    except PortError as error:
        raise CommandError(f"--port {error.port} at {error.host}: {error.why}", FAILED) from error
    url = url_of(listener, secure=certificate is not None)
    guard = None if opening is None else Guard(opening, logger("warning"))
    with terminal.unheard():
        if json:
            terminal.document({"schema": 1, "url": url, "sources": where}, indent=None)
        else:
            print(f"the page is at {url}; Ctrl-C stops", flush=True)
    reader = Reader([WatchedServer(one, access) for one in where])
    asyncio.run(show(reader, listener, guard, certificate))


def missing() -> str | None:
    """Name a module of the extra `dashboard` that is not installed; None where all are."""
    return next((one for one in ("starlette", "uvicorn") if find_spec(one) is None), None)


def check_extra() -> None:
    """Say which extra is missing, before anything is started; ModuleNotFoundError with a module."""
    if (module := missing()) is not None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def check_page(host: str, *, opened: bool) -> None:
    """Refuse a page that the network can reach, where there are no keys; CommandError."""
    from inferway.live.applying import is_loopback

    if not opened and not is_loopback(host):
        raise CommandError(
            f"the page at {host} would be open to the network: give --keys FILE, or keep it at "
            f"{HOST}"
        )


class PageBeside:
    """A page in a process of its own, which ends when this one does, however that ends.

    Its port is taken at once, so that what is wrong with it is said before anything is served.

    Parameters
    ----------
    host, port
        Where the page is.
    keys
        The file of the server's keys, which open the page, too; None for those of the environment,
        if there are any.

    Attributes
    ----------
    url
        Where the page is.
    """

    def __init__(self, host: str, port: int, keys: Path | None = None) -> None:
        check_extra()
        from inferway.live import PortError, ServeError
        from inferway.live.errors import listening
        from inferway.live.security.keys import ROLES, VARIABLE, keys_from, parted
        from inferway.protocol.address import joined

        with failing(ServeError):
            opening = keys_from(keys)
        check_page(host, opened=opening is not None)
        self._keys, self._key = keys, None
        if opening is not None:
            text = os.environ.get(VARIABLE, "") if keys is None else keys.read_text("utf-8")
            lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
            words = (word for line in lines for word in line.replace(",", " ").split())
            readers = [one for one in map(parted, words) if one[0] & ROLES["read"]]
            if not readers:
                raise CommandError("the page needs a key with the role read: none of them has it")
            # One that may also send requests, if there is one, for those who may.
            self._key = max(readers, key=lambda one: one[0] & ROLES["infer"])[1]
        try:
            with listening("dashboard", host, port):
                family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
                self._listener = socket.create_server((host, port), family=family)
        except PortError as error:
            raise CommandError(
                f"--dashboard-port {error.port} at {error.host}: {error.why}", FAILED
            ) from error
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://{joined(*self._listener.getsockname()[:2])}/"

    def start(self, urls: Sequence[str] = (), doing: str = "", folder: Path | None = None) -> None:
        """Begin with these servers, by the URLs of their admin listeners.

        The folder is of the deployment that they serve: the page's twin runs its policies' files.
        """
        order = {
            "socket": self._listener.fileno(),
            "key": self._key,
            "keys": None if self._keys is None else str(self._keys),
            "folder": None if folder is None else str(folder),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "inferway.dashboard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(self._listener.fileno(),),
            start_new_session=True,  # Ctrl-C is for whoever serves, who ends this one
        )
        self._tell(order)
        self._listener.close()
        self.show(doing, [{"url": one} for one in urls])

    def show(self, doing: str, servers: Sequence[Mapping[str, Any]]) -> None:
        """Show these from now on, in this order, and say what is being done with them.

        Parameters
        ----------
        doing
            A few words, which may be empty.
        servers
            Of each the ``url`` of its admin listener and, where it is called otherwise than by
            itself, a ``name``; one that is ``ended`` stays as it was.
        """
        self._tell({"doing": doing, "servers": list(servers)})

    def _tell(self, line: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended, which is no reason to end what it shows
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()

    def wait(self) -> None:
        """Wait until the page's process has ended by itself."""
        if self._process is not None:
            self._process.wait()

    def close(self) -> None:
        """End the page; returns when its process has gone."""
        self._listener.close()
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _check(chain: Path, key: Path) -> None:
    from inferway.live import Certificate, ServeError

    with failing(ServeError):
        Certificate(chain, key).context()
