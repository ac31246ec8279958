"""The model call of a step: prompt, request, stored answer."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from temporalio import activity

from journeyman.agents.compaction import SegmentState, is_summary, summary_request
from journeyman.agents.context import assistant_message, written_arguments
from journeyman.agents.tools import tool_schemas
from journeyman.platform.budgets import service as budgets
from journeyman.platform.events.log import NewEvent, append_all, lock
from journeyman.platform.events.types import EventType
from journeyman.platform.inference.errors import REFUSAL_CODES, ModelRejected, ModelUnavailable
from journeyman.platform.inference.port import CallIdentity, ModelAnswer, ModelEngine, ModelRequest
from journeyman.platform.inference.refusals import RefusalKind
from journeyman.platform.kit import metrics, step_keys
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import Conflict, JourneymanError
from journeyman.platform.lifecycle import transitions as lifecycle
from journeyman.platform.steering import repository as steering
from journeyman.platform.tasks.contract import ENDS_BY_ITSELF
from journeyman.platform.tasks.models import Task
from journeyman.platform.threads import repository as threads
from journeyman.platform.threads.models import Thread
from journeyman.workflows.activities.loaded_step import LoadedStep, answer_key
from journeyman.workflows.activities.segments import ContextWindow, Prompt, begin_segment, needs_summary
from journeyman.workflows.activities.steering import deliver_messages
from journeyman.workflows.types import Step

PAUSE_AFTER_ATTEMPTS: Final = 4
"""Attempts of a step after which a failed model call shows the task as paused. It resumes by itself."""

ATTEMPTS_PER_EXECUTION: Final = 100_000
"""Distance between the attempt numbers of two tries of a step, so that each request to the gateway has its own number."""


class ModelCaller:
    """Calls models through the inference gateway. ``idle_timeout_s``: silence in a stream after which a call has failed."""

    def __init__(
        self, database: Database, engine: ModelEngine, *, idle_timeout_s: float, window: ContextWindow
    ) -> None:
        self._database = database
        self._engine = engine
        self._idle_timeout_s = idle_timeout_s
        self._window = window
        self._learnt: dict[tuple[str, str], ContextWindow] = {}
        """By project and model: the context that its engine named when it refused a prompt."""

    async def ask(self, loaded: LoadedStep) -> LoadedStep:
        """Ask the role's model for the step's answer and store it under its step key; returns the step with the answer.

        Delivers waiting messages from people first, and has the conversation summed up when it outgrows the model's context.
        Raises ``BudgetExhausted`` at a limit, ``Conflict`` (``context_exhausted``) when summaries do not help, and errors of
        :mod:`journeyman.platform.inference.errors`. Failures are events.
        """
        step, start = loaded.step, loaded.start
        task, thread = loaded.task, loaded.thread
        key = answer_key(step)
        attempt = step.tries * ATTEMPTS_PER_EXECUTION + activity.info().attempt
        started = time.perf_counter()
        async with self._database.statements() as session:
            if start.limited:
                await budgets.check(session, task)
            if task.message_count > thread.inbox_seq:
                thread = await self._deliver(thread.id)
            prompt = await Prompt.load(session, thread)
            await append_all(
                session, task.id, [_event(step, EventType.MODEL_STARTED, attempt=attempt, step=step.number)]
            )
        try:
            summarize = needs_summary(thread, prompt, self._window_of(task, step))
            metrics.PROMPT_ASSEMBLY.observe(time.perf_counter() - started)
            if summarize:
                prompt = await self._compact(task, step, attempt, thread, prompt)
            try:
                answer = await self._complete(self._request(task, step, key, attempt, prompt.array()))
            except ModelRejected as error:
                if error.code != REFUSAL_CODES[RefusalKind.CONTEXT_TOO_LONG] or summarize:
                    raise
                self._learn_context(task, step, error)
                prompt = await self._compact(task, step, attempt, thread, prompt)
                answer = await self._complete(self._request(task, step, key, attempt, prompt.array()))
        except JourneymanError as error:
            await self._failed(step, attempt, error)
            raise
        return await self._store(loaded, key, answer)

    def _window_of(self, task: Task, step: Step) -> ContextWindow:
        return self._learnt.get((task.project_id, task.model_for(step.thread.role)), self._window)

    def _learn_context(self, task: Task, step: Step, refused: ModelRejected) -> None:
        """Take over the context that the engine named when it refused a prompt, where it is smaller than the settings'."""
        limit = refused.details.get("limit")
        window = self._window_of(task, step)
        if isinstance(limit, int) and 0 < limit < window.tokens:
            self._learnt[task.project_id, task.model_for(step.thread.role)] = ContextWindow(
                limit, min(window.max_output_tokens, limit // 4)
            )

    async def _deliver(self, thread_id: str) -> Thread:
        """Append waiting messages from people to the thread; returns the updated thread."""
        async with self._database.transaction() as session:
            thread = await threads.get_thread(session, thread_id)
            await deliver_messages(session, thread)
            return thread

    def _request(self, task: Task, step: Step, request_id: str, attempt: int, messages: bytes) -> ModelRequest:
        return ModelRequest(
            model=task.model_for(step.thread.role),
            messages=messages,
            tools=tool_schemas(step.thread.role),
            max_tokens=self._window_of(task, step).max_output_tokens,
            identity=CallIdentity(
                project_id=task.project_id,
                request_id=request_id,
                attempt=attempt,
                task_id=task.id,
                thread_id=step.thread.thread_id,
            ),
            idle_timeout_s=self._idle_timeout_s,
        )

    async def _complete(self, request: ModelRequest) -> ModelAnswer:
        try:
            return await self._engine.complete(request)
        except asyncio.CancelledError:
            # Only a requested cancellation means that no other attempt will use the answer.
            details = activity.cancellation_details()
            if details is not None and details.cancel_requested:
                await self._engine.cancel(request.identity)
            raise

    async def _compact(self, task: Task, step: Step, attempt: int, thread: Thread, prompt: Prompt) -> Prompt:
        """Have the conversation summed up over the same prefix; returns the prompt of the new segment."""
        request = self._request(
            task, step, step_keys.part(step.key, "summary"), attempt, prompt.array(summary_request())
        )
        answer = await self._complete(request)
        if not is_summary(answer.text):
            request = self._request(
                task,
                step,
                step_keys.part(step.key, "summary-again"),
                attempt,
                prompt.array(summary_request(again=True)),
            )
            answer = await self._complete(request)
        if not is_summary(answer.text):
            raise Conflict(
                "The conversation is nearly as long as the model can read, and the model wrote no summary of it when asked twice. "
                "Use a model with a longer context, or another one for summaries; nothing was forgotten.",
                code="context_exhausted",
            )
        async with self._database.transaction() as session:
            await begin_segment(session, step, prompt.messages(), answer.text, thread.context_tokens)
        async with self._database.transaction() as session:
            return await Prompt.load(session, await threads.get_thread(session, thread.id))

    async def _store(self, loaded: LoadedStep, key: str, answer: ModelAnswer) -> LoadedStep:
        """Store the answer with its events. If another attempt stored one meanwhile, that one counts."""
        step, start = loaded.step, loaded.start
        calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in answer.tool_calls]
        message = assistant_message(answer.text, calls, answer.reasoning)
        usage = answer.usage
        task_id, thread_id = start.task.id, start.thread.id
        async with self._database.transaction() as session:
            # The task's lock before the thread's, as everywhere, so that no two wait for each other.
            await lock(session, task_id)
            seq, new = await threads.append_answer(
                session,
                thread_id,
                key,
                message,
                context_tokens=0 if usage is None else usage.prompt_tokens + usage.completion_tokens,
                new_segment=SegmentState().model_dump(mode="json"),
            )
            if not new:
                return replace(loaded, stored=await threads.messages_of_step(session, thread_id, step.key))
            events = [_completed(step, key, answer), *_content_events(step, answer, message, seq)]
            await append_all(session, task_id, events, locked=True)
            if activity.info().attempt > 1:
                for reason in ENDS_BY_ITSELF:
                    await lifecycle.resume(session, task_id, only_reason=reason)
            if start.task.message_count > start.thread.acted_seq:
                await steering.mark_acted_on(session, await threads.get_thread(session, thread_id))
            if start.limited:
                await budgets.warn(session, start.task)
        uncached = 0 if usage is None else max(0, usage.prompt_tokens - usage.cached_tokens) + usage.completion_tokens
        return loaded.with_answer(message, uncached)

    async def _failed(self, step: Step, attempt: int, error: JourneymanError) -> None:
        """Write the failure to the log; after :data:`PAUSE_AFTER_ATTEMPTS`, show the task as paused for the model."""
        event = _event(
            step,
            EventType.MODEL_FAILED,
            step=step.number,
            attempt=attempt,
            code=error.code,
            message=error.message,
            retryable=error.retryable,
        )
        async with self._database.transaction() as session:
            await append_all(session, step.thread.task.task_id, [event])
            # A refused account is shown at once: no number of attempts changes it.
            account = error.code == REFUSAL_CODES[RefusalKind.ACCOUNT]
            if isinstance(error, ModelUnavailable) and (account or activity.info().attempt >= PAUSE_AFTER_ATTEMPTS):
                reason = "model_account" if account else "model_unavailable"
                await lifecycle.pause(session, step.thread.task.task_id, reason, {"detail": error.message})


