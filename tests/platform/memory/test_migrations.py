"""Memories that tell of verification go with a migration, others stay."""

import asyncio
import secrets
import uuid
from datetime import timedelta
from typing import Any

import asyncpg
import sqlalchemy as sa
from alembic import command

from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database, create_engine
from journeyman.platform.kit.migrate import migration_config, upgrade
from journeyman.platform.memory.models import Memory
from journeyman.platform.tasks.models import Task
from support.rows import make_project, make_task

REMOVED = (
    "`python3 -m pytest  tests/held_out/test_sums.py` passes in this project.",
    "All is well when PYTHON3 -m pytest tests/held_out/test_sums.py passes.",
    "The cases are in tests/held_out/test_sums.py.",
    "A review found: test_sums.py wants cents.",
)
KEPT = ("Sums are kept in cents.", "Tests are run by pytest.")


async def test_memories_of_verification_are_removed(postgres_url: str) -> None:
    name = f"memories_{secrets.token_hex(4)}"
    url = f"{postgres_url.rsplit('/', 1)[0]}/{name}"
    connection = await asyncpg.connect(postgres_url.replace("+asyncpg", ""))
    try:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
        await asyncio.to_thread(upgrade, url)
        database = Database(create_engine(url))
        try:
            expected = await _fill(database)
            await asyncio.to_thread(command.downgrade, migration_config(url), "0003")
            await asyncio.to_thread(upgrade, url)
            async with database.transaction() as session:
                rows = (await session.scalars(sa.select(Memory))).all()
        finally:
            await database.close()
    finally:
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await connection.close()
    assert {row.text for row in rows if row.live} == expected
    gone = [row for row in rows if not row.live]
    assert gone
    assert all(row.revision == 2 and row.index_due_at is not None for row in gone), "the index is to follow"


async def _fill(database: Database) -> set[str]:
    """Returns the texts that are to stay."""
    project_id = await make_project(database)
    task_id, failed_id = [await make_task(database, project_id) for _ in range(2)]
    async with database.transaction() as session:
        task = await session.get_one(Task, task_id)
        task.acceptance = ["python3 -m pytest tests/held_out/test_sums.py"]
        await append(session, failed_id, EventType.ACCEPTANCE_FAILED, {"command": "make check"})
    rows = [_memory(project_id, task_id, text) for text in (*REMOVED, *KEPT)]
    rows.append(_memory(project_id, None, f"A person says: {REMOVED[2]}", origin="person"))
    rows.append(_memory(project_id, task_id, f"Vouched for: {REMOVED[2]}", edited_at=now()))
    rows.append(_memory(project_id, failed_id, "Said before.", created_at=now() - timedelta(hours=1)))
    rows.append(_memory(project_id, failed_id, "Said after.", created_at=now() + timedelta(hours=1)))
    async with database.transaction() as session:
        session.add_all(rows)
    return {*KEPT, f"A person says: {REMOVED[2]}", f"Vouched for: {REMOVED[2]}", "Said before."}


def _memory(project_id: str, task_id: str | None, text: str, **values: Any) -> Memory:
    given: dict[str, Any] = {"origin": "agent", "created_at": now(), **values}
    return Memory(
        id=f"mem_{uuid.uuid4().hex}",
        project_id=project_id,
        task_id=task_id,
        kind="fact",
        text=text,
        step_key=uuid.uuid4().hex,
        revision=1,
        digest=uuid.uuid4().hex,
        confirmations=0,
        uses=0,
        updated_at=now(),
        **given,
    )
