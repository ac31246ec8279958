"""Timeouts and retry policies, with the reason for each number."""

from datetime import timedelta
from typing import Final

from temporalio.common import RetryPolicy

BEAT: Final = timedelta(seconds=0.5)
"""How often an activity says that it lives, and so how soon it hears of a cancellation."""

HEARTBEAT_TIMEOUT: Final = timedelta(seconds=2)
"""Silence after which a worker counts as dead: with the retry's first interval (0.2 s), another takes over within 3 s.

Measured on a busy machine with 2.5 s: 2.7 to 3.5 s. A false alarm costs a repeated step, not a doubled one.
"""

HEARTBEAT_THROTTLE: Final = timedelta(seconds=0.4)
"""Below one beat. The SDK's default sends at 0.8 of the timeout, up to 60 s, and cancellations wait as long."""

SHORT: Final = timedelta(minutes=2)
"""For activities that touch stores alone."""

LONG: Final = timedelta(hours=24)
"""For steps and other work in sandboxes, which are watched by heartbeat."""

RETRY: Final = RetryPolicy(
    initial_interval=timedelta(milliseconds=200), backoff_coefficient=2.0, maximum_interval=timedelta(seconds=5)
)
"""PostgreSQL, object store or sandbox host may be away for a while; the task waits for them as long as it takes."""

MODEL_RETRY_FIRST: Final = timedelta(milliseconds=500)
MODEL_RETRY_LONGEST: Final = timedelta(seconds=30)
"""Wait after a failed model call: the first, doubled with each attempt up to the longest. An engine's own Retry-After takes
precedence."""

NODE_SILENT: Final = timedelta(seconds=10)
"""How long an activity waits on a node's queue before it goes to workers of any node: as long as a node's silence after which its
sandboxes count as lost."""

MAX_UNEXPECTED_ATTEMPTS: Final = 5
"""An unexpected error is tried this often, in case it passes; then the task ends as ``errored``."""

TURNS_PER_THREAD: Final = 300
"""Turns without a hand-over after which a conversation counts as stuck."""

EVENTS_PER_RUN: Final = 2_000
"""Events of a workflow's history after which it goes on as a new run, some 330 turns: a worker that
takes it over replays all of them first, on one core that others wait for too. Temporal itself suggests a new run at 4,096."""

IDLE_TURNS: Final = 5
"""Turns in a row that called no tool, each answered with a reminder, after which a conversation counts as stuck."""

STICKY_QUEUE: Final = timedelta(seconds=1.5)
"""How long Temporal waits for the worker that last held a workflow (measured: idle takeover 2.1 s at 2 s, 10.1 s at 10)."""

PARALLEL_SUBTASKS: Final = 4
"""Subtasks of one task at once. Each holds a sandbox or two; more would wait for the model anyway."""

LOOK_AGAIN: Final = timedelta(minutes=30)
"""How long a wait for people trusts that the signal of a decision arrives, before it looks by itself."""

HELD_WHILE_WAITING: Final = timedelta(minutes=10)
"""How long a sandbox is held for an agent that waits for people. Longer, and what it costs outweighs what runs in it."""

FINISH_AGAIN: Final = timedelta(seconds=30)
"""Between attempts to write the end of a task when the platform itself is at fault."""
