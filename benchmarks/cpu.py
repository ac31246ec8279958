"""CPU time of the platform's processes: what a step costs however busy the machine is otherwise."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import psutil

from journeyman.apps.embedded.stack import EmbeddedStack

EVERY_S = 0.25

_WITH_CHILDREN = {"postgres", "temporal", "objects", "embeddings"}
"""The first has a process for each connection, the others are children of their gates."""

Usage = Counter[str]
"""Milliseconds of CPU by kind of process: ``postgres``, ``temporal``, ``workers`` …"""


def used(stack: EmbeddedStack) -> Usage:
    """What each kind of process has used so far; sandboxes are left out, which are children of workers."""
    spent: Usage = Counter()
    for part in stack.parts:
        if part.pid is None:
            continue
        kind = "workers" if part.name.startswith("worker-") else part.name
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(part.pid)
            spent[kind] += _milliseconds(process)
            for child in process.children() if kind in _WITH_CHILDREN else ():
                with suppress(psutil.NoSuchProcess):
                    spent[kind] += _milliseconds(child)
    return spent


def _milliseconds(process: psutil.Process) -> int:
    times = process.cpu_times()
    return round((times.user + times.system) * 1000)


class Watch:
    """Samples of the use, by the clock that events carry."""

    def __init__(self) -> None:
        self.samples: list[tuple[datetime, Usage]] = []

    def between(self, start: datetime, end: datetime) -> Usage:
        """What was used from the first sample after ``start`` to the last before ``end``, stretched to the whole time."""
        inside = [sample for sample in self.samples if start <= sample[0] <= end]
        (first, before), (last, after) = inside[0], inside[-1]
        stretch = (end - start) / (last - first)
        return Counter({kind: round((after[kind] - before[kind]) * stretch) for kind in after})


@asynccontextmanager
async def watching(stack: EmbeddedStack) -> AsyncIterator[Watch]:
    """Sample the use of CPU while the block runs."""
    watch = Watch()

    async def sample() -> None:
        while True:
            watch.samples.append((datetime.now(UTC), used(stack)))
            await asyncio.sleep(EVERY_S)

    sampling = asyncio.create_task(sample())
    try:
        yield watch
    finally:
        sampling.cancel()
