"""From a deployment file and deployments of Ray Serve to one application."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from inferway.deployment import Deployment, load
from inferway.deployment.models import ModelError, signature_of
from inferway.deployment.tasks import Task
from inferway.extras import installing
from inferway.live import ServeError, ServerOptions
from inferway.live.build import would_serve
from inferway.protocol import Signature
from inferway.ray.variant import RayVariant, over_ray
from inferway.runtime import ArtifactError, UnsaidSignatureError, signature_of_class

# Requests that Ray Serve lets wait at the ingress: where they wait, the policy decides.
MOST_ONGOING: Final = 4096
# Options of `ServerOptions` that do not go to another machine, or are Ray Serve's to give.
_REFUSED: Final = frozenset(
    ("certificate", "complete", "now", "read_deployment", "read_keys", "tracer")
)


def ingress(
    deployment: Deployment | Mapping[str, Any] | Path | str,
    variants: Mapping[str, Any],
    *,
    name: str = "Inferway",
    timeout_s: float = 10.0,
    actor: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Make the application that serves a deployment file's tasks over deployments of Ray Serve.

    Parameters
    ----------
    deployment
        The file, or what `inferway.load` made of it. Each variant needs an accuracy and a service
        time, by the file or by a profile; a `model` is not run.
    variants
        By ``VARIANT``, or ``TASK/VARIANT`` where the file has several tasks, what ``bind`` of your
        deployment gave. Its class has `predict`, or is called itself, with a dictionary of arrays,
        and answers one; `inputs` and `outputs` say which, as in a class of a `python` variant,
        unless a model's file does. Its replicas times its `max_ongoing_requests` are the variant's
        instances.
    name
        Of the deployment that decides.
    timeout_s
        Longest wait for a replica's answer, s.
    actor
        `ray_actor_options` of the deployment that decides.
    options
        Fields of `inferway.live.ServerOptions`: ports of its own listeners are any free ones by
        default, at loopback.

    Returns
    -------
    ray.serve.Application
        For ``serve.run`` or a configuration of Ray Serve.

    Raises
    ------
    ServeError
        When a variant has no deployment of Ray Serve, or what is served cannot be.
    ValueError
        When an argument makes no sense, or Ray Serve is not installed.
    """
    check_installed()
    wrong = sorted(options.keys() - ({one.name for one in fields(ServerOptions)} - _REFUSED))
    if wrong:
        raise ValueError(f"{wrong[0]} is no option of an ingress over Ray Serve")
    if not isinstance(deployment, Deployment):
        deployment = load(deployment if isinstance(deployment, Mapping) else Path(deployment))
    bound = {pair: _bound(pair, one) for pair, one in _by_pair(deployment, variants).items()}
    signatures = {task: _signature(one, bound) for task, one in deployment.tasks.items()}
    described = {
        pair: RayVariant(
            f"ray:{one.name}",
            concurrency=_servers(pair, one),
            timeout_s=timeout_s,
            method=_method(one),
            said=signatures[pair[0]],
        )
        for pair, one in bound.items()
    }
    would_serve(over_ray(deployment, described))
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    from inferway.ray.replica import IngressReplica
    from inferway.ray.router import FreeReplicaRouter

    routed = RequestRouterConfig(request_router_class=FreeReplicaRouter)
    handles = [
        (pair, described[pair], one.options(request_router_config=routed).bind(*given, **named))
        for pair, one in bound.items()
        for given, named in [(one.init_args, one.init_kwargs)]
    ]
    chosen = {"http_port": 0, "admin_port": 0} | options
    decides = serve.deployment(IngressReplica).options(
        name=name,
        num_replicas=1,
        max_ongoing_requests=MOST_ONGOING,
        ray_actor_options=dict(actor or {}),
    )
    return decides.bind(deployment, handles, chosen)


def check_installed() -> None:
    """Refuse where Ray Serve is not installed, ValueError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns
    try:
        import ray.serve  # noqa: F401
    except ImportError as error:
        raise ValueError(
            "Ray Serve is not installed, which is in the extra `ray-serve`: "
            + installing("ray-serve")
        ) from error


def _by_pair(deployment: Deployment, variants: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """Find the task and the variant that each name means."""
    found: dict[tuple[str, str], Any] = {}
    tasks = deployment.tasks
    for key, one in variants.items():
        task, slash, variant = key.rpartition("/")
        if not slash:
            if len(tasks) > 1:
                raise ValueError(
                    f"variants: {key!r} could be of {', '.join(tasks)}; write TASK/{key}"
                )
            (task,) = tasks
        if task not in tasks:
            raise ValueError(f"variants: there is no task {task!r}; there is {', '.join(tasks)}")
        if variant not in tasks[task].variants:
            known = ", ".join(tasks[task].variants)
            raise ValueError(f"variants: task {task} has no variant {variant!r}; it has {known}")
        found[task, variant] = one
    for described in tasks.values():
        for variant in described.variants:
            if (described.name, variant) not in found:
                raise ServeError(
                    f"{deployment.path}: tasks.{described.name}.variants.{variant}: no deployment "
                    "of Ray Serve stands for it; give `ingress` one, such as "
                    f"{{{variant!r}: {variant.title()}.bind()}}"
                )
    return found


def _bound(pair: tuple[str, str], one: Any) -> Any:
    """Take the deployment out of an application, with what it is bound to; or it is one itself."""
    from ray.serve import Application
    from ray.serve import Deployment as ServeDeployment

    if isinstance(one, Application):
        # Ray Serve has no public way from one to the other, and none to change what is bound.
        return one._bound_deployment
    if isinstance(one, ServeDeployment):
        return one
    raise ValueError(
        f"variants: {'/'.join(pair)} is a {type(one).__name__}; give what `.bind()` of a "
        "deployment of Ray Serve gives"
    )


def _servers(pair: tuple[str, str], one: Any) -> int:
    """Count the requests that its replicas have at once: the instances of the variant."""
    if one._deployment_config.autoscaling_config is not None:
        raise ValueError(
            f"variants: {'/'.join(pair)} has a number of replicas that Ray Serve changes; give it "
            "a fixed `num_replicas`, as the policy's queues, which Ray Serve does not see, decide"
        )
    return int(one.num_replicas) * int(one.max_ongoing_requests)


def _method(one: Any) -> str:
    return "predict" if hasattr(one.func_or_class, "predict") else "__call__"


def _signature(task: Task, bound: Mapping[tuple[str, str], Any]) -> Signature:
    """Find what a task takes and gives: by a model's file, or by a class, which must agree."""
    signature: Signature | None = None
    for variant in task.variants.values():
        if signature is None and variant.model is not None and variant.model.path is not None:
            with suppress(ModelError):
                signature = signature_of(variant.model)
    silent = ""
    for name in task.variants:
        model = bound[task.name, name].func_or_class
        try:
            said = signature_of_class(model, signature)
        except UnsaidSignatureError as error:
            silent = silent or str(error)
            continue
        except ArtifactError as error:
            raise ServeError(f"variants: {task.name}/{name}: {error}") from None
        if signature is not None and said != signature:
            raise ServeError(
                f"variants: {task.name}/{name}: its signature {said} differs from {signature} of "
                "the task's other variants"
            )
        signature = said
    if signature is None:
        raise ServeError(f"variants: {task.name}: {silent}")
    return signature
