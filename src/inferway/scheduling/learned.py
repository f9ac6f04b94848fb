"""Learned schedulers ([Tan24]): what a trained network says, as routing.

RL-PO sees the site, RL-FO also the workload's phase; those with ``-b`` set batch sizes as well.
They act without noise, as in the paper's evaluation: probabilities are the softmax of the first n
outputs (eq. 8 with sigma 0), batch sizes the pair with the greatest output of its class.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inferway.scheduling.contract import Routing, Signal
from inferway.scheduling.neural_policy import NeuralPolicy, pairs_of
from inferway.scheduling.observation import Vector, observe
from inferway.site.view import Floats, Ints, Site


class Learned:
    """A trained network that observes and acts."""

    def __init__(self, network: NeuralPolicy) -> None:
        self.network = network
        self._layout = network.about.layout

    def observe(self, site: Site, signal: Signal, servers: Ints | None = None) -> Vector:
        """The vector of `inferway.scheduling.observation`, of these servers or of all."""
        return observe(self._layout, site, signal, servers)

    def act(self, observation: Vector) -> Routing:
        """Routing over the servers, and batch sizes of the classes, that it was trained for."""
        return routing_of(self.network, self.network.forward(observation))


def routing_of(network: NeuralPolicy, outputs: Any) -> Routing:
    """What (outputs,) numbers of a network mean."""
    about = network.about
    servers, classes = sum(about.counts), len(about.counts)
    smallest, largest = np.ones(classes, np.int64), np.ones(classes, np.int64)
    at = servers
    for k, sizes in enumerate(about.batch_sizes or ()):
        pairs = pairs_of(sizes)
        smallest[k], largest[k] = pairs[int(np.argmax(outputs[at : at + len(pairs)]))]
        at += len(pairs)
    return Routing(softmax(outputs[:servers]), smallest, largest)


def softmax(values: Any) -> Floats:
    """(n,) probabilities in proportion to the exponentials of (n,) numbers."""
    scaled = np.exp(np.asarray(values, np.float64) - np.max(values))
    return np.asarray(scaled / scaled.sum())
