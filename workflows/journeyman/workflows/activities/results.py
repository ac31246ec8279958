"""Storing results of tool calls, each once."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.agents import context
from journeyman.platform.artifacts import repository as artifacts
from journeyman.platform.events.log import Appended, NewEvent, append_all, lock
from journeyman.platform.kit import step_keys
from journeyman.platform.threads import repository as threads
from journeyman.workflows.activities.loaded_step import LoadedStep
from journeyman.workflows.activities.submissions import record_submission
from journeyman.workflows.activities.thread_sandbox import ThreadSandbox
from journeyman.workflows.activities.tool_calls import ExecutedCall


async def store_result(
    session: AsyncSession,
    loaded: LoadedStep,
    executed: ExecutedCall | None,
    sandbox: ThreadSandbox | None,
    then: Sequence[NewEvent] = (),
) -> list[Appended]:
    """Append the result to the thread with its events and effects, then append the events ``then``; returns what was appended.

    ``executed``: None when an earlier attempt stored the result. ``sandbox``: the thread's, which the agent knows from now on.
    """
    step, thread = loaded.step, loaded.step.thread
    task_id = thread.task.task_id
    await lock(session, task_id)
    if executed is None:
        return await append_all(session, task_id, list(then), locked=True)
    call, result = executed.call, executed.result
    message = context.tool_message(call.id, result.text)
    _, new = await threads.append_message(session, thread.thread_id, call.result_key, message)
    if not new:
        return await append_all(session, task_id, list(then), locked=True)
    if sandbox is not None and sandbox.sandbox.id != loaded.thread.sandbox_id:
        await threads.note_sandbox(session, thread.thread_id, sandbox.sandbox.id)
    events = executed.events(step)
    if executed.blob is None and executed.handover is None:
        return await append_all(session, task_id, [*events, *then], locked=True)
    await append_all(session, task_id, events, locked=True)
    if executed.blob is not None and result.output is not None:
        await artifacts.add(
            session,
            project_id=thread.task.project_id,
            task_id=task_id,
            kind="tool_output",
            name=call.output_id,
            media_type="application/octet-stream",
            size=len(result.output),
            digest=executed.blob,
            key=step_keys.part(thread.thread_id, call.output_id),
        )
    if executed.handover is not None:
        await record_submission(session, step, executed.handover)
    return await append_all(session, task_id, list(then), locked=True)
