"""The circuit breaker over the calls of a thread."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.agents import context, loops
from journeyman.agents.roles import profile
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.database import Json
from journeyman.platform.kit.metrics import BREAKER_TRIPS, count_after_commit
from journeyman.platform.threads import repository as threads
from journeyman.workflows.types import Step


@dataclass(frozen=True)
class Watched:
    """The breaker's verdict on a step's calls.

    ``window``: its memory for the next step. ``alarms``: in order; one that trips is the last.
    """

    window: Json | None
    alarms: Sequence[loops.Alarm] = ()

    @property
    def tripped(self) -> str | None:
        """The message of the alarm that trips, if one does."""
        return next((alarm.message for alarm in self.alarms if alarm.level == "trip"), None)


def watch(step: Step, remembered: Json | None, observed: Sequence[loops.ObservedCall], snapshot: str) -> Watched:
    """Run the circuit breaker over the calls of one answer.

    ``remembered``: the window after the step before. ``snapshot``: digest of the workspace after the last call.
    """
    if not observed:
        return Watched(remembered)
    window = loops.Window.model_validate(remembered or {})
    alarms: list[loops.Alarm] = []
    for seen, workspace in zip(observed, _workspaces(step, window, snapshot, len(observed)), strict=True):
        window, alarm = loops.observe(window, seen.model_copy(update={"workspace": workspace}))
        if alarm is not None:
            alarms.append(alarm)
            if alarm.level == "trip":
                return Watched(None, alarms)
    return Watched(window.model_dump(mode="json"), alarms)


def _workspaces(step: Step, window: loops.Window, snapshot: str, calls: int) -> list[str | None]:
    """The digest of the workspace after each call. Of an answer that changed it, every call counts as a change."""
    if profile(step.thread.role).forks_workspace:
        return [None] * calls
    if loops.is_at(window, snapshot):
        return [snapshot] * calls
    return [*(f"{number}:{snapshot}" for number in range(calls - 1)), snapshot]


async def record_alarms(session: AsyncSession, step: Step, alarms: Sequence[loops.Alarm]) -> None:
    """Append a note to the thread for each alarm, and for one that trips an event to the log."""
    thread = step.thread
    for alarm in alarms:
        text = alarm.message
        if alarm.level == "trip":
            await append(
                session,
                thread.task.task_id,
                EventType.CIRCUIT_BREAKER_TRIPPED,
                {"kind": alarm.kind, "message": alarm.message, "role": thread.role},
                thread_id=thread.thread_id,
                subtask_id=thread.subtask_id,
                step_key=step_keys.part(step.key, "tripped"),
            )
            count_after_commit(session, BREAKER_TRIPS, alarm.kind)
            # Read at the next step, which there is only if a person lets the task go on.
            text = f"{text} The task was paused for this, and a person has let it go on: do something else now."
        await threads.append_message(
            session, thread.thread_id, step_keys.part(step.key, "nudge"), context.user_note(text)
        )