def _event(of: Step, type_: EventType, *, step_key: str | None = None, **data: Any) -> NewEvent:
    return NewEvent(
        type_,
        {"role": of.thread.role, **data},
        thread_id=of.thread.thread_id,
        subtask_id=of.thread.subtask_id,
        step_key=step_key,
    )


def _completed(step: Step, key: str, answer: ModelAnswer) -> NewEvent:
    usage = answer.usage
    return _event(
        step,
        EventType.MODEL_COMPLETED,
        step_key=step_keys.part(key, "completed"),
        step=step.number,
        model=answer.model,
        finish_reason=answer.finish_reason,
        ttft_s=round(answer.ttft_s, 4),
        duration_s=round(answer.duration_s, 4),
        usage=None
        if usage is None
        else {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
        },
    )


def _content_events(step: Step, answer: ModelAnswer, message: dict[str, Any], seq: int) -> Iterator[NewEvent]:
    """The events of the answer's reasoning, text and tool calls."""
    if answer.reasoning:
        yield _event(step, EventType.AGENT_REASONING, text=answer.reasoning)
    if answer.text:
        yield _event(step, EventType.AGENT_MESSAGE, text=answer.text, message_seq=seq)
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        yield _event(
            step,
            EventType.AGENT_TOOL_CALL,
            call_id=step_keys.tool_call(step.key, index),
            tool=function["name"],
            arguments=written_arguments(function["arguments"]),
        )
