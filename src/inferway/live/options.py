"""Options of a serving process: its ports, keys and limits, and what each fleet of a task does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from inferway.deployment import Batch, Deployment
from inferway.deployment.tasks import Canary, Feedback, Shadow
from inferway.dispatch.batching import Rule
from inferway.live.headroom import Headroom, MemoryNeed
from inferway.live.http.exchange import Limits
from inferway.live.security.keys import Keys
from inferway.live.security.tls import Certificate
from inferway.live.tracing import Tracer
from inferway.runtime import Arrays
from inferway.scheduling import Controller
from inferway.site.view import Floats

HTTP_PORT: Final = 8000
ADMIN_PORT: Final = 8002
# Long enough for load balancers that look every second to see that the server is not ready.
DRAIN_DELAY_S: Final = 2.0
GRACE_S: Final = 10.0
# Requests in a central queue that nothing else limits.
HELD_LIMIT: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of a server or a node.

    Attributes
    ----------
    host
        Address of the inference listener; a node's addresses say it, and its other hosts and ports.
    http_port, admin_port
        Ports, 0 for a free one.
    grpc_port
        Port of the inference listener for gRPC, likewise; None offers no gRPC. It needs the extra
        ``grpc``.
    admin_host
        Address of the admin listener; without keys it must be loopback.
    keys
        Who may use the listeners for what, health apart; None lets everybody in.
    allow_apply
        Whether ``POST /apply`` is answered without keys too: whoever has an account on this
        machine can then have the server run a policy file of theirs.
    apply_from
        Folders that ``POST /apply`` may take files from, with what they name; None is that of the
        deployment's own file.
    certificate
        For TLS on the inference listeners, HTTP and gRPC, and on an admin listener that is not at
        loopback; None for plain connections.
    drain_delay_s
        How long the server says that it is not ready, and serves, before it accepts nothing more.
    grace_s
        How long it waits then for requests in flight.
    limits
        Caps on requests; None takes the node's of the deployment.
    record
        A folder where every task's events and random words are written down, for
        `inferway.dispatch.replay`; None writes nothing.
    tracer
        Makes spans of the requests; None makes none. Who serves closes it.
    times
        A file that keeps measured service times from one run to the next; None keeps nothing. A
        node keeps none.
    answers
        A folder that keeps the answers of tasks with `feedback` from one run to the next; None
        keeps them while the server runs.
    assigned
        A file that keeps which copies have which devices, where they are given out anew, from one
        run to the next; None keeps nothing.
    dry_run
        Whether devices are not given out anew, and it is only told what would be.
    reassigned
        Called with each decision that gives devices out anew, or would, as ``/status`` tells it.
    log_level
        The least that is logged: ``debug``, ``info``, ``warning`` or ``error``.
    now
        The clock of the tasks, seconds: arrivals, deadlines, service times. What the server itself
        waits for, it waits for on the event loop's.
    read_keys
        Reads the keys anew, and
    read_deployment
        the deployment, on SIGHUP; without them they stay as they are.
    complete
        Completes each deployment, the first one and those that are applied, before it is looked
        at: with what runs variants that no file can name. ValueError where it cannot.
    """

    host: str = "127.0.0.1"
    http_port: int = HTTP_PORT
    grpc_port: int | None = None
    admin_host: str = "127.0.0.1"
    admin_port: int = ADMIN_PORT
    keys: Keys | None = None
    allow_apply: bool = False
    apply_from: Sequence[Path] | None = None
    certificate: Certificate | None = None
    drain_delay_s: float = DRAIN_DELAY_S
    grace_s: float = GRACE_S
    limits: Limits | None = None
    record: Path | None = None
    tracer: Tracer | None = None
    times: Path | None = None
    answers: Path | None = None
    assigned: Path | None = None
    dry_run: bool = False
    reassigned: Callable[[Mapping[str, Any]], None] | None = None
    log_level: str = "info"
    now: Callable[[], float] = time.monotonic
    read_keys: Callable[[], Keys | None] | None = None
    read_deployment: Callable[[], Deployment] | None = None
    complete: Callable[[Deployment], Deployment] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Options of a pool.

    Attributes
    ----------
    seed
        Of the random words.
    target
        Accuracy target for reports, or None.
    measured
        Whether the promise is on what feedback measures.
    deadline_s
        From arrival, for requests that state none; or None.
    drop_late
        Whether a request whose deadline passes in a queue is dropped, or served late. Where late
        ones are served the dispatcher must not narrow by deadlines.
    in_order
        Whether requests wait in the central queue, first come, first served, for an idle server;
        each server must have one place then. Else they wait at servers, and the central queue is
        for those that the policy holds.
    room
        In the central queue.
    rules
        By class, the batches that are offered. None where no batches are formed but, one request
        at a time, by a policy that has `pull`.
    batches
        By class, what the file says of them; None of those that run single requests. Empty where
        there is no file.
    controller
        Sets the routing of the policy once a slot; None leaves it as it is.
    window_s
        Over which the arrival rate is estimated for the policy, again and again; None where the
        policy needs none or has it from the file.
    remember
        Called once a minute and at the end, to keep what was measured; None keeps nothing.
    now
        The clock, seconds, of arrivals, deadlines and service times; instances read it too, each
        in its thread.
    node
        This node's name, where it is one of a network: answers tell it then.
    idempotent
        Whether a request that another node has been given, and that is lost on its way, is given
        to another class: it may be run twice then.
    headroom
        Lets requests run within the memory that there is; None where nothing bounds it.
    demands
        By class, what a request takes; None where that is not known.
    leading
        The device whose cores a request takes besides its model, as the server measures it; empty
        where there is none, or the file says how much.
    profiled_s
        By class, how long a run of so many rows takes by the profile, s; None where nobody asks.
    confidences
        By class, what reads the confidence of each row in a variant's outputs; None where it has
        none. Empty where no second variant is ever asked.
    feedback
        How many answers are kept for feedback, and how long; None keeps none.
    shadow
        Which share of the answers is compared with those of the best variant; None of none.
    canary
        The variant that gets a share of the requests until labels decide on it; None has none.
    watched
        Whether an alarm is raised where feedback says that a variant's accuracy has changed.
    models
        Where answers are kept, which model each variant of the file is, and its accuracy by
        profile, None where nothing says it.
    """

    seed: int = 0
    target: float | None = None
    measured: bool = False
    deadline_s: float | None = None
    drop_late: bool = True
    in_order: bool = False
    room: int = HELD_LIMIT
    rules: Sequence[Rule] | None = None
    batches: Sequence[Batch | None] = ()
    controller: Controller | None = None
    window_s: float | None = None
    remember: Callable[[], None] | None = None
    now: Callable[[], float] = time.monotonic
    node: str = ""
    idempotent: bool = False
    headroom: Headroom | None = None
    demands: Sequence[MemoryNeed | None] | None = None
    leading: str = ""
    profiled_s: Sequence[Callable[[int], float]] | None = None
    confidences: Sequence[Callable[[Arrays], Floats] | None] = ()
    feedback: Feedback | None = None
    shadow: Shadow | None = None
    canary: Canary | None = None
    watched: bool = False
    models: Mapping[str, tuple[str, float | None]] = field(default_factory=dict)
