"""What every driver of ``VectorMemory`` promises."""

import asyncio
import math
import uuid
from collections.abc import AsyncIterator

import httpx
import pytest

from journeyman.platform.kit.errors import InvalidInput, Unavailable
from journeyman.platform.memory.port import Point, VectorMemory
from journeyman.platform.memory.qdrant import QdrantVectorMemory
from support.stack import SessionStack

DIMENSIONS = 4


@pytest.fixture(scope="module", params=["qdrant"])
async def memory(qdrant_url: str) -> AsyncIterator[VectorMemory]:
    driver = QdrantVectorMemory(qdrant_url, f"conformance_{uuid.uuid4().hex}", DIMENSIONS)
    await driver.ensure_collection()
    yield driver
    await driver.close()


@pytest.fixture
def project() -> str:
    return f"prj_{uuid.uuid4()}"


def point(project_id: str, *vector: float, **payload: object) -> Point:
    return Point(str(uuid.uuid4()), vector, project_id, payload)


async def test_finds_the_nearest_first_with_their_cosine(memory: VectorMemory, project: str) -> None:
    near, far = point(project, 1, 0.1, 0, 0, text="near"), point(project, 1, 1, 0, 0, text="far")
    await memory.upsert([far, near, point(project, 0, 0, 0, 1)])
    matches = await memory.search(project, [1, 0, 0, 0], limit=2, min_score=-1)
    assert [match.id for match in matches] == [near.id, far.id]
    assert matches[0].payload == {"text": "near"}
    assert math.isclose(matches[1].score, math.sqrt(0.5), rel_tol=1e-3)


async def test_leaves_out_what_fits_too_little(memory: VectorMemory, project: str) -> None:
    await memory.upsert([point(project, 1, 0, 0, 0), point(project, 0, 1, 0, 0), point(project, -1, 0, 0, 0)])
    assert len(await memory.search(project, [1, 0, 0, 0], limit=10, min_score=0.5)) == 1


async def test_limit_zero_finds_nothing(memory: VectorMemory, project: str) -> None:
    await memory.upsert([point(project, 1, 0, 0, 0)])
    assert await memory.search(project, [1, 0, 0, 0], limit=0, min_score=-1) == []


async def test_the_same_id_again_replaces_the_point(memory: VectorMemory, project: str) -> None:
    first = point(project, 1, 0, 0, 0, version=1)
    await memory.upsert([first])
    await memory.upsert([Point(first.id, [0, 1, 0, 0], project, {"version": 2})])
    matches = await memory.search(project, [0, 1, 0, 0], limit=10, min_score=-1)
    assert [(match.payload, round(match.score)) for match in matches] == [({"version": 2}, 1)]


async def test_ids_may_be_written_without_hyphens(memory: VectorMemory, project: str) -> None:
    own = uuid.uuid4()
    await memory.upsert([Point(own.hex, [1, 0, 0, 0], project)])
    assert [match.id for match in await memory.search(project, [1, 0, 0, 0], limit=1, min_score=0)] == [str(own)]


async def test_projects_never_meet(memory: VectorMemory, project: str) -> None:
    other = f"prj_{uuid.uuid4()}"
    mine = point(project, 1, 0, 0, 0, of="mine")
    theirs = Point(mine.id, [1, 0, 0, 0], other, {"of": "theirs", "project_id": project})
    await memory.upsert([mine, theirs])
    await memory.delete(other, [str(uuid.uuid4())])
    assert [match.payload["of"] for match in await memory.search(project, [1, 0, 0, 0], 10, 0)] == ["mine"]
    assert [match.payload["of"] for match in await memory.search(other, [1, 0, 0, 0], 10, 0)] == ["theirs"]
    await memory.delete(other, [mine.id])
    assert len(await memory.search(project, [1, 0, 0, 0], 10, 0)) == 1
    assert await memory.search(other, [1, 0, 0, 0], 10, 0) == []
    assert await memory.search("", [1, 0, 0, 0], 10, 0) == []


