"""The running platform as a client of its REST API sees it, for tests of the whole."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.tasks.contract import TERMINAL


@dataclass
class Outcome:
    """A task that has ended, with its whole event log."""

    task: dict[str, Any]
    events: list[dict[str, Any]]

    def of(self, *types: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] in types]

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    def results(self, tool: str | None = None) -> list[dict[str, Any]]:
        return [event["data"] for event in self.of("agent.tool_result") if tool in {None, event["data"]["tool"]}]


@dataclass
class Platform:
    """The running platform as a client sees it."""

    client: httpx.AsyncClient
    scripts: Path
    submitted: list[str] = field(default_factory=list)
    recorded: dict[str, Path] = field(default_factory=dict)
    """By instruction, where the bodies of the requests of a script with ``record`` are kept."""

    def register(self, threads: list[dict[str, Any]], instruction: str | None = None, *, record: bool = False) -> str:
        """Give the replay engine a script, and return the instruction that it plays it for."""
        instruction = instruction or f"Scripted task {uuid.uuid4()}"
        script = {"name": uuid.uuid4().hex, "instruction": instruction, "threads": threads, "record": record}
        path = self.scripts / f"{script['name']}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(script))
        partial.rename(path)
        if record:
            self.recorded[instruction] = path.with_suffix(".requests")
        return instruction

    async def submit(self, threads: list[dict[str, Any]], **fields: Any) -> str:
        """Register the script under an instruction of its own, and submit that."""
        instruction = self.register(threads, fields.pop("instruction", None), record=fields.pop("record", False))
        body = {"instruction": instruction, "workspace": {"source": "none"}, **fields}
        response = await self.client.post("/v1/tasks", json=body)
        assert response.status_code == 201, response.text
        task_id: str = response.json()["id"]
        self.submitted.append(task_id)
        return task_id

    async def task(self, task_id: str) -> dict[str, Any]:
        response = await self.client.get(f"/v1/tasks/{task_id}")
        response.raise_for_status()
        return response.json()

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

    async def wait_for(self, task_id: str, condition: Any, timeout_s: float = 60) -> dict[str, Any]:
        """Poll the task until ``condition(task)`` is true."""
        async with asyncio.timeout(timeout_s):
            while True:
                task = await self.task(task_id)
                if condition(task):
                    return task
                await asyncio.sleep(0.05)

    async def wait_until(self, task_id: str, condition: Any, timeout_s: float = 60) -> None:
        """Poll the log until ``condition(events)`` is true."""
        async with asyncio.timeout(timeout_s):
            while not condition(await self.events(task_id)):
                await asyncio.sleep(0.05)

    async def wait_until_event(self, task_id: str, type_: str, timeout_s: float = 60) -> None:
        """Poll the log until it holds an event of that type."""
        async with asyncio.timeout(timeout_s):
            while not any(event["type"] == type_ for event in await self.events(task_id)):
                await asyncio.sleep(0.05)

    async def wait_until_call(self, task_id: str, text: str, timeout_s: float = 60) -> None:
        """Poll the log until an agent has called a tool with this text among the arguments."""
        async with asyncio.timeout(timeout_s):
            while not any(
                event["type"] == "agent.tool_call" and text in event["data"]["arguments"]
                for event in await self.events(task_id)
            ):
                await asyncio.sleep(0.05)

    async def wait_until_still(self, task_id: str, quiet_s: float = 1.5, timeout_s: float = 60) -> None:
        """Wait until the log has not grown for a while: what was under way when the task was paused has ended."""
        async with asyncio.timeout(timeout_s):
            length = -1
            while length != (length := len(await self.events(task_id))):
                await asyncio.sleep(quiet_s)

    async def end(self, task_id: str, timeout_s: float = 90) -> Outcome:
        try:
            task = await self.wait_for(task_id, lambda task: task["state"] in TERMINAL, timeout_s)
        except TimeoutError:
            tail = [(event["type"], event["data"]) for event in (await self.events(task_id))[-6:]]
            raise AssertionError(f"task did not end; its last events: {tail}") from None
        outcome = Outcome(task, await self.events(task_id))
        assert [event["seq"] for event in outcome.events] == list(range(1, len(outcome.events) + 1))
        return outcome

    async def run(self, threads: list[dict[str, Any]], **fields: Any) -> Outcome:
        return await self.end(await self.submit(threads, **fields))

    def requests(self, instruction: str) -> list[bytes]:
        """The bodies of all requests that reached the engine for a task with ``record=True``, in order."""
        folder = self.recorded[instruction]
        return [file.read_bytes() for file in sorted(folder.iterdir())] if folder.exists() else []

    async def get(self, path: str, **params: Any) -> Any:
        response = await self.client.get(path, params=params)
        response.raise_for_status()
        return response.json()


@asynccontextmanager
async def client_of(stack: EmbeddedStack) -> AsyncIterator[Platform]:
    """A client with the stack's admin key; what is submitted through it is cancelled at the end."""
    settings = stack.settings
    assert settings.replay_scripts is not None
    key = (settings.data_dir / "admin.key").read_text().strip()
    async with httpx.AsyncClient(
        base_url=settings.api_url, headers={"Authorization": f"Bearer {key}"}, timeout=30
    ) as client:
        running = Platform(client, settings.replay_scripts)
        yield running
        for task_id in running.submitted:
            await client.post(f"/v1/tasks/{task_id}/cancel")
