"""A project with tasks that learn, and an index of its own."""

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from journeyman.platform.events.models import Event
from journeyman.platform.kit.database import Database
from journeyman.platform.memory.embedder import OpenAIEmbedder
from journeyman.platform.memory.models import Kind, Memory
from journeyman.platform.memory.qdrant import QdrantVectorMemory
from journeyman.platform.memory.service import Learned, Learner, MemoryService, learn
from support.rows import make_project, make_task


@dataclass
class Bench:
    database: Database
    vectors: QdrantVectorMemory
    embedder: OpenAIEmbedder
    service: MemoryService
    project_id: str
    task_id: str

    @classmethod
    async def made(
        cls, database: Database, vectors: QdrantVectorMemory, embedder: OpenAIEmbedder, service: MemoryService
    ) -> "Bench":
        project_id = await make_project(database)
        return cls(database, vectors, embedder, service, project_id, await make_task(database, project_id))

    async def learn(
        self, text: str, kind: Kind = "fact", *, task_id: str | None = None, step_key: str | None = None
    ) -> Learned:
        """What a step of a task remembers; indexed only by who asks for it."""
        async with self.database.transaction() as session:
            learner = Learner(self.project_id, task_id or self.task_id, step_key or uuid.uuid4().hex)
            return await learn(session, learner, text, kind)

    async def know(self, text: str, kind: Kind = "fact", *, task_id: str | None = None) -> str:
        """Learnt and indexed; returns its id."""
        learned = await self.learn(text, kind, task_id=task_id)
        assert await self.service.try_to_index(self.project_id)
        return learned.memory_id

    async def recall(self, query: str, limit: int = 5) -> list[str]:
        """The ids of what is found."""
        found = await self.service.recall(self.project_id, query, limit=limit)
        assert not found.degraded
        return [memory.id for memory in found.memories]

    async def row(self, memory_id: str) -> Memory:
        async with self.database.transaction() as session:
            return await session.get_one(Memory, memory_id)

    async def row_is_due(self, memory_id: str) -> bool:
        """Whether the index has not followed it yet."""
        return (await self.row(memory_id)).index_due_at is not None

    async def rows(self) -> list[Memory]:
        async with self.database.transaction() as session:
            return list(
                await session.scalars(
                    sa.select(Memory).where(Memory.project_id == self.project_id).order_by(Memory.created_at)
                )
            )

    async def change(self, memory_id: str, **values: Any) -> None:
        async with self.database.transaction() as session:
            await session.execute(sa.update(Memory).where(Memory.id == memory_id).values(**values))

    async def events(self) -> list[dict[str, Any]]:
        """What the tasks' logs say of memories, in order."""
        async with self.database.transaction() as session:
            found = await session.scalars(
                sa.select(Event)
                .where(Event.project_id == self.project_id, Event.type == "memory.written")
                .order_by(Event.time, Event.seq)
            )
            return [event.data for event in found]

    async def points(self) -> set[str]:
        """The ids of all vectors of the project, whatever they are like."""
        vector = [1.0] + [0.0] * 383
        return {match.id for match in await self.vectors.search(self.project_id, vector, limit=1000, min_score=-1)}

    async def overdue(self) -> None:
        """Let time pass for every claim and every wait of the index."""
        async with self.database.transaction() as session:
            await session.execute(
                sa.update(Memory)
                .where(Memory.index_due_at.is_not(None))
                .values(index_due_at=Memory.index_due_at - timedelta(hours=1))
            )
