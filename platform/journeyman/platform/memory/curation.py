"""What people do with a project's memories: look, trace, add, correct, remove. Every change is kept with the key that made it."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.http.fields import refuse
from journeyman.platform.http.pagination import Position, decode_cursor, page_of
from journeyman.platform.idempotency import service as idempotency
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.errors import Conflict, NotFound
from journeyman.platform.kit.ids import is_id, new_id
from journeyman.platform.memory import repository
from journeyman.platform.memory.models import Memory, MemoryChange
from journeyman.platform.memory.repository import MemoryQuery, MemoryUse, Source
from journeyman.platform.memory.schemas import AddMemory, EditMemory, MemoryFilter, MemorySettings
from journeyman.platform.memory.service import refuse_secret, text_digest
from journeyman.platform.tasks import service as tasks
from journeyman.platform.tenancy.service import Principal


@dataclass(frozen=True, slots=True)
class Traced:
    """A memory with where it comes from, what it replaced and what became of it."""

    memory: Memory
    source: Source | None
    supersedes: list[Memory]
    history: Sequence[MemoryChange]


@dataclass(frozen=True, slots=True)
class Added:
    """``known``: the project had a memory with that text; it was confirmed. ``replayed``: this very request was made before."""

    memory: Memory
    known: bool = False
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Removed:
    """What was deleted of a task's memories, and what was kept because a person has corrected it."""

    deleted: list[Memory]
    kept: list[Memory]


async def page(session: AsyncSession, project_id: str, wanted: MemoryFilter) -> tuple[list[Memory], str | None]:
    """One page, newest first, and the cursor of the next one."""
    found = await repository.find(
        session,
        project_id,
        MemoryQuery(
            state=wanted.state,
            kinds=wanted.kind,
            origins=wanted.origin,
            task_id=wanted.task_id,
            before=decode_cursor(wanted.cursor),
            limit=wanted.limit + 1,
        ),
    )
    return page_of(found, wanted.limit, lambda row: Position(row.created_at, row.id))


async def settings(session: AsyncSession, project_id: str) -> MemoryUse:
    """What the project's tasks may do with its memory."""
    return await repository.project_use(session, project_id)


async def change_settings(session: AsyncSession, project_id: str, changes: MemorySettings) -> MemoryUse:
    """Change what is given, and return what is allowed then."""
    await repository.set_project_use(session, project_id, changes.model_dump(exclude_none=True))
    return await repository.project_use(session, project_id)


async def trace(session: AsyncSession, project_id: str, memory_id: str) -> Traced:
    """The memory, whether it counts or not. Raises :class:`NotFound`, also for another project's."""
    memory = await repository.get(session, project_id, memory_id) if is_id("memory", memory_id) else None
    if memory is None:
        raise _unknown(memory_id)
    return Traced(
        memory,
        await repository.source(session, memory),
        await repository.superseded_by(session, [memory.id]),
        await repository.history(session, memory.id),
    )


async def add(session: AsyncSession, principal: Principal, body: AddMemory, key: str | None) -> Added:
    """Keep what a person says. The text of a live memory again confirms it; from then on a person vouches for it.

    Raises :class:`InvalidInput` for a secret or for something to supersede that does not count, :class:`Conflict` for a
    key that was used for something else.
    """
    refuse_secret(body.text)
    project_id = principal.project_id
    own_id = new_id("memory")
    request = body.model_dump(mode="json")
    earlier = await idempotency.claim(session, project_id, key, "memory", request, own_id)
    if earlier is not None:
        memory = await repository.get(session, project_id, earlier)
        assert memory is not None
        return Added(memory, replayed=True)
    replaced = None
    if body.supersedes is not None:
        replaced = await _replaceable(session, project_id, body.supersedes)
    digest = text_digest(body.text)
    if replaced is not None and replaced.digest == digest:
        raise refuse("supersedes", "has the same text; edit it (PATCH) to change its kind.")
    await repository.lock_text(session, project_id, digest)
    stored = await repository.add_or_confirm(
        session,
        {
            "id": own_id,
            "project_id": project_id,
            "kind": body.kind,
            "text": body.text,
            "step_key": f"person:{own_id}",
            "origin": "person",
            "digest": digest,
        },
    )
    memory = (await repository.lock(session, project_id, [stored.id]))[stored.id]
    if stored.new:
        await repository.note_change(session, memory, "added", api_key_id=principal.key_id)
    else:
        await repository.note_change(session, memory, "confirmed", api_key_id=principal.key_id)
        memory.edited_at = now()
        await idempotency.amend(session, project_id, key, memory.id)
    if replaced is not None:
        await repository.note_change(session, replaced, "superseded", api_key_id=principal.key_id, other_id=memory.id)
        replaced.superseded_by = memory.id
        repository.touch(replaced)
    await repository.notify(session, project_id)
    await session.flush()
    return Added(memory, known=not stored.new)


