"""The context of a thread: what the model is sent, and the summary that begins a new segment when that grows too long."""

import json
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.agents import compaction
from journeyman.agents.compaction import SegmentState
from journeyman.agents.context import Message, assistant_message
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.errors import Conflict
from journeyman.platform.tasks.repository import lock_task
from journeyman.platform.threads import repository as threads
from journeyman.platform.threads.models import Thread
from journeyman.workflows.types import Step


@dataclass(frozen=True)
class ContextWindow:
    """What fits into a model: tokens of prompt and answer together, and of those the answer's share."""

    tokens: int
    max_output_tokens: int


@dataclass
class Prompt:
    """What a model is sent: messages as they are stored, each with its step key. They are not parsed to be sent on."""

    keys: list[str]
    bodies: list[bytes]

    @classmethod
    async def load(cls, session: AsyncSession, thread: Thread) -> "Prompt":
        stored = await threads.visible_bodies(session, thread)
        return cls([key for key, _ in stored], [body for _, body in stored])

    def array(self, *more: Message) -> bytes:
        return threads.as_array([*self.bodies, *map(threads.encode, more)])

    def messages(self) -> list[Message]:
        return [json.loads(body) for body in self.bodies]

    def tokens(self, thread: Thread) -> int:
        """What the engine counted last, plus an estimate of what came since."""
        newer = 0
        if thread.context_tokens:
            answers = (place for place, key in enumerate(self.keys) if key.endswith(step_keys.ANSWER))
            newer = 1 + max(answers, default=len(self.keys) - 1)
        # Stored text is escaped: six bytes for a character that takes about three elsewhere.
        size = sum(len(body) - 3 * body.count(b"\\u") for body in self.bodies[newer:])
        return thread.context_tokens + int(size / compaction.BYTES_PER_TOKEN)


def needs_summary(thread: Thread, prompt: Prompt, window: ContextWindow) -> bool:
    """Whether the next request would come too close to the end of the context.

    Raises :class:`Conflict` when summaries do not help, because the opening or single results are too long for the model.
    """
    decision = compaction.next_step(
        segment_of(thread),
        prompt.tokens(thread),
        context_tokens=window.tokens,
        max_output_tokens=window.max_output_tokens,
    )
    if decision == compaction.NextStep.STUCK:
        raise Conflict(
            f"The conversation does not fit the model's context of {window.tokens:,} tokens, even after a summary. "
            "Use a model with a longer context, or cut the task into smaller ones.",
            code="context_exhausted",
        )
    return decision == compaction.NextStep.COMPACT


def segment_of(thread: Thread) -> SegmentState:
    return SegmentState.model_validate(thread.segment or {})


async def begin_segment(session: AsyncSession, step: Step, messages: list[Message], summary: str, tokens: int) -> None:
    """Store the summary in the old segment and begin the next one with it; once per segment."""
    await lock_task(session, step.thread.task.task_id)
    thread = await threads.get_thread(session, step.thread.thread_id)
    state = segment_of(thread)
    key = step_keys.segment(thread.id, state.segment)
    await threads.append_message(session, thread.id, step_keys.part(key, "request"), compaction.summary_request())
    _, new = await threads.append_message(
        session, thread.id, step_keys.part(key, "summary"), assistant_message(summary)
    )
    if not new:
        return
    first: int | None = None
    opening, after = compaction.next_segment(messages[1:], summary, state)
    for index, message in enumerate(opening):
        seq, _ = await threads.append_message(session, thread.id, step_keys.part(key, "next", index), message)
        first = seq if first is None else first
    assert first is not None
    thread.segment_start = first
    thread.segment = after.model_dump(mode="json")
    thread.context_tokens = 0
    await append(
        session,
        step.thread.task.task_id,
        EventType.AGENT_COMPACTED,
        {"role": thread.role, "segment": after.segment, "tokens_before": tokens, "summary": summary},
        thread_id=thread.id,
        subtask_id=thread.subtask_id,
        step_key=step_keys.part(key, "compacted"),
    )
