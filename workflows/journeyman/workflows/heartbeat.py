"""Beats beside an activity's body, so that a dead worker is noticed and a cancellation reaches the body."""

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
    """Wrap an activity method: beats come every ``timing.BEAT``, none from a body that is done sooner.

    The beats run on the same event loop as the body. A loop that is blocked therefore stops beating, and its
    activities are taken over. When the answer to a beat tells of a cancellation, the SDK cancels the body.
    """

    @functools.wraps(body)
    async def wrapped(self: S, argument: A) -> R:
        beats = asyncio.create_task(_beat())
        try:
            return await body(self, argument)
        finally:
            beats.cancel()

    return wrapped
