"""Variants that replicas of Ray Serve run: what the server knows of them, and how it asks them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakValueDictionary

from inferway.deployment import Deployment
from inferway.deployment.models import Remote
from inferway.live.errors import ServeError
from inferway.protocol import Signature
from inferway.runtime import Arrays, AwaitedRuntime, Fault, RemoteError
from inferway.runtime.worker import RefusedError, TensorLayout, checked

# Of this process, by application and deployment (`inferway.ray.router.FreeReplicaRouter`).
routers: Final[WeakValueDictionary[tuple[str, str], Any]] = WeakValueDictionary()


@dataclass(frozen=True)
class RayVariant(Remote):
    """A variant behind a deployment of Ray Serve, in the place of one behind a server.

    Attributes
    ----------
    method
        What is called.
    said
        Signature.
    handle
        The deployment's handle; None where nothing is asked yet.
    """

    method: str = "__call__"
    said: Signature | None = None
    handle: Any = None

    def runtime(
        self, *, signature: Signature | None = None, timeout_s: float | None = None
    ) -> AwaitedRuntime:
        """Make the runtime of the variant; see `inferway.deployment.models.Remote.runtime`."""
        limit_s = self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)
        return RayRuntime(self, limit_s)


def over_ray(deployment: Deployment, variants: Mapping[tuple[str, str], RayVariant]) -> Deployment:
    """Have each variant of a deployment run where these say, with as many instances as they have.

    Raises
    ------
    ServeError
        When there is one of which nothing is said, or the file has several nodes.
    """
    lacking = [
        f"tasks.{task.name}.variants.{name}"
        for task in deployment.tasks.values()
        for name in task.variants
        if (task.name, name) not in variants
    ]
    if lacking:
        raise ServeError(
            f"{deployment.path}: {lacking[0]}: no deployment of Ray Serve stands for it, and which "
            "there are is settled when the application is made"
        )
    tasks = {
        task.name: replace(
            task,
            variants={
                name: replace(
                    one,
                    model=None,
                    python=None,
                    providers=(),
                    remote=variants[task.name, name],
                )
                for name, one in task.variants.items()
            },
        )
        for task in deployment.tasks.values()
    }
    counts = {
        (task.name, name): variants[task.name, name].concurrency or 1
        for task in tasks.values()
        for name in task.variants
    }
    nodes = {
        name: replace(node, instances=counts, placed={}) for name, node in deployment.nodes.items()
    }
    return replace(deployment, tasks=tasks, nodes=nodes)


class RayRuntime(AwaitedRuntime):
    """A model that replicas of a Ray Serve deployment run.

    No more requests are out than running replicas take at once, so that none waits in Ray Serve's
    router: where a replica is gone, one that would be too many is not sent.
    """

    apart = True

    def __init__(self, variant: RayVariant, timeout_s: float) -> None:
        super().__init__(variant.said)
        self._variant, self._timeout_s = variant, timeout_s
        self._ask: Any = None
        self._out = 0
        outputs = self.signature.outputs
        self._layout = TensorLayout(
            [
                (one.name, "O" if one.datatype == "BYTES" else one.dtype.str, len(one.shape))
                for one in outputs
            ]
        )
        self._shapes = {one.name: one.shape[1:] for one in outputs}

    async def describe(self) -> None:
        """Do nothing: what goes in and comes out is known."""

    def learn(self) -> None:
        """Do nothing: what goes in and comes out is known."""

    def close(self) -> None:
        """Do nothing: the replicas are Ray Serve's."""

    def room(self) -> int | None:
        """Count the requests that the replicas which run now take at once; None where unknown."""
        handle = self._variant.handle
        router = routers.get((handle.app_name, handle.deployment_name))
        if router is None:
            return None
        return sum(int(one.max_ongoing_requests) for one in tuple(router.curr_replicas.values()))

    async def infer(self, inputs: Arrays) -> Arrays:
        """Have a replica answer one batch; canceled, Ray Serve is told.

        Raises
        ------
        RemoteError
            When there is no answer.
        """
        try:
            outputs = self._checked(await self._answer(inputs), inputs)
        except RemoteError as error:
            self.faults[error.fault] += 1
            self.down = str(error)
            raise
        self.down = ""
        return outputs

    async def _answer(self, inputs: Arrays) -> Any:
        from ray import exceptions as of_ray
        from ray.serve import exceptions as of_serve

        name, room = self._variant.url, self.room()
        if room is not None and self._out >= room:
            have = "has no replica now" if not room else f"has replicas for {room} requests now"
            raise RemoteError(Fault.UNREACHABLE, f"{name} {have}", unserved=True)
        if self._ask is None:
            self._ask = getattr(self._variant.handle, self._variant.method)
        try:
            response = self._ask.remote(inputs)
        except Exception as error:  # Ray's own, or RuntimeError of a handle that is shut down
            reason = " ".join(str(error).split())
            raise RemoteError(
                Fault.UNREACHABLE, f"{name} cannot be asked: {reason:.200}", unserved=True
            ) from error
        self._out += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                return await response
        except asyncio.CancelledError:
            response.cancel()
            raise
        except of_ray.RayTaskError as error:
            reason = " ".join(str(getattr(error, "cause", error)).split())
            raise RemoteError(Fault.BROKEN, f"a replica of {name} raised {reason:.300}") from None
        except TimeoutError:
            response.cancel()
            raise RemoteError(
                Fault.LATE, f"no replica of {name} answered within {self._timeout_s:g} s"
            ) from None
        except of_serve.BackPressureError:
            raise RemoteError(
                Fault.OVERLOADED, f"{name} has no room in Ray Serve's queue", unserved=True
            ) from None
        except of_serve.DeploymentUnavailableError:
            raise RemoteError(
                Fault.UNREACHABLE, f"{name} could not be deployed", unserved=True
            ) from None
        except of_ray.RayError as error:
            reason = " ".join(str(error).split())
            raise RemoteError(Fault.DIED, f"a replica of {name} has ended: {reason:.200}") from None
        finally:
            self._out -= 1

    def _checked(self, outputs: Any, inputs: Arrays) -> Arrays:
        """Refuse what is no answer; outputs come in the signature's order, the others left out."""
        signature = self.signature
        rows = len(inputs[signature.inputs[0].name])
        try:
            arrays = checked(outputs, self._layout, self._shapes, rows)
        except RefusedError as error:
            raise RemoteError(
                Fault.BROKEN, f"a replica of {self._variant.url} failed: {error}"
            ) from None
        return {
            tensor.name: array.astype(object) if array.dtype.kind in "SU" else array
            for tensor, array in zip(signature.outputs, arrays, strict=True)
        }
