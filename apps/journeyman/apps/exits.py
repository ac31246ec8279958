"""Exit codes, the same for every command.

0  done; of a task: succeeded (without acceptance commands, the output says "not verified")
1  the task failed: the agents could not
2  the command is wrong, or asks for what the server refuses (bad input, no such task, wrong key)
3  the platform could not: the task errored, or the server cannot be reached or broke
4  the task was cancelled
5  the task still goes on: --timeout ran out, or it paused or waits under --stop-on-pause
130  interrupted by Ctrl-C; a task goes on without its watcher
"""

from enum import IntEnum
from typing import Final


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    PLATFORM = 3
    CANCELLED = 4
    UNFINISHED = 5
    INTERRUPTED = 130


BY_STATE: Final = {
    "succeeded": Exit.OK,
    "failed": Exit.FAILED,
    "errored": Exit.PLATFORM,
    "cancelled": Exit.CANCELLED,
}


def exit_for(state: str) -> Exit:
    """The code for a task in that state; ``UNFINISHED`` for one that still goes on."""
    return BY_STATE.get(state, Exit.UNFINISHED)


class CommandError(Exception):
    """A command cannot go on. ``message`` says what happened and what to do; it is printed as it is."""

    def __init__(self, message: str, exit_code: Exit = Exit.USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
