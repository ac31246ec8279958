"""Waiting in tests: for a condition, never for a time."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

R = TypeVar("R")

_AGAIN_S = 0.02


async def until(condition: Callable[[], R | Awaitable[R]], timeout_s: float = 60) -> R:
    """Ask again and again until the answer is true, and return it. Raises ``TimeoutError`` when that does not come."""
    async with asyncio.timeout(timeout_s):
        while True:
            found = condition()
            held: R = await found if inspect.isawaitable(found) else found
            if held:
                return held
            await asyncio.sleep(_AGAIN_S)
