"""Notices that an event loop does not run any more: says so with all stacks, and at last ends the process.

A process whose loop is blocked looks alive from outside: its connections stand, its port accepts. Its activities are taken
over by their heartbeats, but what comes to its queue or its port waits. Only an end helps: the supervisor starts another.
"""

import asyncio
import faulthandler
import logging
import os
import sys
import threading
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from journeyman.platform.kit.metrics import LOOP_STALLS

_TICK_S: Final = 0.25
_GRACE_S: Final = 5.0
EXIT_STATUS: Final = 70
"""Of a process that ended itself for a blocked loop (``EX_SOFTWARE``)."""

_log = logging.getLogger(__name__)


@asynccontextmanager
async def watching(service: str, *, warn_after_s: float, exit_after_s: float) -> AsyncIterator[None]:
    """Watch the running loop for the length of the block.

    Once it has not run for ``warn_after_s`` seconds, all stacks are logged and ``journeyman_event_loop_stalls_total`` is
    raised, once a stall. After ``exit_after_s`` the process ends at once with status 70, without cleaning up; 0 for never.
    Time that the whole process was stopped (SIGSTOP) does not count, unless it was longer than all of that: then the process
    may end when it goes on. Its work was taken over long before.
    """
    watchdog = Watchdog(service, asyncio.get_running_loop(), warn_after_s, exit_after_s)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()


class Watchdog:
    """A thread that asks the loop to prove that it runs. Use :func:`watching`."""

    def __init__(self, service: str, loop: asyncio.AbstractEventLoop, warn_after_s: float, exit_after_s: float) -> None:
        self._service = service
        self._loop = loop
        self._warn_after = max(1, round(warn_after_s / _TICK_S))
        self._exit_after = max(1, round(exit_after_s / _TICK_S)) if exit_after_s else None
        self._last_resort_s = exit_after_s + _GRACE_S if exit_after_s else None
        self._loop_thread = threading.get_ident()
        self._stopped = threading.Event()
        self._ran = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._arm()

    def stop(self) -> None:
        """Stop watching. Waits for the thread."""
        self._stopped.set()
        self._thread.join()
        if self._last_resort_s is not None:
            faulthandler.cancel_dump_traceback_later()

    def _arm(self) -> None:
        """Run by the loop. A body of C code that never lets go of the interpreter stops the thread too: against that helps
        only a timer outside of the interpreter, which prints the stacks and ends the process.
        """
        if self._last_resort_s is not None and not self._stopped.is_set():
            faulthandler.dump_traceback_later(self._last_resort_s, exit=True)
            self._loop.call_later(self._last_resort_s / 8, self._arm)

    def _watch(self) -> None:
        # Ticks are counted, not seconds: a process that was stopped as a whole has missed them all.
        silent = 0
        self._ask()
        while not self._stopped.wait(_TICK_S):
            if self._ran.is_set():
                if silent >= self._warn_after:
                    _log.warning("the event loop runs again after %.1f s", silent * _TICK_S)
                silent = 0
                self._ask()
                continue
            silent += 1
            if silent == self._warn_after:
                LOOP_STALLS.labels(self._service).inc()
                _log.error("the event loop has not run for %.1f s; the stacks:\n%s", silent * _TICK_S, self._stacks())
            if silent == self._exit_after:
                _log.critical(
                    "the event loop has not run for %.1f s; the process ends, and another takes its place. The stacks:\n%s",
                    silent * _TICK_S,
                    self._stacks(),
                )
                os._exit(EXIT_STATUS)

    def _ask(self) -> None:
        self._ran.clear()
        try:
            self._loop.call_soon_threadsafe(self._ran.set)
        except RuntimeError:  # closed
            self._stopped.set()

    def _stacks(self) -> str:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        own = threading.get_ident()
        frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != self._loop_thread)  # noqa: SLF001
        parts = []
        for ident, frame in frames:
            if ident != own:
                title = f"{names.get(ident, 'unnamed')}{', which runs the loop' if ident == self._loop_thread else ''}"
                parts.append(f"[{title}]\n{''.join(traceback.format_stack(frame))}")
        return "\n".join(parts)
