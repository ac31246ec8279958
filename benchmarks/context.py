"""A hundred model calls with a context of 200,000 tokens: how large histories get, how long prompts take, whether workers grow.

One task on the real stack with one worker. Its instruction alone fills the context, so that each call carries all of it.
History is what Temporal returns for every run of every workflow of the task, in bytes. Assembly is measured by the worker
itself, from the first statement of SQL to the messages that are sent.
"""

import asyncio
import socket
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil
from temporalio.client import Client

from benchmarks.platform_run import Run, call, threads
from benchmarks.results import Row, report
from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.temporal import connect

CALLS = 100
TOKENS = 200_000
BYTES_PER_TOKEN = 4
FIRST = 20
"""Calls after which caches are warm: memory and assembly are compared from here on."""


@asynccontextmanager
async def platform(metrics_port: int) -> AsyncIterator[Run]:
    with tempfile.TemporaryDirectory(prefix="jm-bench-", ignore_cleanup_errors=True) as root:
        scripts = Path(root) / "scripts"
        scripts.mkdir()
        settings = Settings(
            data_dir=Path(root) / "data",
            model_base_url=None,
            replay_scripts=scripts,
            model_context_tokens=TOKENS * 3,
            worker_metrics_port=metrics_port,
        )
        async with EmbeddedStack(Path(root) / "data", settings=settings, workers=1) as stack:
            key = (stack.settings.data_dir / "admin.key").read_text().strip()
            async with httpx.AsyncClient(
                base_url=stack.settings.api_url, headers={"Authorization": f"Bearer {key}"}, timeout=60
            ) as client:
                yield Run(stack, client, scripts)


async def assembly(port: int) -> tuple[float, float]:
    """Seconds and number of all assemblies so far."""
    async with httpx.AsyncClient() as client:
        page = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("journeyman_prompt_assembly"))
    name = "journeyman_prompt_assembly_seconds"
    return float(values[f"{name}_sum"]), float(values[f"{name}_count"])


async def answered(run: Run, task_id: str) -> int:
    """Model calls that the Coder has had answered."""
    response = await run.client.get(f"/v1/tasks/{task_id}")
    response.raise_for_status()
    usage = await run.client.get(f"/v1/tasks/{task_id}/usage")
    return int(usage.json()["calls"])


async def history_bytes(client: Client, task_id: str) -> int:
    """Of all runs of the task's workflow and of its subtasks'."""
    total = 0
    async for execution in client.list_workflows(f"WorkflowId = '{task_id}' OR WorkflowId STARTS_WITH '{task_id}/'"):
        history = await client.get_workflow_handle(execution.id, run_id=execution.run_id).fetch_history()
        total += sum(event.ByteSize() for event in history.events)
    return total


async def run() -> list[Row]:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    async with platform(port) as running:
        turns = [call("shell", command=f"echo {number} > n") for number in range(CALLS)]
        filler = f"Benchmark {uuid.uuid4()}\n" + "".join(f"Line {number}: nothing to do.\n" for number in range(28_000))
        instruction = filler[: TOKENS * BYTES_PER_TOKEN].rstrip()
        task_id = await running.submit(threads(*turns), instruction=instruction)
        worker = psutil.Process(next(part.pid for part in running.stack.parts if part.name == "worker-1") or 0)
        while await answered(running, task_id) < FIRST:
            await asyncio.sleep(0.05)
        memory, (seconds, count) = worker.memory_info().rss, await assembly(port)
        task = await running.end(task_id, 600)
        if task["state"] != "succeeded":
            raise RuntimeError(f"the task ended as {task['state']}: {task['failure']}")
        grown = worker.memory_info().rss - memory
        all_seconds, all_count = await assembly(port)
        history = await history_bytes(await connect(running.stack.settings), task_id)
    name = f"{CALLS} calls with {TOKENS:,} tokens"
    return [
        Row(name, "workflow history", history / 1e6, "MB", 1),
        Row(name, "prompt assembly, mean", 1000 * (all_seconds - seconds) / (all_count - count), "ms", 30),
        Row(name, f"worker's memory, call {FIRST} to the last", grown / 1e6, "MB", 40),
        Row(name, "worker's memory at the end", (memory + grown) / 1e6, "MB"),
    ]


def main() -> None:
    report("context", asyncio.run(run()))


if __name__ == "__main__":
    main()
