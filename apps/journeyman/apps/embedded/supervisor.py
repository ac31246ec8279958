"""Runs a stack until it is told to stop: SIGTERM, SIGINT or SIGHUP stop it in order, a second one at once."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress

from journeyman.apps.embedded.stack import EmbeddedStack


def _signals() -> list[signal.Signals]:
    """Those that stop the stack; under ``nohup`` the end of the terminal is none of them."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, signal.SIGINT, *hangup]


async def supervise(stack: EmbeddedStack, on_ready: Callable[[], None]) -> bool:
    """Start the stack, call ``on_ready``, keep it running until a signal, stop it.

    Returns whether it was ready before it was stopped. Raises a :class:`StackError` when it cannot start.
    """
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def ask() -> None:
        if asked.is_set():
            stack.kill()
        asked.set()

    numbers = _signals()
    for number in numbers:
        loop.add_signal_handler(number, ask)
    try:
        starting = asyncio.create_task(stack.start())
        asking = asyncio.create_task(asked.wait())
        await asyncio.wait({starting, asking}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            return False
        asking.cancel()
        starting.result()
        on_ready()
        await asked.wait()
        await stack.stop()
        return True
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
