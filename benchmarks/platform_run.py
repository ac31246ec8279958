"""A whole embedded platform for a benchmark, and scripted tasks to run on it."""

import asyncio
import json
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.kit.settings import Settings
from journeyman.platform.tasks.contract import TERMINAL


@dataclass
class Run:
    """The running platform."""

    stack: EmbeddedStack
    client: httpx.AsyncClient
    scripts: Path

    async def submit(
        self, threads: list[dict[str, Any]], instruction: str | None = None, *, record: bool = False, **fields: Any
    ) -> str:
        """Submit a task whose agents answer as the threads say; returns its id. ``record`` keeps the requests' bodies."""
        instruction = instruction or f"Benchmark {uuid.uuid4()}"
        script = {"name": uuid.uuid4().hex, "instruction": instruction, "threads": threads, "record": record}
        path = self.scripts / f"{script['name']}.json"
        path.with_suffix(".partial").write_text(json.dumps(script))
        path.with_suffix(".partial").rename(path)
        body = {"instruction": instruction, "workspace": {"source": "none"}, **fields}
        response = await self.client.post("/v1/tasks", json=body)
        response.raise_for_status()
        return str(response.json()["id"])

    async def end(self, task_id: str, timeout_s: float) -> dict[str, Any]:
        """The task once it has ended."""
        async with asyncio.timeout(timeout_s):
            while True:
                response = await self.client.get(f"/v1/tasks/{task_id}")
                response.raise_for_status()
                task: dict[str, Any] = response.json()
                if task["state"] in TERMINAL:
                    return task
                await asyncio.sleep(0.25)

    async def events(self, task_id: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        while True:
            after = events[-1]["seq"] if events else 0
            response = await self.client.get(f"/v1/tasks/{task_id}/events", params={"after": after, "limit": 100})
            response.raise_for_status()
            page = response.json()["data"]
            if not page:
                return events
            events.extend(page)


@asynccontextmanager
async def platform() -> AsyncIterator[Run]:
    """Start everything in a temporary data directory; stopped and removed at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="jm-bench-", ignore_cleanup_errors=True) as root:
        scripts = Path(root) / "scripts"
        scripts.mkdir()
        settings = Settings(data_dir=Path(root) / "data", model_base_url=None, replay_scripts=scripts)
        async with EmbeddedStack(Path(root) / "data", settings=settings) as stack:
            key = (stack.settings.data_dir / "admin.key").read_text().strip()
            async with httpx.AsyncClient(
                base_url=stack.settings.api_url, headers={"Authorization": f"Bearer {key}"}, timeout=30
            ) as client:
                yield Run(stack, client, scripts)


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": tool, "arguments": arguments}]}


def threads(*coder_turns: dict[str, Any]) -> list[dict[str, Any]]:
    """One subtask, done by these turns and approved at once."""
    subtask = {"id": "s1", "title": "Work", "instructions": "Work.", "depends_on": [], "acceptance": []}
    return [
        {"role": "planner", "turns": [call("submit_plan", subtasks=[subtask], acceptance=[])]},
        {"role": "coder", "subtask": "s1", "turns": [*coder_turns, call("submit_work", summary="Done.")]},
        {
            "role": "reviewer",
            "subtask": "s1",
            "round": 1,
            "turns": [call("submit_review", verdict="approve", findings=[])],
        },
    ]
