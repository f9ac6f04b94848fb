"""The router of Ray Serve for deployments that an ingress asks."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import FIFOMixin, RequestRouter


class FreeReplicaRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Sends a request to the replica that has the fewest.

    The ingress sends no more than the replicas take, so one is free; which of them is settled
    before anything is sent. Ray Serve's own router looks at two of them, waits where both are busy,
    and asks replicas how busy they are.
    """

    def __init__(self, deployment_id: Any, *given: Any, **named: Any) -> None:
        # Ray Serve pickles this class whole, and with it what its module holds.
        from inferway.ray.variant import routers

        super().__init__(deployment_id, *given, **named)
        routers[deployment_id.app_name, deployment_id.name] = self

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """Rank all that are free first; where none is, all."""
        free = self.select_available_replicas(candidates=candidate_replicas)
        return [free or candidate_replicas]
