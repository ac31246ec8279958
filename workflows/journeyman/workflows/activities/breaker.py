"""The circuit breaker over the calls of a thread."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.agents import context, loops
from journeyman.agents.roles import profile
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.metrics import BREAKER_TRIPS, count_after_commit
from journeyman.platform.threads import repository as threads
from journeyman.workflows.types import Step


async def watch(session: AsyncSession, step: Step, observed: Sequence[loops.Step], snapshot: str) -> str | None:
    """Let the circuit breaker see the calls; returns why it trips. A nudge goes into the thread as a note."""
    thread = await threads.get_thread(session, step.thread.thread_id)
    window = loops.Window.model_validate(thread.loop_window or {})
    workspace = None if profile(step.thread.role).forks_workspace else snapshot
    for seen in observed:
        window, alarm = loops.observe(window, seen.model_copy(update={"workspace": workspace}))
        if alarm is None:
            continue
        if alarm.level == "trip":
            thread.loop_window = None
            await append(
                session,
                step.thread.task.task_id,
                EventType.CIRCUIT_BREAKER_TRIPPED,
                {"kind": alarm.kind, "message": alarm.message, "role": step.thread.role},
                thread_id=thread.id,
                subtask_id=thread.subtask_id,
                step_key=f"{step.key}:tripped",
            )
            count_after_commit(session, BREAKER_TRIPS, alarm.kind)
            # Read at the next step, which there is only if a person lets the task go on.
            said = (
                f"{alarm.message} The task was paused for this, and a person has let it go on: do something else now."
            )
            await threads.append_message(session, thread.id, f"{step.key}:nudge", context.user_note(said))
            return alarm.message
        await threads.append_message(session, thread.id, f"{step.key}:nudge", context.user_note(alarm.message))
    thread.loop_window = window.model_dump(mode="json")
    return None
