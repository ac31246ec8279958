"""What every driver of ``Embedder`` promises."""

import asyncio
import math
from collections.abc import AsyncIterator

import pytest

from journeyman.apps.embedded.services import EMBEDDING_DIMENSIONS, EMBEDDING_MODEL
from journeyman.platform.kit.errors import Unavailable
from journeyman.platform.memory.embedder import QUERY_CHARACTERS, OpenAIEmbedder, fitting
from journeyman.platform.memory.port import Embedder


@pytest.fixture(scope="module", params=["openai"])
async def embedder(embeddings_url: str) -> AsyncIterator[Embedder]:
    driver = OpenAIEmbedder(embeddings_url, "none", EMBEDDING_MODEL)
    yield driver
    await driver.close()


def similarity(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


async def test_a_query_finds_the_passage_that_fits(embedder: Embedder) -> None:
    passages = [
        "Run the tests with `make test`; they need PostgreSQL.",
        "The cat sleeps on the sofa.",
        "Die Zinsen steigen im Herbst.",
    ]
    vectors = await embedder.embed_passages(passages)
    query = await embedder.embed_query("How are the tests of this repository run?")
    scores = [similarity(query, vector) for vector in vectors]
    assert scores.index(max(scores)) == 0


async def test_vectors_have_the_declared_length_and_unit_norm(embedder: Embedder) -> None:
    (vector,) = await embedder.embed_passages(["one"])
    assert len(vector) == EMBEDDING_DIMENSIONS
    assert math.isclose(similarity(vector, vector), 1, rel_tol=1e-3)


async def test_queries_and_passages_are_told_apart(embedder: Embedder) -> None:
    (passage,) = await embedder.embed_passages(["the same text"])
    assert similarity(passage, await embedder.embed_query("the same text")) < 0.9999


async def test_order_is_kept_over_batches(embedder: Embedder) -> None:
    texts = [f"number {number}" for number in range(40)]
    many = await embedder.embed_passages(texts)
    (last,) = await embedder.embed_passages(texts[-1:])
    assert len(many) == 40
    assert similarity(many[-1], last) > 0.999


@pytest.mark.parametrize("text", ["", " \n", "\x00", "a\x00b", "\ud83d", "☃ 雪だるま", "word " * 20_000])
async def test_any_text_is_taken(embedder: Embedder, text: str) -> None:
    vectors = await embedder.embed_passages([text, "plain"])
    assert [len(vector) for vector in vectors] == [EMBEDDING_DIMENSIONS] * 2
    assert len(await embedder.embed_query(text)) == EMBEDDING_DIMENSIONS


async def test_nothing_gives_nothing(embedder: Embedder) -> None:
    assert await embedder.embed_passages([]) == []


async def test_says_when_nobody_answers() -> None:
    driver = OpenAIEmbedder("http://127.0.0.1:9/v1", "none", EMBEDDING_MODEL)
    with pytest.raises(Unavailable) as caught:
        await driver.embed_query("anything")
    assert caught.value.retryable
    await driver.close()


async def test_queries_of_one_moment_share_requests(embeddings_url: str) -> None:
    driver = OpenAIEmbedder(embeddings_url, "none", EMBEDDING_MODEL)
    texts = [f"question {number}" for number in range(20)]
    vectors = await asyncio.gather(*(driver.embed_query(text, project_id=None) for text in texts))
    alone = await driver.embed_query("question 19")
    assert similarity(vectors[19], alone) > 0.999
    await driver.close()


@pytest.mark.parametrize(
    ("lengths", "count"),
    [([], 0), ([4000, 1], 1), ([10, 1000, 300], 2), ([1190, 10, 1], 2), ([100] * 40, 12), ([0] * 5, 5)],
)
def test_requests_are_small_and_hold_one_text_at_least(lengths: list[int], count: int) -> None:
    assert fitting(["x" * length for length in lengths]) == count


async def test_the_beginning_of_a_query_is_embedded(embedder: Embedder) -> None:
    text = " ".join(f"word{number}" for number in range(400))
    assert similarity(await embedder.embed_query(text), await embedder.embed_query(text[:QUERY_CHARACTERS])) > 0.9999
    assert similarity(await embedder.embed_query(text), await embedder.embed_query(text[:100])) < 0.9999


async def test_too_many_waiting_queries_are_refused_and_those_before_are_answered(embeddings_url: str) -> None:
    driver = OpenAIEmbedder(embeddings_url, "none", EMBEDDING_MODEL)
    results = await asyncio.gather(*(driver.embed_query("q") for _ in range(100)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, Unavailable)]
    assert refused
    assert all(isinstance(result, list) for result in results if result not in refused)
    await driver.close()
