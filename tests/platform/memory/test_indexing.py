"""The index follows the rows, whoever dies meanwhile."""

import asyncio
import os
import signal
from datetime import timedelta
from urllib.parse import unquote, urlsplit

import httpx
import pytest
import sqlalchemy as sa

from journeyman.platform.kit import metrics
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.errors import Unavailable
from journeyman.platform.memory import index_repository, indexing
from journeyman.platform.memory.embedder import OpenAIEmbedder
from journeyman.platform.memory.indexing import MemoryIndex, point_id
from journeyman.platform.memory.models import MemoryChange
from journeyman.platform.memory.port import Point
from journeyman.platform.memory.service import MemoryService
from support.memory import Bench
from support.rows import make_task
from support.stack import SessionStack, part_of

TESTS = "Run the tests with `make test`; they need PostgreSQL."
MONEY = "Money is kept in integer cents, never in floats."


async def test_what_is_indexed_is_found_by_its_meaning(bench: Bench) -> None:
    tests, money = await bench.know(TESTS), await bench.know(MONEY)
    assert (await bench.recall("How are the tests of this repository run?"))[0] == tests
    assert (await bench.recall("Which type do amounts have?", limit=1)) == [money]
    row = await bench.row(tests)
    assert row.index_due_at is None
    assert row.indexed_at is not None


async def test_only_what_counts_is_found(bench: Bench) -> None:
    gone, replaced, slow = (
        await bench.know(TESTS),
        await bench.know("Run the tests with `nox`."),
        await bench.know("Slow tests are run with RUN_SLOW=1."),
    )
    # Behind the index's back: its vectors are all still there.
    await bench.change(gone, deleted_at=now())
    await bench.change(replaced, superseded_by=slow)
    assert await bench.recall("How are the tests run?") == [slow]
    await bench.service.settled()
    assert await bench.points() == {point_id(slow, 1)}


async def test_an_edited_text_is_found_by_its_new_meaning_only(bench: Bench) -> None:
    memory = await bench.know(TESTS)
    await bench.change(memory, text=MONEY, revision=2, index_due_at=now())
    assert await bench.recall("How are the tests run?") == []
    assert await bench.service.try_to_index(bench.project_id)
    assert await bench.points() == {point_id(memory, 2)}
    assert await bench.recall("Are amounts of money floats?") == [memory]


async def test_a_slow_writer_cannot_bring_an_old_text_back(bench: Bench) -> None:
    memory = await bench.know(TESTS)
    (old,) = await bench.embedder.embed_passages([TESTS])
    await bench.change(memory, text=MONEY, revision=2, index_due_at=now())
    await bench.service.try_to_index(bench.project_id)
    payload = {"memory_id": memory, "revision": 1}
    await bench.vectors.upsert([Point(point_id(memory, 1), old, bench.project_id, payload)])
    assert await bench.recall("How are the tests of this repository run?") == []
    await bench.service.settled()
    assert await bench.points() == {point_id(memory, 2)}


async def test_a_row_that_changes_while_it_is_indexed_is_indexed_again(bench: Bench) -> None:
    learned = await bench.learn(TESTS)

    class Slow(OpenAIEmbedder):
        """The real one; somebody deletes the memory while it works."""

        async def embed_passages(self, texts: list[str], *, project_id: str | None = None) -> list[list[float]]:
            vectors = await super().embed_passages(texts, project_id=project_id)
            await bench.change(learned.memory_id, deleted_at=now(), revision=2, index_due_at=now())
            return vectors

    slow = Slow(str(bench.embedder._base_url), "none", bench.embedder._model)
    await MemoryIndex(bench.database, bench.vectors, slow).follow(project_id=bench.project_id)
    await slow.close()
    assert await bench.points() == set()
    assert (await bench.row(learned.memory_id)).index_due_at is None


async def test_rows_of_a_process_that_died_are_taken_over(bench: Bench) -> None:
    learned = await bench.learn(TESTS)
    async with bench.database.transaction() as session:
        claimed = await index_repository.claim_due(
            session, project_id=None, grace=timedelta(), lease=indexing.LEASE, limit=10
        )
    assert [due.id for due in claimed] == [learned.memory_id]
    assert await bench.service.index.follow() == 0, "somebody else has it"
    await bench.overdue()
    assert await bench.service.index.follow() == 1
    async with bench.database.transaction() as session:
        assert not await index_repository.settle(session, claimed[0]), "the claim was given to another"
    assert await bench.recall("How are the tests run?") == [learned.memory_id]


