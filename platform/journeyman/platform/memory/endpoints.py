"""``/memory``: what the project's agents know from earlier tasks, for people to look at and to correct."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from journeyman.platform.http.dependencies import (
    REPLAYED,
    IdempotencyKeyDep,
    SessionDep,
    mark_replayed,
    resource,
)
from journeyman.platform.memory import curation
from journeyman.platform.memory.curation import Traced
from journeyman.platform.memory.schemas import (
    AddMemory,
    DeletedMemories,
    EditMemory,
    FoundMemory,
    MemoryDetail,
    MemoryFilter,
    MemoryPage,
    MemorySettings,
    MemorySettingsView,
    MemoryView,
    SearchMemory,
    SearchResult,
    SourceView,
)
from journeyman.platform.memory.service import MemoryService
from journeyman.platform.tenancy.dependencies import AdminDep, PrincipalDep

router = APIRouter(prefix="/memory", tags=["memory"])

MemoryDep = Annotated[MemoryService, Depends(resource(MemoryService))]


@router.get("")
async def list_memories(
    wanted: Annotated[MemoryFilter, Query()], principal: PrincipalDep, session: SessionDep
) -> MemoryPage:
    """The project's memories, newest first; by default those that count."""
    found, cursor = await curation.page(session, principal.project_id, wanted)
    return MemoryPage(data=[MemoryView.of(memory) for memory in found], next_cursor=cursor)


@router.post("/search")
async def search_memories(body: SearchMemory, principal: PrincipalDep, memory: MemoryDep) -> SearchResult:
    """What fits the query, as agents find it. It does not count as a use."""
    found = await memory.recall(principal.project_id, body.query, limit=body.limit, kinds=body.kinds)
    return SearchResult(
        data=[FoundMemory.found(hit.memory, hit.score, hit.rank) for hit in found.memories], degraded=found.degraded
    )


@router.post(
    "",
    status_code=201,
    responses={
        200: {
            "model": MemoryView,
            "description": "The project had a memory with that text, which is confirmed; or the request was made before.",
            "headers": REPLAYED,
        }
    },
)
async def add_memory(
    body: AddMemory,
    principal: PrincipalDep,
    session: SessionDep,
    response: Response,
    idempotency_key: IdempotencyKeyDep = None,
) -> MemoryView:
    """Tell the project's agents something. It is recalled as soon as it is indexed, within seconds."""
    added = await curation.add(session, principal, body, idempotency_key)
    response.headers["Location"] = f"/v1/memory/{added.memory.id}"
    if added.known or added.replayed:
        response.status_code = 200
    if added.replayed:
        mark_replayed(response)
    return MemoryView.of(added.memory)


@router.get("/settings")
async def read_memory_settings(principal: PrincipalDep, session: SessionDep) -> MemorySettingsView:
    """Whether the project's tasks may recall and keep memories."""
    use = await curation.settings(session, principal.project_id)
    return MemorySettingsView(read=use.read, write=use.write)


@router.patch("/settings")
async def change_memory_settings(changes: MemorySettings, admin: AdminDep, session: SessionDep) -> MemorySettingsView:
    """Switch the memory of the project off or on, for running tasks too. What is kept stays. Needs an admin key."""
    use = await curation.change_settings(session, admin.project_id, changes)
    return MemorySettingsView(read=use.read, write=use.write)


@router.get("/{memory_id}")
async def read_memory(memory_id: str, principal: PrincipalDep, session: SessionDep) -> MemoryDetail:
    """One memory, deleted ones too, with the task and event it comes from and everything that was done to it."""
    traced = await curation.trace(session, principal.project_id, memory_id)
    return MemoryDetail.traced(traced.memory, _source(traced), traced.supersedes, traced.history)


@router.patch("/{memory_id}")
async def edit_memory(memory_id: str, changes: EditMemory, principal: PrincipalDep, session: SessionDep) -> MemoryView:
    """Correct a memory. From then on it outranks what agents said before on the same subject."""
    return MemoryView.of(await curation.edit(session, principal, memory_id, changes))


@router.delete("/{memory_id}")
async def delete_memory(memory_id: str, principal: PrincipalDep, session: SessionDep) -> MemoryView:
    """Take a memory away, at once; what it had superseded counts again. Deleting it again changes nothing."""
    return MemoryView.of(await curation.delete(session, principal, memory_id))


@router.delete("")
async def delete_memories_of_task(
    task_id: Annotated[str, Query(max_length=80, description="The task whose memories are to go.")],
    principal: PrincipalDep,
    session: SessionDep,
) -> DeletedMemories:
    """Take away all that a task wrote, except for what a person has corrected since."""
    removed = await curation.delete_of_task(session, principal, task_id)
    return DeletedMemories(
        task_id=task_id,
        deleted=[memory.id for memory in removed.deleted],
        kept=[memory.id for memory in removed.kept],
    )


def _source(traced: Traced) -> SourceView | None:
    if traced.source is None:
        return None
    task, event = traced.source
    return SourceView(
        task_id=task.id,
        task_title=task.title,
        task_state=task.state,
        event_id=event.id if event else None,
        event_seq=event.seq if event else None,
        thread_id=event.thread_id if event else None,
        subtask_id=event.subtask_id if event else None,
    )
