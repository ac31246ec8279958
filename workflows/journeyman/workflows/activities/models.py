"""Calling the model for one step of a thread."""

import logging
from datetime import timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from temporalio import activity

from journeyman.agents.context import assistant_message
from journeyman.agents.roles import profile
from journeyman.agents.tools import tool_schemas
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.inference.errors import ModelUnavailable
from journeyman.platform.inference.port import CallIdentity, ModelAnswer, ModelEngine, ModelRequest
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import BudgetExhausted, JourneymanError
from journeyman.platform.tasks import lifecycle
from journeyman.platform.tasks.models import Task
from journeyman.platform.threads import repository as threads
from journeyman.workflows.heartbeat import beating
from journeyman.workflows.types import Step, Turn

logger = logging.getLogger(__name__)

PAUSE_AFTER_ATTEMPTS: Final = 4
"""Failed attempts in a row after which the task shows as paused for want of a model. It resumes by itself."""

ATTEMPTS_PER_EXECUTION: Final = 100_000
"""Spreads the attempts of several executions of a step apart, so that each request to the gateway has its own number."""


class ModelActivities:
    def __init__(self, database: Database, engine: ModelEngine, idle_timeout_s: float) -> None:
        self._database = database
        self._engine = engine
        self._idle_timeout_s = idle_timeout_s

    @activity.defn
    @beating
    async def call_model(self, step: Step) -> Turn:
        """Ask the role's model for its next message and store it under the step key; a stored one is not asked for again."""
        key = f"{step.key}:answer"
        attempt = step.tries * ATTEMPTS_PER_EXECUTION + activity.info().attempt
        async with self._database.transaction() as session:
            stored = await threads.find_message(session, key)
            if stored is not None:
                return _turn(stored)
            task = await session.get_one(Task, step.thread.task.task_id)
            await _check_limits(session, task)
            messages = await threads.bodies(session, step.thread.thread_id)
            await self._event(session, step, EventType.MODEL_STARTED, {"attempt": attempt, "step": step.number})
        request = ModelRequest(
            model=_model_for(task, step.thread.role),
            messages=messages,
            tools=tool_schemas(step.thread.role),
            identity=CallIdentity(
                project_id=task.project_id,
                request_id=key,
                attempt=attempt,
                task_id=task.id,
                thread_id=step.thread.thread_id,
            ),
            idle_timeout_s=self._idle_timeout_s,
        )
        try:
            answer = await self._engine.complete(request)
        except JourneymanError as error:
            await self._failed(step, attempt, error)
            raise
        return await self._store(step, key, answer)

    async def _store(self, step: Step, key: str, answer: ModelAnswer) -> Turn:
        calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in answer.tool_calls]
        message = assistant_message(answer.text, calls, answer.reasoning)
        async with self._database.transaction() as session:
            # The task's lock before the thread's, as everywhere: two activities never wait for each other.
            await lifecycle.lock_task(session, step.thread.task.task_id)
            seq, new = await threads.append_message(session, step.thread.thread_id, key, message)
            if not new:
                return _turn(message)
            await lifecycle.resume(session, step.thread.task.task_id, only_reason="model_unavailable")
            usage = answer.usage
            await self._event(
                session,
                step,
                EventType.MODEL_COMPLETED,
                {
                    "step": step.number,
                    "model": answer.model,
                    "finish_reason": answer.finish_reason,
                    "ttft_s": round(answer.ttft_s, 4),
                    "duration_s": round(answer.duration_s, 4),
                    "usage": None
                    if usage is None
                    else {
                        "prompt_tokens": usage.prompt_tokens,
                        "cached_tokens": usage.cached_tokens,
                        "completion_tokens": usage.completion_tokens,
                    },
                },
            )
            if answer.reasoning:
                await self._event(session, step, EventType.AGENT_REASONING, {"text": answer.reasoning})
            if answer.text:
                await self._event(session, step, EventType.AGENT_MESSAGE, {"text": answer.text, "message_seq": seq})
            for index, call in enumerate(message.get("tool_calls") or ()):
                function = call["function"]
                await self._event(
                    session,
                    step,
                    EventType.AGENT_TOOL_CALL,
                    {
                        "call_id": f"{step.key}:{index}",
                        "tool": function["name"],
                        "arguments": function["arguments"],
                    },
                )
        return _turn(message)

    async def _failed(self, step: Step, attempt: int, error: JourneymanError) -> None:
        """Note the failure; after some in a row, show the task as waiting for the model."""
        async with self._database.transaction() as session:
            await self._event(
                session,
                step,
                EventType.MODEL_FAILED,
                {
                    "step": step.number,
                    "attempt": attempt,
                    "code": error.code,
                    "message": error.message,
                    "retryable": error.retryable,
                },
            )
            if isinstance(error, ModelUnavailable) and activity.info().attempt >= PAUSE_AFTER_ATTEMPTS:
                await lifecycle.pause(session, step.thread.task.task_id, "model_unavailable", {"detail": error.message})

    @staticmethod
    async def _event(session: AsyncSession, step: Step, type_: EventType, data: dict[str, Any]) -> None:
        await append(
            session,
            step.thread.task.task_id,
            type_,
            {"role": step.thread.role, **data},
            thread_id=step.thread.thread_id,
            subtask_id=step.thread.subtask_id,
        )


def _turn(message: dict[str, Any]) -> Turn:
    calls = len(message.get("tool_calls") or ())
    return Turn(tool_calls=calls, stop="tool_calls" if calls else "stop")


def _model_for(task: Task, role: str) -> str:
    """The model named by the task for this role, else the tier, which the gateway maps to a model."""
    named = task.models.get(role)
    if named:
        return str(named)
    return task.model_tier if profile(role).tier == "standard" else "fast"


async def _check_limits(session: AsyncSession, task: Task) -> None:
    """Raise :class:`BudgetExhausted` at the limits of steps and wall time. Tokens and money are the gateway's to check."""
    max_steps = task.budget.get("max_steps")
    if max_steps is not None and await threads.count_steps(session, task.id) >= int(max_steps):
        raise BudgetExhausted(f"The task has used its {max_steps} steps.", limit="max_steps")
    max_wall_s = task.budget.get("max_wall_s")
    if max_wall_s is not None:
        started = await session.scalar(sa.select(Task.started_at).where(Task.id == task.id))
        if started is not None and now() - started >= timedelta(seconds=float(max_wall_s)):
            raise BudgetExhausted(f"The task has used its {max_wall_s} seconds of wall time.", limit="max_wall_s")