async def test_several_processes_index_each_row_once(bench: Bench) -> None:
    texts = [f"Fact number {number}: file {number}.txt holds {number * 7} lines." for number in range(40)]
    for text in texts:
        await bench.learn(text)
    others = [MemoryIndex(bench.database, bench.vectors, bench.embedder) for _ in range(3)]
    counts = await asyncio.gather(*(index.follow() for index in others))
    assert sum(counts) == len(texts)
    assert len(await bench.points()) == len(texts)
    assert all(row.index_due_at is None and row.live for row in await bench.rows())


async def test_the_sweep_leaves_fresh_rows_to_their_writers(bench: Bench) -> None:
    await bench.learn(TESTS)
    assert await bench.service.index.follow(grace=indexing.GRACE) == 0
    assert await bench.service.index.follow() == 1


async def test_a_lost_storage_is_filled_again(bench: Bench, qdrant_url: str) -> None:
    memory = await bench.know(TESTS)
    key, address = unquote(urlsplit(qdrant_url).password or ""), "http://" + qdrant_url.partition("@")[2]
    async with httpx.AsyncClient(base_url=address, headers={"api-key": key}) as operator:
        dropped = await operator.delete(f"/collections/{bench.vectors._collection}")
        assert dropped.json()["result"] is True
    sweep = asyncio.create_task(MemoryIndex(bench.database, bench.vectors, bench.embedder).run())
    try:
        async with asyncio.timeout(30):
            while (await bench.service.recall(bench.project_id, "How are the tests run?")).degraded:
                await asyncio.sleep(0.1)
            while await bench.recall("How are the tests run?") != [memory]:
                await asyncio.sleep(0.1)
    finally:
        sweep.cancel()


async def test_light_rewording_is_merged_into_the_newer_and_can_be_traced(bench: Bench) -> None:
    old = await bench.know("The tests need PostgreSQL.")
    await bench.learn("The tests need PostgreSQL.")
    new = await bench.know("Tests need PostgreSQL!")
    old_row, new_row = await bench.row(old), await bench.row(new)
    assert (old_row.superseded_by, old_row.indexed_at) == (new, None)
    assert new_row.live
    assert new_row.confirmations == 2
    assert await bench.points() == {point_id(new, 1)}
    async with bench.database.transaction() as session:
        changes = await session.scalars(
            sa.select(MemoryChange).where(MemoryChange.memory_id == old).order_by(MemoryChange.id)
        )
        assert [(change.action, change.other_id) for change in changes] == [("confirmed", None), ("superseded", new)]


async def test_a_persons_memory_takes_an_agents_in(bench: Bench) -> None:
    person = await bench.know("The tests need PostgreSQL.")
    await bench.change(person, origin="person")
    agent = await bench.know("Tests need PostgreSQL!")
    assert (await bench.row(agent)).superseded_by == person
    assert (await bench.row(person)).live


async def test_two_of_a_persons_own_are_left_alone(bench: Bench) -> None:
    one, other = (
        (await bench.learn("The tests need PostgreSQL.")).memory_id,
        (await bench.learn("Tests need PostgreSQL!")).memory_id,
    )
    for memory in (one, other):
        await bench.change(memory, origin="person")
    await bench.service.try_to_index(bench.project_id)
    assert (await bench.row(one)).live
    assert (await bench.row(other)).live


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The server listens on port 8080 in development.", "The server listens on port 8080 in production."),
        ("Run `npm ci` before `npm test`.", "Run `npm test` before `npm ci`."),
        ("`pytest -q tests/unit` passes in this project.", "`pytest -q tests/api` passes in this project."),
    ],
)
async def test_different_facts_are_kept_however_close_their_vectors_are(bench: Bench, one: str, other: str) -> None:
    left, right = await bench.embedder.embed_passages([one, other])
    assert sum(a * b for a, b in zip(left, right, strict=True)) > indexing.REPEATED
    ids = {await bench.know(one), await bench.know(other)}
    assert {row.id for row in await bench.rows() if row.live} == ids


