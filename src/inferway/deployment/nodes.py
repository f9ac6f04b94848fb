"""Nodes, and the network between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from inferway.deployment.devices import Device
from inferway.deployment.errors import must, refuse, refuse_at, refuse_where
from inferway.deployment.overhead import MeasuredOverhead
from inferway.deployment.section import (
    UNWRITTEN,
    File,
    Host,
    HostPort,
    Name,
    ReadAs,
    Section,
    Switch,
    says,
)
from inferway.deployment.units import MOST, Bytes, Count, PositiveSeconds, Ratio, Seconds
from inferway.protocol.address import NODE

# Links on the way of a request, or of an offer, at most: what goes on for longer has lost its way.
# Live nodes and their twin go by it, and a file that asks for a longer way is refused.
MAX_HOPS: Final = 64


def _split(key: str) -> tuple[str, str]:
    task, _, variant = key.partition("/")
    return (task, variant) if task and variant else (key, "")


# A variant as TASK/VARIANT: the task's and the variant's name. What is none stands for the task,
# beside an empty variant, until the file's references are checked.
Pair = Annotated[tuple[str, str], BeforeValidator(_split)]
Instances = Annotated[
    dict[Pair, Count], Field(json_schema_extra={"examples": [{"digits/tiny": 2}]})
]
Copies = Annotated[
    dict[
        Pair,
        Annotated[
            Annotated[Count, Tag("count")]
            | Annotated[dict[Name, Count], Field(min_length=1), Tag("by device")],
            Discriminator(lambda value: "by device" if isinstance(value, dict) else "count"),
        ],
    ],
    Field(json_schema_extra={"examples": [{"digits/tiny": 2, "digits/large": {"gpu": 1}}]}),
]


def written(key: tuple[str, str]) -> str:
    """Write a variant as the file does."""
    return "/".join(key) if key[1] else key[0]


@dataclass(frozen=True)
class Failure(Section):
    """How each instance of a variant fails and returns, at random."""

    every_s: Annotated[
        PositiveSeconds, says("Mean time from its start or return to its next failure.", "every")
    ]
    for_s: Annotated[PositiveSeconds, says("Mean time until it returns.", "for")]


@dataclass(frozen=True)
class Outage(Section):
    """A failure at a set time."""

    instances: Annotated[
        Instances,
        Field(min_length=1),
        says("How many instances of which variants fail together, the first ones of each."),
    ]
    at_s: Annotated[Seconds, says("When, from the start of the workload.", "at")]
    for_s: Annotated[PositiveSeconds, says("How long they are away.", "for")]


@dataclass(frozen=True)
class Store(Section):
    """The models that a node keeps on its disk, and where it may fetch others from."""

    limit: Annotated[
        Bytes, says("What all files of the store may take; those used longest ago go first.")
    ] = 20 * 10**9
    schemes: Annotated[
        tuple[Literal["file", "https"], ...], Field(min_length=1), says("How models may come.")
    ] = ("file", "https")
    hosts: Annotated[
        tuple[Host, ...] | None, says("Hosts that they may come from by https; any if not given.")
    ] = None
    private: Annotated[
        Switch, says("Whether such hosts may have addresses of networks that are not public.")
    ] = False
    loopback: Annotated[Switch, says("Whether they may be this machine.")] = False


@dataclass(frozen=True)
class NodeLimits(Section):
    """How much of the machine's memory the requests of all clients may take together."""

    memory: Annotated[Bytes, says("Growth of resident memory while requests run.")] = 512 * 1024**2
    bodies: Annotated[
        Bytes, says("Bodies of requests that have come in part, or wait, over all connections.")
    ] = 256 * 1024**2


