"""Changing a running server: the page ``POST /apply``, what it may read, and its client."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import msgspec

from inferway.deployment import Deployment, DeploymentError, measured
from inferway.deployment.deployment import KEYS, build
from inferway.deployment.errors import Place, Problem, field_name
from inferway.deployment.model_folder import source_of
from inferway.deployment.policies import FILE_POLICY
from inferway.deployment.setting import set_all, setting
from inferway.deployment.source import Source, read
from inferway.live.errors import ServeError, WarmUpError
from inferway.live.http.exchange import JSON, Exchange
from inferway.live.in_force import difference
from inferway.live.options import ServerOptions
from inferway.live.threads import run_detached
from inferway.protocol import RefusalError
from inferway.protocol.messages import encode
from inferway.unreadable import UNREADABLE, fault

ADMIN_URL: Final = "http://127.0.0.1:8002"
OUTSIDE: Final = "outside of the folders to apply from, which `serve --apply-from` names"


def apply(
    deployment: Deployment | Path | str | None = None,
    admin_url: str = ADMIN_URL,
    *,
    policy: str | None = None,
    target: float | None = None,
    dry_run: bool = False,
    key: str | None = None,
    timeout_s: float = 300.0,
) -> dict[str, Any]:
    """Have a running server serve another deployment file, or the same one changed.

    Parameters
    ----------
    deployment
        The file, or what `inferway.load` made of it; None for what is in force. The server reads
        the file itself.
    admin_url
        Of the server's admin listener.
    policy, target
        In place of the file's, as `Deployment.with_` has them; a policy's file starts from the
        deployment file's folder.
    dry_run
        Change nothing, and tell what would.
    key
        Where the server asks for one.
    timeout_s
        For loading and warming up what is new.

    Returns
    -------
    dict
        ``{"schema": 1, "tasks": {name: [variants]}}``: what is served now. Of a dry run, what would
        be, and ``"difference"``: of each field that would change ``{"field", "before", "after",
        "hidden"}``, None where it is not given.

    Raises
    ------
    ServeError
        When the server refuses; it goes on as before.
    OSError
        When the server cannot be reached.
    """
    change = {"policy": policy, "target": target}
    asked: dict[str, Any] = {"with": {k: v for k, v in change.items() if v is not None}}
    asked = {key: value for key, value in (asked | {"dry_run": dry_run}).items() if value}
    if deployment is not None:
        path = deployment if isinstance(deployment, str | Path) else deployment.path
        asked["path"] = str(Path(path).resolve())
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    body = json.dumps(asked).encode()
    request = Request(f"{admin_url.rstrip('/')}/apply", body, headers, method="POST")
    # Straight to the server: what it may be told is nothing for a proxy.
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=timeout_s) as answer:
            body = answer.read()
    except HTTPError as error:
        with error:
            body = error.read()
        if error.code == 404:
            raise ServeError(
                f"{admin_url} is no server's admin listener: it has no /apply"
            ) from None
        try:
            reason = str(json.loads(body)["error"])
        except (*UNREADABLE, KeyError, TypeError):
            reason = f"HTTP status {error.code}"
        raise ServeError(reason) from None
    try:
        applied: dict[str, Any] = json.loads(body)
    except UNREADABLE as error:
        raise ServeError(f"{admin_url} answers what is no JSON: {fault(error)}") from None
    return applied


class ChangeMessage(msgspec.Struct, forbid_unknown_fields=True):
    """Values in place of a deployment's, in the words of `Deployment.with_`."""

    policy: str | None = None
    target: float | None = None