async def test_two_that_come_at_once_are_merged_all_the_same(bench: Bench) -> None:
    other_task = await make_task(bench.database, bench.project_id)
    one = await bench.learn("The tests need PostgreSQL.")
    other = await bench.learn("Tests need PostgreSQL!", task_id=other_task)
    await asyncio.gather(
        *(MemoryIndex(bench.database, bench.vectors, bench.embedder).follow(limit=1) for _ in range(2))
    )
    await bench.service.try_to_index(bench.project_id)
    live = [row.id for row in await bench.rows() if row.live]
    assert live == [other.memory_id]
    assert (await bench.row(one.memory_id)).superseded_by == other.memory_id


async def test_uses_are_counted_beside_the_recall(bench: Bench) -> None:
    memory = await bench.know(TESTS)
    found = await bench.service.recall(bench.project_id, "How are the tests run?")
    bench.service.used(found)
    bench.service.used(found)
    await bench.service.settled()
    row = await bench.row(memory)
    assert row.uses >= 1
    assert row.last_used_at is not None


async def test_what_a_failed_task_wrote_ranks_lower_until_somebody_confirms_it(bench: Bench) -> None:
    failed = await make_task(bench.database, bench.project_id, state="failed")
    # A task that has ended writes nothing more: it learnt this before.
    memory = await bench.know(TESTS)
    await bench.change(memory, task_id=failed)
    (doubtful,) = (await bench.service.recall(bench.project_id, "How are the tests run?")).memories
    assert doubtful.rank < doubtful.score - 0.015
    await bench.learn(TESTS)
    (confirmed,) = (await bench.service.recall(bench.project_id, "How are the tests run?")).memories
    assert confirmed.rank > confirmed.score


async def test_the_loss_of_qdrant_is_loud_and_nothing_is_lost(bench: Bench, session_stack: SessionStack) -> None:
    """With the real process frozen, killed and back: what was written meanwhile is found without a further write."""
    gone = await bench.know("The old API is deprecated.")
    stack = await session_stack.ask("vectors")
    part = part_of(stack, "vectors")
    impatient = type(bench.vectors)(stack.settings.qdrant_url, bench.vectors._collection, 384, timeout_s=1)
    service = MemoryService(bench.database, impatient, bench.embedder)
    victim = part.pid
    assert victim is not None
    os.kill(victim, signal.SIGSTOP)
    degraded = sum(metrics.MEMORY_RECALLS.labels(reason)._value.get() for reason in ("slow", "down"))
    try:
        learned = await bench.learn(TESTS)
        assert not await service.try_to_index(bench.project_id)
        found = await service.recall(bench.project_id, "How are the tests run?")
        await bench.change(gone, deleted_at=now(), revision=2, index_due_at=now())
    finally:
        os.kill(victim, signal.SIGKILL)
    assert found.degraded
    assert found.reason in {"slow", "down"}
    assert [memory.id for memory in found.memories] == [learned.memory_id], "found by its words"
    assert sum(metrics.MEMORY_RECALLS.labels(reason)._value.get() for reason in ("slow", "down")) == degraded + 1
    assert metrics.MEMORY_DOWN.labels("index")._value.get() == 1
    sweep = asyncio.create_task(service.index.run())
    try:
        async with asyncio.timeout(60):
            while (await bench.row(learned.memory_id)).indexed_at is None or await bench.row_is_due(gone):
                await asyncio.sleep(0.1)
    finally:
        sweep.cancel()
    assert metrics.MEMORY_DOWN.labels("index")._value.get() == 0
    assert await bench.points() == {point_id(learned.memory_id, 1)}
    assert await bench.recall("How are the tests run?") == [learned.memory_id]
    await impatient.close()


async def test_an_embedder_that_is_down_is_as_loud(bench: Bench) -> None:
    nobody = OpenAIEmbedder("http://127.0.0.1:9/v1", "none", "any")
    service = MemoryService(bench.database, bench.vectors, nobody)
    learned = await bench.learn(TESTS)
    with pytest.raises(Unavailable):
        await service.index.follow()
    assert (await service.recall(bench.project_id, "anything")).degraded
    by_words = await service.recall(bench.project_id, "How does one test this with PostgreSQL?")
    assert [memory.id for memory in by_words.memories] == [learned.memory_id]
    assert (by_words.degraded, by_words.reason) == (True, "down")
    await service.index._look()
    assert metrics.MEMORY_DOWN.labels("embedder")._value.get() == 1
    assert metrics.MEMORY_DOWN.labels("index")._value.get() == 0
    await nobody.close()
    await bench.overdue()
    assert await bench.service.try_to_index(bench.project_id)
    assert await bench.recall("How are the tests run?") == [learned.memory_id]