async def test_deletes_what_is_named_and_nothing_else(memory: VectorMemory, project: str) -> None:
    points = [point(project, 1, 0, 0, number / 10) for number in range(5)]
    await memory.upsert(points)
    await memory.delete(project, [points[0].id, points[3].id, str(uuid.uuid4())])
    await memory.delete(project, [])
    left = {match.id for match in await memory.search(project, [1, 0, 0, 0], 10, -1)}
    assert left == {points[1].id, points[2].id, points[4].id}


async def test_refuses_wrong_lengths_and_ids(memory: VectorMemory, project: str) -> None:
    with pytest.raises(InvalidInput, match="3 numbers"):
        await memory.upsert([point(project, 1, 0, 0)])
    with pytest.raises(InvalidInput, match="UUID"):
        await memory.upsert([Point("mem_1", [1, 0, 0, 0], project)])
    with pytest.raises(InvalidInput, match="5 numbers"):
        await memory.search(project, [1, 0, 0, 0, 0], 1, 0)


async def test_many_points_and_a_payload_of_any_json(memory: VectorMemory, project: str) -> None:
    payload = {"text": "naïve ☃ \n\t", "list": [1, None, {"deep": True}], "empty": {}}
    await memory.upsert([point(project, 1, number, 0, 0) for number in range(150)])
    await memory.upsert([point(project, 0, 0, 1, 0, **payload)])
    assert (await memory.search(project, [0, 0, 1, 0], 1, 0.9))[0].payload == payload
    assert len(await memory.search(project, [1, 1, 0, 0], 500, -1)) == 151


async def test_two_may_make_the_collection_at_once(qdrant_url: str) -> None:
    name = f"race_{uuid.uuid4().hex}"
    drivers = [QdrantVectorMemory(qdrant_url, name, DIMENSIONS) for _ in range(4)]
    await asyncio.gather(*(driver.ensure_collection() for driver in drivers))
    await asyncio.gather(*(driver.check() for driver in drivers))
    await asyncio.gather(*(driver.close() for driver in drivers))


async def test_tells_whether_it_is_there(qdrant_url: str) -> None:
    driver = QdrantVectorMemory(qdrant_url, f"there_{uuid.uuid4().hex}", DIMENSIONS)
    assert not await driver.exists()
    await driver.ensure_collection()
    assert await driver.exists()
    await driver.close()


async def test_says_when_the_collection_has_another_length(qdrant_url: str) -> None:
    name = f"length_{uuid.uuid4().hex}"
    first, second = QdrantVectorMemory(qdrant_url, name, 4), QdrantVectorMemory(qdrant_url, name, 8)
    await first.ensure_collection()
    with pytest.raises(Unavailable, match="another length") as caught:
        await second.ensure_collection()
    assert not caught.value.retryable
    await first.close()
    await second.close()


async def test_says_when_nobody_answers() -> None:
    driver = QdrantVectorMemory("http://127.0.0.1:9", "any", DIMENSIONS)
    with pytest.raises(Unavailable, match="does not answer"):
        await driver.check()
    await driver.close()


async def test_the_key_is_wanted(qdrant_url: str) -> None:
    address = "http://" + qdrant_url.partition("@")[2]
    async with httpx.AsyncClient(base_url=address) as client:
        for path in ("/readyz", "/collections/any/exists"):
            assert (await client.get(path)).status_code == 401
            assert (await client.get(path, headers={"api-key": "wrong"})).status_code == 401
    driver = QdrantVectorMemory(address, "any", DIMENSIONS)
    with pytest.raises(Unavailable) as caught:
        await driver.check()
    assert not caught.value.retryable
    await driver.close()


async def test_what_was_acknowledged_survives_kill_9(session_stack: SessionStack, project: str) -> None:
    stack = await session_stack.ask("vectors")
    driver = QdrantVectorMemory(stack.settings.qdrant_url, f"kill_{uuid.uuid4().hex}", DIMENSIONS)
    await driver.ensure_collection()
    points = [point(project, 1, 0, number, 0) for number in range(20)]
    await driver.upsert(points)
    await driver.delete(project, [points[0].id])
    await session_stack.kill_and_wait("vectors")
    await driver.ensure_collection()
    assert {match.id for match in await driver.search(project, [1, 0, 0, 0], 50, -1)} == {p.id for p in points[1:]}
    await driver.close()