class ApplyMessage(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /apply``: a file of this machine, or what would be in one, and changes to it.

    Without either, the changes are to what is in force.
    """

    path: str | None = None
    content: str | None = None
    with_: ChangeMessage = msgspec.field(name="with", default_factory=ChangeMessage)
    dry_run: bool = False


class Applying:
    """Answers ``POST /apply``.

    `apply` serves a deployment from now on, or with True behind it only looks whether it could be
    served, and returns the variants of each task; `deployed` gives what is in force, None where
    there is no file; `broken` is told of errors that are not the file's. Files may come from
    `folders` and what is below them. The log is told what is wrong with other files than the
    deployment's own.
    """

    def __init__(
        self,
        apply: Callable[[Deployment, bool], Awaitable[dict[str, list[str]]]],
        deployed: Callable[[], Deployment | None],
        broken: Callable[[BaseException], None],
        options: ServerOptions,
        folders: Iterable[Path],
        log: Any,
    ) -> None:
        self._apply, self._deployed = apply, deployed
        self._broken, self._options, self._log = broken, options, log
        self._folders = [folder.resolve() for folder in folders]
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, exchange: Exchange) -> None:
        """Check who asks, and see to it."""
        task = asyncio.get_running_loop().create_task(self._answer(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, exchange: Exchange) -> None:
        try:
            if self._options.keys is None:
                self._check(exchange)
            asked = _asked(exchange)
            before = self._deployed()
            after = await run_detached(self._deployment, asked, before)
            found = {"schema": 1, "tasks": await self._apply(after, asked.dry_run)}
            if asked.dry_run:
                data = {} if before is None else before.source.data
                found["difference"] = difference(data, after.source.data)
        except RefusalError as refusal:
            exchange.refuse(refusal.status, refusal.reason)
        except (ValueError, WarmUpError) as error:
            exchange.refuse(400, str(error))
        except Exception as error:
            self._broken(error)
            exchange.refuse(500, "the server failed to apply the file; it goes on as before")
        else:
            exchange.respond(200, encode(found))

    def _check(self, exchange: Exchange) -> None:
        if not self._options.allow_apply:
            raise RefusalError(
                403,
                "a server without keys applies nothing: start it with --allow-apply, or with keys",
            )
        # A page in a browser can give loopback a name of its own; the browser says which.
        text = exchange.headers.get(b"host", b"").decode("latin-1").strip()
        name = text[1:].partition("]")[0] if text[:1] == "[" else text.partition(":")[0]
        if name != self._options.admin_host and not is_loopback(name):
            raise RefusalError(403, f"the request is for host {name!r}, not for this one")

    def _deployment(self, asked: ApplyMessage, in_force: Deployment | None) -> Deployment:
        """Load the deployment that is asked for; takes seconds.

        RefusalError when it is none, or lies elsewhere; ValueError when the file is not valid.
        """
        if asked.path is None and asked.content is None:
            if in_force is None:
                raise RefusalError(400, "nothing is in force that came from a deployment file")
            source = _changed(in_force.source, asked.with_)
            named_files(source, self._folders)
            # What was measured of it before holds.
            return in_force.with_(**_words_of(asked.with_, source.folder))
        if asked.path is not None:
            path = Path(asked.path)
            if not path.is_absolute() or "\0" in asked.path:
                raise RefusalError(400, f"path is {asked.path!r}; give an absolute one")
            if not _within(self._folders, path):
                raise RefusalError(403, f"{path} is {OUTSIDE}")
            source = _changed(_read_deployment(path.resolve()), asked.with_)
            return self._loaded(source, self._folders)
        with tempfile.TemporaryDirectory(prefix="inferway-") as name:
            folder = Path(name)
            path = folder / "content.yaml"
            path.write_text(asked.content or "", encoding="utf-8")
            try:
                source = _changed(read(path), asked.with_)
                return self._loaded(source, [*self._folders, folder.resolve()])
            except DeploymentError as error:
                # Where it lies meanwhile means nothing to whoever sent it.
                problems = [
                    replace(one, sentence=one.sentence.replace(f"{folder}/", ""))
                    for one in error.problems
                ]
                raise DeploymentError("content", problems) from None

    def _loaded(self, source: Source, folders: list[Path]) -> Deployment:
        files = named_files(source, folders)
        try:
            return measured(build(source))
        except DeploymentError as error:
            self._log.warning("a deployment is not applied", reason=str(error))
            problems = []
            for problem in error.problems:
                # Left out: what another file may have said.
                blamed = next(
                    (
                        file.name
                        for field, file in files.items()
                        if problem.field == field or file.name in problem.sentence
                    ),
                    None,
                )
                why = f"{blamed} is not what belongs here; the server's log says why"
                problems.append(replace(problem, sentence=why) if blamed else problem)
            raise DeploymentError(error.path, problems) from None


def _asked(exchange: Exchange) -> ApplyMessage:
    """Read what is asked for; RefusalError where the request does not say it."""
    # A page in somebody's browser can send forms to loopback, but no JSON unasked.
    kind = exchange.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != JSON:
        raise RefusalError(415, "send the request as Content-Type: application/json")
    try:
        asked = msgspec.json.decode(exchange.body, type=ApplyMessage)
    except UNREADABLE as error:
        raise RefusalError(400, f"the request is not valid: {fault(error)}") from None
    if asked.path is not None and asked.content is not None:
        raise RefusalError(400, 'give {"path": FILE} or {"content": TEXT}, and not both')
    if asked.path is None and asked.content is None and asked.with_ == ChangeMessage():
        raise RefusalError(
            400,
            'give {"path": FILE} or {"content": TEXT}, or {"with": {"policy": NAME, "target": '
            "NUMBER}} to change what is in force",
        )
    return asked


def _words_of(change: ChangeMessage, folder: Path) -> dict[str, Any]:
    """Write changes as `Deployment.with_` takes them; a policy's file starts from the folder."""
    policy = change.policy
    if policy is not None and (match := FILE_POLICY.fullmatch(policy)):
        policy = f"{folder / match['file']}:{match['name']}"
    return {"policy": policy, "target": change.target}


def _changed(source: Source, change: ChangeMessage) -> Source:
    """Change the data of a file; ValueError where that makes no sense."""
    words = _words_of(change, source.folder)
    settings = {key: setting(value) for key, value in words.items() if value is not None}
    changed = replace(source, data=deepcopy(source.data), problems=[*source.problems])
    set_all(changed.data, settings, None, KEYS)
    return changed


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _read_deployment(path: Path) -> Source:
    """Read a deployment file; RefusalError, which says nothing of it, for any other file."""
    try:
        source = source_of(path)
    except DeploymentError as error:
        if not path.is_file():
            raise RefusalError(400, str(error)) from None
        line = error.problems[0].line
    else:
        strange = [source.line((key,)) for key in source.data if key not in KEYS]
        if "tasks" in source.data and not strange:
            return source
        line = min(strange, default=0)
    where = f"{path}:{line}" if line else str(path)
    known = ", ".join(KEYS)
    raise RefusalError(
        400, f"{where}: this is no deployment file: at its top there is `tasks`, and only {known}"
    )


def _within(folders: Iterable[Path], path: Path) -> bool:
    """Tell whether a file lies in one of the folders, be it there or not, wherever links lead."""
    try:
        real = path.resolve()
    except (OSError, RuntimeError, ValueError):  # a circle of links, or no path
        return False
    return any(real.is_relative_to(folder) for folder in folders)


def named_files(source: Source, folders: Iterable[Path]) -> dict[str, Path]:
    """Find the files that a deployment file names, by field, before anything opens them.

    Any of its words may be one: a policy's file is code that would be run. DeploymentError when one
    lies outside of the folders.
    """
    files: dict[str, Path] = {}
    problems = []
    for place, word in _words(source.data, ()):
        for path in _paths(word, source.folder):
            if not _within(folders, path):
                problems.append(Problem(source.line(place), field_name(place), f"is {OUTSIDE}"))
                break
            if path.is_file():
                files[field_name(place)] = path
    if problems:
        raise DeploymentError(source.path, problems)
    return files


def _words(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in inner:
            yield from _words(one, (*place, key))


def _paths(word: str, folder: Path) -> Iterator[Path]:
    """Give all the paths that a word may stand for: plain, a URI's, a file's with a class."""
    if "\0" in word:
        return  # no path, as whoever opens it says
    names = [word]
    if word.lower().startswith("file:"):
        try:
            names.append(unquote(urlsplit(word).path))
        except ValueError:
            names.append(unquote(word.partition(":")[2]))
    if ":" in word:
        names.append(word.rpartition(":")[0])
    for name in names:
        path = folder / name
        # Most words are names, of which only a link could lead elsewhere.
        if "/" in name or name == ".." or path.is_symlink() or path.is_file():
            yield path
