"""What a site needs of whoever decides for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from inferway.site import Fleet

if TYPE_CHECKING:
    from inferway.dispatch.dispatcher import Plan


class Decisions(Protocol):
    """What a site needs of `inferway.dispatch.Dispatcher`."""

    fleet: Fleet
    policy: Any
    site: Any
    """The view that its policy sees."""

    @property
    def predicted_wait_s(self) -> float:
        """Predicted wait of the last request dispatched."""

    @property
    def predicted_service_s(self) -> float:
        """Predicted service time of the last request dispatched."""

    @property
    def balance(self) -> float:
        """The accuracy balance."""

    def arrive(
        self,
        now_s: float,
        draw: int,
        deadline_s: float,
        floor: float,
        priority: int,
        classes: int,
        rows: int,
        counted: bool,
    ) -> int:
        """Choose a server and admit the request there."""

    def pull(self, server: int, now_s: float, draw: int) -> tuple[int, int]:
        """How many requests a free server drops and takes."""

    def begin(self, server: int, taken: int, now_s: float) -> None:
        """A free server serves so many requests together; with 0 it waits for more."""

    def finish(self, server: int, now_s: float, service_s: float, measured: int) -> None:
        """The first request has been answered; `measured` is of how many rows its service was."""

    def withdraw(self, server: int, position: int, now_s: float, counted: bool) -> None:
        """A request leaves with no answer, from this place in the server's queue."""

    def mark(self, server: int, healthy: bool, now_s: float) -> None:
        """The server takes requests from now on, or does not."""

    def shift(self, low: int, high: int, by_s: float, least_s: float, now_s: float) -> None:
        """Services at servers low .. high - 1 take so much longer from now on, or less."""

    @property
    def routed(self) -> bool:
        """Whether a scheduler can set the routing."""

    @property
    def routing(self) -> Any:
        """(n,) probabilities that requests are routed by; None where they are not."""

    def route(self, probabilities: Any, smallest: Any = None, largest: Any = None) -> None:
        """Route so from now on; None leaves it to the policy."""

    def plan(self, rate_per_s: float) -> Plan:
        """What the policy would keep at another arrival rate; may be called in any thread."""

    def adopt(self, plan: Plan) -> None:
        """Go on by a plan."""
