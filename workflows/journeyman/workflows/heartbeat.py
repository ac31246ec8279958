"""Heartbeats of activities: a dead worker is noticed by them, and a cancellation reaches the activity with them."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio import activity

from journeyman.workflows import timing

S = TypeVar("S")
A = TypeVar("A")
R = TypeVar("R")


async def _beat() -> None:
    while True:
        await asyncio.sleep(timing.BEAT.total_seconds())
        activity.heartbeat()


def beating(body: Callable[[S, A], Awaitable[R]]) -> Callable[[S, A], Awaitable[R]]:
    """Wrap an activity method so that it sends a heartbeat every ``timing.BEAT``.

    Heartbeats run on the event loop of the body: a blocked loop stops them, and another worker takes the activity over. When
    the server answers a heartbeat with a cancellation, the SDK cancels the body.
    """

    @functools.wraps(body)
    async def wrapped(self: S, argument: A) -> R:
        beats = asyncio.create_task(_beat())
        try:
            return await body(self, argument)
        finally:
            beats.cancel()

    return wrapped
