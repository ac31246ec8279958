"""Making checkpoints."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.checkpoints.models import Checkpoint, SnapshotRow
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.inference.models import LedgerEntry
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.ids import derived_id
from journeyman.platform.threads import repository as threads


async def note_snapshot(session: AsyncSession, project_id: str, digest: str, files: int, size: int) -> None:
    await session.execute(
        insert(SnapshotRow)
        .values(project_id=project_id, digest=digest, files=files, bytes=size)
        .on_conflict_do_nothing()
    )


async def ledger_totals(session: AsyncSession, task_id: str) -> dict[str, Any]:
    """What the task has spent so far: tokens, and dollars as a decimal string."""
    tokens, cost = (
        await session.execute(
            sa.select(
                sa.func.coalesce(sa.func.sum(LedgerEntry.prompt_tokens + LedgerEntry.completion_tokens), 0),
                sa.func.coalesce(sa.func.sum(LedgerEntry.cost_usd), 0),
            ).where(LedgerEntry.task_id == task_id)
        )
    ).one()
    return {"tokens": int(tokens), "cost_usd": str(cost)}


async def create(
    session: AsyncSession,
    *,
    project_id: str,
    task_id: str,
    thread_id: str | None,
    subtask_id: str | None,
    plan_revision: int,
    snapshot: str,
    step_key: str,
) -> str:
    """Make the checkpoint of a step, with its event; made once however often the step is repeated. Returns its id."""
    checkpoint_id = derived_id("checkpoint", step_key)
    if await session.get(Checkpoint, checkpoint_id) is not None:
        return checkpoint_id
    event = await append(
        session,
        task_id,
        EventType.CHECKPOINT_CREATED,
        {"checkpoint_id": checkpoint_id, "snapshot": snapshot, "plan_revision": plan_revision},
        thread_id=thread_id,
        subtask_id=subtask_id,
        step_key=f"{step_key}:checkpoint",
    )
    session.add(
        Checkpoint(
            id=checkpoint_id,
            project_id=project_id,
            task_id=task_id,
            event_seq=event.seq,
            thread_id=thread_id,
            thread_cursors=await threads.cursors(session, task_id),
            plan_revision=plan_revision,
            snapshot=snapshot,
            budget=await ledger_totals(session, task_id),
            step_key=step_key,
            created_at=now(),
        )
    )
    await session.flush()
    return checkpoint_id
