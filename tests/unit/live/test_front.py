"""Pages of the admin listener, and what they leave to others."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

from inferway.live.front import decisions_page


def test_decisions_of_many_tasks_leave_the_loop_to_others_in_between() -> None:
    happened: list[str] = []

    def site(name: str) -> Any:
        def decisions(_count: int, _now_s: float) -> list[Any]:
            happened.append(name)
            return []

        return SimpleNamespace(log=SimpleNamespace(decisions=decisions), now=lambda: 0.0)

    async def main() -> bytes:
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        exchange: Any = SimpleNamespace(respond=lambda _status, body: answered.set_result(body))
        decisions_page(lambda: {"a": site("a"), "b": site("b")})(exchange)
        asyncio.get_running_loop().call_soon(happened.append, "another request")
        return await answered

    told = json.loads(asyncio.run(main()))
    assert told == {"schema": 1, "tasks": {"a": [], "b": []}}
    assert happened == ["a", "another request", "b"]