@dataclass(frozen=True)
class Node(Section):
    """A machine."""

    # Once the whole file is known, `placed` has the copies by device, `instances` counts those of
    # all devices together, and `hardware` is that of the first device.

    name: Annotated[str, *UNWRITTEN] = ""
    budget_bytes: Annotated[
        Bytes | None,
        says("What its instances may take together; unlimited if not given.", "budget"),
    ] = None
    hardware: Annotated[Name, says("Which of the variants' service times hold here.")] = "cpu"
    devices: Annotated[
        dict[Name, Device],
        says("Cores and accelerators that its instances share, by name, instead of `hardware`."),
    ] = field(default_factory=dict)
    overhead_s: Annotated[
        Seconds | None,
        says(
            "Time of its cores that each request takes before it runs; as a server of these models "
            "has measured it on this machine if not given.",
            "overhead",
        ),
    ] = None
    measured_overhead: Annotated[MeasuredOverhead | None, *UNWRITTEN] = None
    instances: Annotated[
        dict[tuple[str, str], Any],
        ReadAs(Copies, dict),
        says(
            "Running copies, as TASK/VARIANT: COUNT, or TASK/VARIANT: {DEVICE: COUNT}; one of each "
            "variant if not given."
        ),
    ] = field(default_factory=dict)
    placed: Annotated[dict[tuple[str, str], dict[str, int]], *UNWRITTEN] = field(
        default_factory=dict
    )
    pinned: Annotated[Instances, says("Copies that placement may not take away.")] = field(
        default_factory=dict
    )
    buffer: Annotated[
        Count | None,
        says("Most requests at one instance, the one in service included; unlimited if not given."),
    ] = None
    queue: Annotated[
        Literal["per-server", "central"],
        says("Whether requests wait at an instance or in one queue of the node."),
    ] = "per-server"
    late: Annotated[
        Literal["drop", "serve"],
        says("What becomes of a request whose deadline passes in the queue."),
    ] = "drop"
    failures: Annotated[
        dict[Pair, Failure],
        Field(json_schema_extra={"examples": [{"digits/tiny": {"every": "1 h", "for": "60 s"}}]}),
        says("Which variants' instances fail and return at random, as TASK/VARIANT."),
    ] = field(default_factory=dict)
    outages: Annotated[tuple[Outage, ...], says("Failures at set times.")] = ()
    repository: Annotated[Switch, says("Whether this node can always serve every task.")] = False
    address: Annotated[
        HostPort | None,
        says("Where clients reach it, port 8000 if not given; {node} stands for its name."),
    ] = None
    peer: Annotated[
        HostPort | None,
        says("Where other nodes forward to; the same host and port 8003 if not given."),
    ] = None
    control: Annotated[
        HostPort | None,
        says("Where its neighbors' control messages go; the same host and port 7447 if not given."),
    ] = None
    store: Annotated[Store, says("The models on its disk, and where others may come from.")] = (
        field(default_factory=Store)
    )
    limits: Annotated[NodeLimits, says("Most memory that requests may take.")] = field(
        default_factory=NodeLimits
    )

    @property
    def kinds(self) -> list[str]:
        """Hardware of its devices, or its own."""
        return [device.hardware for device in self.devices.values()] or [self.hardware]

    def hardware_of(self, device: str) -> str:
        """Hardware of one of its devices; its own where the name is empty."""
        return self.devices[device].hardware if device else self.hardware

    @property
    def leads_s(self) -> dict[str, float]:
        """Time that each request takes of a device before it runs there, s, by device."""
        measured = self.measured_overhead
        lead_s = self.overhead_s
        if lead_s is None:
            lead_s = 0.0 if measured is None else measured.seconds
        return {name: lead_s if name == self.leading else 0.0 for name in self.devices}

    @property
    def leading(self) -> str:
        """Device whose cores requests take before they run: its first with cores; or empty."""
        return next((name for name, one in self.devices.items() if one.cores is not None), "")

    def copies_by_hardware(self, task: str, variant: str) -> list[tuple[str, int]]:
        """List the hardware that copies of a variant run on, and how many on each."""
        placed = self.placed.get((task, variant))
        if not placed:
            return [(self.hardware, self.instances.get((task, variant), 0))]
        return [(self.devices[name].hardware, count) for name, count in placed.items()]

    def device_refusal(self, where: str) -> str | None:
        """Say that only what is of a site alone knows its devices; None without any."""
        if not self.devices:
            return None
        return (
            f"{where}.devices: that instances wait for cores or accelerators which they share is "
            "known to `inferway check`, `bound`, `plan`, `simulate` and `serve` of a node alone; "
            "leave it out here"
        )

    @model_validator(mode="before")
    @classmethod
    def _has_one_hardware(cls, value: Any) -> Any:
        both = isinstance(value, dict) and {"hardware", "devices"} <= value.keys()
        if both:
            raise refuse_at("hardware", "the `devices` say their own, so keep one of both")
        return value


@dataclass(frozen=True)
class BudgetShare(Section):
    """A part of a tier's nodes and their budget."""

    share: Annotated[Ratio, says("Share of the tier's nodes.")]
    size_bytes: Annotated[Bytes, says("Budget of each of them.", "size")]


Budget = Annotated[
    Annotated[Bytes, Tag("one")]
    | Annotated[tuple[BudgetShare, ...], Field(min_length=1), Tag("shares")],
    Discriminator(lambda value: "shares" if isinstance(value, list) else "one"),
]


