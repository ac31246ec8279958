"""Waiting in tests: for a condition, never for a time."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

_AGAIN_S = 0.02


async def until(condition: Callable[[], Any], timeout_s: float = 60) -> Any:
    """Ask again and again until the answer is true, and return it; ``condition`` may be asynchronous. Raises ``TimeoutError``."""
    async with asyncio.timeout(timeout_s):
        while True:
            found = condition()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(_AGAIN_S)