async def _replaceable(session: AsyncSession, project_id: str, memory_id: str) -> Memory:
    known = await repository.lock(session, project_id, [memory_id]) if is_id("memory", memory_id) else {}
    memory = known.get(memory_id)
    if memory is None:
        raise refuse("supersedes", f"this project has no memory {memory_id[:80]}.", code="memory_not_found")
    if not memory.live:
        raise refuse("supersedes", f"{memory_id} does not count any more: {_why_not(memory)}.")
    return memory


async def edit(session: AsyncSession, principal: Principal, memory_id: str, changes: EditMemory) -> Memory:
    """Correct a memory's text or kind; from then on a person vouches for it.

    Raises :class:`NotFound`, :class:`Conflict` for one that does not count or a text that another one has.
    """
    memory = await _locked(session, principal.project_id, memory_id)
    if not memory.live:
        raise Conflict(
            f"The memory does not count any more ({_why_not(memory)}), so that nothing was changed.",
            code="memory_not_live",
            superseded_by=memory.superseded_by,
        )
    text = memory.text if changes.text is None else changes.text
    kind = memory.kind if changes.kind is None else changes.kind
    if (text, kind) == (memory.text, memory.kind):
        return memory
    refuse_secret(text)
    digest = text_digest(text)
    await repository.lock_text(session, principal.project_id, digest)
    other = await repository.same_text(session, principal.project_id, digest)
    if other is not None and other.id != memory.id:
        raise Conflict(
            f"The memory {other.id} says that already. Delete this one, or supersede it by that one.",
            code="memory_exists",
            memory_id=other.id,
        )
    await repository.note_change(session, memory, "edited", api_key_id=principal.key_id)
    memory.text, memory.kind, memory.digest = text, kind, digest
    memory.edited_at = memory.updated_at = now()
    memory.indexed_at = None
    repository.touch(memory)
    await repository.notify(session, principal.project_id)
    await session.flush()
    return memory


async def delete(session: AsyncSession, principal: Principal, memory_id: str) -> Memory:
    """Take a memory away: from this commit on nobody recalls it, whether the index is up or not. Again changes nothing.

    What it had superseded counts again. Raises :class:`NotFound`.
    """
    memory = await _locked(session, principal.project_id, memory_id)
    if memory.deleted_at is None:
        await _delete(session, principal, [memory])
    return memory


async def delete_of_task(session: AsyncSession, principal: Principal, task_id: str) -> Removed:
    """Take away what a task wrote, except for what a person has corrected or vouched for since. Raises :class:`NotFound`."""
    await tasks.read(session, principal.project_id, task_id)
    written = await repository.written_by(session, principal.project_id, task_id)
    kept = [memory for memory in written if memory.edited_at is not None]
    deleted = [memory for memory in written if memory.edited_at is None]
    await _delete(session, principal, deleted)
    return Removed(deleted, kept)


async def _delete(session: AsyncSession, principal: Principal, memories: Sequence[Memory]) -> None:
    for memory in memories:
        await repository.note_change(session, memory, "deleted", api_key_id=principal.key_id)
        memory.deleted_at = now()
        repository.touch(memory)
    await session.flush()
    for memory in await repository.superseded_by(session, [memory.id for memory in memories], lock=True):
        await repository.lock_text(session, principal.project_id, memory.digest)
        if await repository.same_text(session, principal.project_id, memory.digest) is not None:
            continue  # It was said again since, and counts as that.
        await repository.note_change(
            session, memory, "restored", api_key_id=principal.key_id, other_id=memory.superseded_by
        )
        memory.superseded_by = None
        repository.touch(memory)
        await session.flush()
    if memories:
        await repository.notify(session, principal.project_id)


async def _locked(session: AsyncSession, project_id: str, memory_id: str) -> Memory:
    known = await repository.lock(session, project_id, [memory_id]) if is_id("memory", memory_id) else {}
    if memory_id not in known:
        raise _unknown(memory_id)
    return known[memory_id]


def _why_not(memory: Memory) -> str:
    return "it was deleted" if memory.deleted_at is not None else f"it was superseded by {memory.superseded_by}"


def _unknown(memory_id: str) -> NotFound:
    return NotFound(f"This project has no memory {memory_id[:80]}.", code="memory_not_found")
