"""What a step begins with: its task, its thread, its sandbox, and what earlier attempts have stored of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from journeyman.platform.kit import step_keys
from journeyman.platform.kit.database import Database
from journeyman.platform.tasks.models import Task
from journeyman.platform.threads import repository as threads
from journeyman.platform.threads import steps
from journeyman.platform.threads.models import Thread
from journeyman.platform.threads.steps import StepStart
from journeyman.workflows.types import Step


@dataclass(frozen=True)
class LoadedStep:
    """A step with the rows that it needs. ``stored``: messages of the step, by step key."""

    step: Step
    start: StepStart
    stored: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    new_tokens: int = 0
    """Tokens of the model call, for the circuit breaker; 0 if unknown."""

    @property
    def task(self) -> Task:
        return self.start.task

    @property
    def thread(self) -> Thread:
        return self.start.thread

    @property
    def answer(self) -> dict[str, Any] | None:
        """The model's answer in wire form, once it is stored."""
        return self.stored.get(answer_key(self.step))

    def with_answer(self, answer: dict[str, Any], new_tokens: int) -> "LoadedStep":
        """The step with an answer that was stored just now."""
        return replace(self, stored={answer_key(self.step): answer}, new_tokens=new_tokens)


def answer_key(step: Step) -> str:
    """The step key of the model's answer."""
    return step_keys.answer(step.key)


async def load_step(database: Database, step: Step) -> LoadedStep:
    """Read what the step begins with. Raises :class:`~journeyman.platform.kit.errors.NotFound` without its thread."""
    thread_id = step.thread.thread_id
    async with database.statements() as session:
        start = await steps.begin(session, step.thread.task.task_id, thread_id, answer=answer_key(step))
        stored = await threads.messages_of_step(session, thread_id, step.key) if start.answered else {}
    return LoadedStep(step, start, stored, step.new_tokens)
