"""A workflow whose payloads are far too large for a history, importable by name: the workflow sandbox imports it again."""

import asyncio
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.common import RetryPolicy

QUICK = RetryPolicy(initial_interval=timedelta(milliseconds=100), maximum_interval=timedelta(milliseconds=500))
TIMES = 4


@activity.defn
async def produce(size: int) -> str:
    return "é" * (size // 2)


@activity.defn
async def measure(text: str) -> int:
    return len(text.encode())


@workflow.defn
class Bulky:
    """Returns the bytes that went through it; waits for the signal ``go`` in between, whose argument is large too."""

    def __init__(self) -> None:
        self._said: str | None = None

    @workflow.signal
    def go(self, text: str) -> None:
        self._said = text

    @workflow.run
    async def run(self, size: int) -> int:
        texts = await asyncio.gather(
            *(
                workflow.execute_activity(
                    produce, size, start_to_close_timeout=timedelta(seconds=30), retry_policy=QUICK
                )
                for _ in range(TIMES)
            )
        )
        await workflow.wait_condition(lambda: self._said is not None)
        sizes = [
            await workflow.execute_activity(
                measure, text, start_to_close_timeout=timedelta(seconds=30), retry_policy=QUICK
            )
            for text in [*texts, self._said or ""]
        ]
        return sum(sizes)
