"""How soon a cancellation takes effect: from the request until ``task.cancelled`` is written, in the middle of a long call."""

import asyncio
from datetime import UTC, datetime
from typing import Any

from benchmarks.platform_run import Run, call, platform, threads
from benchmarks.results import Row, percentile, report

SAMPLES = 20
TARGET_S = 1.0


async def cancel(run: Run, turn: dict[str, Any], begun: str) -> float:
    task_id = await run.submit(threads(turn))
    async with asyncio.timeout(60):
        while not any(e["type"] == begun and e["data"].get("role") == "coder" for e in await run.events(task_id)):
            await asyncio.sleep(0.05)
    # Well inside of the call: its process runs, its connection stands.
    await asyncio.sleep(0.5)
    asked = datetime.now(UTC)
    (await run.client.post(f"/v1/tasks/{task_id}/cancel")).raise_for_status()
    await run.end(task_id, 60)
    ended = (await run.events(task_id))[-1]
    if ended["type"] != "task.cancelled":
        raise RuntimeError(f"the task ended with {ended['type']}")
    return (datetime.fromisoformat(ended["time"]) - asked).total_seconds()


async def measure() -> list[Row]:
    rows: list[Row] = []
    async with platform() as run:
        await cancel(run, call("shell", command="sleep 60"), "agent.tool_call")
        for name, turn, begun in (
            ("a model call", {**call("shell", command="true"), "delay_ms": 60_000}, "model.started"),
            ("a command", call("shell", command="sleep 60"), "agent.tool_call"),
        ):
            times = [await cancel(run, turn, begun) for _ in range(SAMPLES)]
            rows.append(Row(f"cancel in the middle of {name}", f"p50 of {SAMPLES}", percentile(times, 0.5), "s"))
            rows.append(
                Row(f"cancel in the middle of {name}", f"p95 of {SAMPLES}", percentile(times, 0.95), "s", TARGET_S)
            )
    return rows


if __name__ == "__main__":
    report("cancel", asyncio.run(measure()))
