"""One embedded stack for a whole test session, growing by what tests ask for."""

import asyncio
import tempfile
from pathlib import Path

from journeyman.platform.embedded.stack import EmbeddedStack
from journeyman.platform.kit.settings import Settings


class SessionStack:
    """Starts nothing until a test asks, then only that, once, and stops all of it at the end.

    Lives below a short temporary directory: Unix sockets have a limit of 108 bytes.
    """

    def __init__(self) -> None:
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
                    worker_roles="orchestration,models,sandboxes,deliveries",
                )
                stack = EmbeddedStack(self.directory / "data", parts=(), settings=settings, workers=2)
                await stack.start()
                self._stack = stack
            await self._stack.add(*parts)
            return self._stack

    async def close(self) -> None:
        if self._stack is not None:
            await self._stack.stop()
        self._root.cleanup()
