"""One embedded stack for a whole test session, growing by what tests ask for."""

import asyncio
import os
import signal
import tempfile
from pathlib import Path

from journeyman.apps.embedded.specs import Part, Status
from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.kit.settings import Settings

RUN_EVENTS = 40
"""Events of a workflow's run after which Temporal suggests a new one: some six turns, so that long tasks have many runs."""


class SessionStack:
    """Starts nothing until a test asks, then only that, once, and stops all of it at the end.

    ``single_node``: see ``Settings``; it is on wherever one machine does it all. Lives below a short temporary directory: Unix
    sockets have a limit of 108 bytes.
    """

    def __init__(self, *, single_node: bool = True) -> None:
        self._single_node = single_node
        self._root = tempfile.TemporaryDirectory(prefix="jm-test-", ignore_cleanup_errors=True)
        self.directory = Path(self._root.name)
        self._stack: EmbeddedStack | None = None
        self._lock = asyncio.Lock()

    async def ask(self, *parts: str) -> EmbeddedStack:
        """The running stack, with at least these parts ready."""
        async with self._lock:
            if self._stack is None:
                scripts = self.directory / "scripts"
                scripts.mkdir()
                # Stated, not read from the environment: a developer's own settings change no test.
                settings = Settings(
                    data_dir=self.directory / "data",
                    model_base_url=None,
                    replay_scripts=scripts,
                    temporal_run_events=RUN_EVENTS,
                    worker_roles="orchestration,sandboxes",
                )
                stack = EmbeddedStack(self.directory / "data", parts=(), settings=settings, workers=2)
                await stack.start()
                stack.settings = stack.settings.model_copy(update={"single_node": self._single_node})
                self._stack = stack
            await self._stack.add(*parts)
            return self._stack

    async def kill_and_wait(self, name: str, timeout_s: float = 30) -> None:
        """``kill -9`` one process of the stack, and wait until its successor is ready."""
        stack = await self.ask()
        await kill_and_wait(stack, name, timeout_s)

    async def close(self) -> None:
        if self._stack is not None:
            await self._stack.stop()
        self._root.cleanup()


def part_of(stack: EmbeddedStack, name: str) -> Part:
    return next(part for part in stack.parts if part.name == name)


async def kill_and_wait(stack: EmbeddedStack, name: str, timeout_s: float = 30) -> None:
    """``kill -9`` one process, and wait until another is ready in its place."""
    part = part_of(stack, name)
    victim = part.pid
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    async with asyncio.timeout(timeout_s):
        while part.pid in {None, victim} or part.status is not Status.READY:
            await asyncio.sleep(0.02)
