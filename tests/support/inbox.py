"""People who decide, for tests of the whole."""

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx

from support.platform import Platform


@dataclass
class Inbox:
    """The approvals of one task over REST."""

    platform: Platform
    task_id: str

    async def pending(self, count: int = 1, timeout_s: float = 60) -> list[dict[str, Any]]:
        """Wait until so many wait; the oldest first."""
        async with asyncio.timeout(timeout_s):
            while True:
                page = await self.platform.get("/v1/approvals", task_id=self.task_id, state="pending", limit=100)
                found = sorted(
                    page["data"], key=lambda each: (each["requested_at"], each["subject"].get("call_id", ""))
                )
                if len(found) >= count:
                    task = await self.platform.task(self.task_id)
                    assert {each["id"] for each in found} <= set(task["waiting_for"]) | await self._decided()
                    return found
                await asyncio.sleep(0.05)

    async def _decided(self) -> set[str]:
        events = await self.platform.events(self.task_id)
        return {event["data"]["approval_id"] for event in events if event["type"] == "approval.decided"}

    async def post(self, approval_id: str, decision: str, **more: Any) -> httpx.Response:
        body = {"decision": decision, **more}
        return await self.platform.client.post(f"/v1/approvals/{approval_id}", json=body)

    async def decide(self, approval_id: str, decision: str, **more: Any) -> dict[str, Any]:
        response = await self.post(approval_id, decision, **more)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    async def approve_all(self, count: int) -> None:
        """Approve whatever is asked, one after the other."""
        for _ in range(count):
            await self.decide((await self.pending())[0]["id"], "approve")