@dataclass(frozen=True)
class Tier(Node):
    """One level of a tree of nodes, from the root down."""

    tier: Annotated[Name, says("Its name.")] = field(kw_only=True)
    nodes: Annotated[Count, says("How many nodes it has.")] = field(kw_only=True)
    rtt_s: Annotated[
        Seconds | None,
        says("Round-trip time from each of its nodes to its parent in the tier above.", "rtt"),
    ] = field(default=None, kw_only=True)
    budget_bytes: Annotated[
        Budget | None,
        says("Budget of each node, or shares of the nodes with different budgets.", "budget"),
    ] = None  # type: ignore[assignment]

    @field_validator("budget_bytes")
    @classmethod
    def _shares_add_up(cls, budget: Any) -> Any:
        total = sum(part.share for part in budget) if isinstance(budget, tuple) else 1
        sentence = f"the shares of a tier's nodes add up to {total:.4g}, not to 1"
        refuse_where((abs(total - 1) > 1e-9, sentence))
        return budget

    @model_validator(mode="after")
    def _have_addresses_of_their_own(self) -> Tier:
        for key in ("address", "peer", "control"):
            address = getattr(self, key)
            if self.nodes > 1 and address is not None and NODE not in address:
                raise refuse(
                    f"tier {self.tier} has {self.nodes} nodes, which cannot share one `{key}`; "
                    f"write {NODE} where a node's name belongs, such as {NODE}.example.org"
                )
        return self


@dataclass(frozen=True)
class Link(Section):
    """A connection of two nodes."""

    between: Annotated[tuple[Name, Name], says("The two nodes.")]
    rtt_s: Annotated[Seconds, says("Round-trip time.", "rtt")]

    _differ = field_validator("between")(
        must(lambda ends: len(set(ends)) > 1, "a link joins two nodes, but both ends are {0[0]}")
    )


@dataclass(frozen=True)
class Network(Section):
    """How the nodes are joined: links by name, a tree of tiers, or a graph file."""

    links: Annotated[
        Annotated[tuple[Link, ...], Field(min_length=1)] | None,
        says("Links between the nodes under `nodes`."),
    ] = None
    tree: Annotated[
        Annotated[tuple[Tier, ...], Field(min_length=1)] | None,
        says("Tiers of nodes, the root first."),
    ] = None
    gml: Annotated[File | None, says("A graph in GML, such as the Internet Topology Zoo's.")] = None
    others: Annotated[
        Node | None,
        says("What the nodes of a graph or of links are that `nodes` does not describe."),
    ] = None
    max_wait: Annotated[
        PositiveSeconds,
        says(
            "A live node's servers with a longer predicted wait are "
            "passed over; a repository's never."
        ),
    ] = 0.1

    def kinds(self, described: Collection[str]) -> list[str]:
        """List the hardware of nodes other than those that are `described` by name."""
        if self.tree is not None:
            return [tier.hardware for tier in self.tree]
        ends = {name for link in self.links or () for name in link.between}
        if self.gml is None and ends <= set(described):
            return []
        return (Node() if self.others is None else self.others).kinds

    @field_validator("tree")
    @classmethod
    def _is_a_tree(cls, tree: tuple[Tier, ...]) -> tuple[Tier, ...]:
        root, total = tree[0], sum(tier.nodes for tier in tree)
        (name, times), *_ = Counter(tier.tier for tier in tree).most_common(1)
        alone = f"tier {root.tier} is the root and has"
        above = "needs `rtt`, the round-trip time to the tier above"
        refuse_where(
            (root.rtt_s is not None, f"{alone} no parent, so it takes no `rtt`"),
            (root.nodes != 1, f"{alone} one node, not {root.nodes}"),
            *((tier.rtt_s is None, f"tier {tier.tier} {above}") for tier in tree[1:]),
            (times > 1, f"two tiers are called {name}"),
            (total > MOST, f"the tiers have {total:,} nodes together, and {MOST:,} are the most"),
            (
                not any(tier.repository for tier in tree),
                "no tier has `repository: true`; some node must always be able to serve",
            ),
        )
        return tree

    @model_validator(mode="after")
    def _has_one_form(self) -> Network:
        refuse_where(
            (
                sum(form is not None for form in (self.links, self.tree, self.gml)) != 1,
                "a network needs one of `links`, `tree` and `gml`",
            ),
            (
                self.tree is not None and self.others is not None,
                "the tiers of a `tree` say what its nodes are, so it takes no `others`",
            ),
        )
        return self
