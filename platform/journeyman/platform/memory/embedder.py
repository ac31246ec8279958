"""The embedder driver for any OpenAI-compatible ``/v1/embeddings``."""

import asyncio
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

from journeyman.platform.inference.port import HEADER_PROJECT
from journeyman.platform.kit.errors import Unavailable
from journeyman.platform.kit.text import cleaned

if TYPE_CHECKING:
    import openai

REQUEST_CHARACTERS: Final = 1200
"""Of all texts in one request, if there are several. A small machine embeds some 3,000 characters in a second; a query has to wait
for at most one other request."""
QUERY_CHARACTERS: Final = 600
"""What is embedded of a query. Longer ones cost more than a recall may wait for when many agents ask at once."""
_MOST_WAITING: Final = 64
_MOST_CHARACTERS: Final = 4000
"""Beyond the window of the models meant here (512 tokens); the server cuts what its model does not take."""


class OpenAIEmbedder:
    """Says with each request whether it embeds a query or passages (``input_type``), as asymmetric models need it."""

    def __init__(self, base_url: str, api_key: str, model: str, *, timeout_s: float = 30) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._model = model
        self._timeout_s = timeout_s
        self._client: openai.AsyncOpenAI | None = None
        self._waiting: dict[str | None, list[tuple[str, asyncio.Future[list[float]]]]] = {}
        self._sending: asyncio.Task[None] | None = None

    async def embed_passages(self, texts: list[str], *, project_id: str | None = None) -> list[list[float]]:
        vectors: list[list[float]] = []
        place = 0
        while place < len(texts):
            count = fitting(texts[place:])
            vectors += await self._embed(texts[place : place + count], "passage", project_id)
            place += count
        return vectors

    async def embed_query(self, text: str, *, project_id: str | None = None) -> list[float]:
        """The vector of a query's first 600 characters. Queries that come during a request go together in the next one.

        Raises :class:`Unavailable` also when too many wait.
        """
        if sum(len(waiting) for waiting in self._waiting.values()) >= _MOST_WAITING:
            raise Unavailable(f"{_MOST_WAITING} queries wait for the embeddings server already; this one is given up.")
        future: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(project_id, []).append((text[:QUERY_CHARACTERS], future))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_waiting())
        return await future

    async def _send_waiting(self) -> None:
        """One request at a time, each for the queries of one project, until none waits."""
        while self._waiting:
            project_id = next(iter(self._waiting))
            waiting = [each for each in self._waiting.pop(project_id) if not each[1].done()]
            count = fitting([text for text, _ in waiting])
            batch, rest = waiting[:count], waiting[count:]
            if rest:
                self._waiting[project_id] = rest
            if not batch:
                continue
            try:
                vectors = await self._embed([text for text, _ in batch], "query", project_id)
            except Exception as error:  # noqa: BLE001  each of those who wait gets it
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
            else:
                for (_, future), vector in zip(batch, vectors, strict=True):
                    if not future.done():
                        future.set_result(vector)

    async def _embed(self, texts: list[str], input_type: str, project_id: str | None) -> list[list[float]]:
        client = await self._connected()
        import openai

        try:
            answer = await client.embeddings.create(
                model=self._model,
                input=[_clean(text) for text in texts],
                extra_body={"input_type": input_type},
                extra_headers={} if project_id is None else {HEADER_PROJECT: project_id},
            )
        except openai.APIStatusError as error:
            raise Unavailable(
                f"The embeddings server refused a request ({error.status_code}); memories are not indexed or found.",
                retryable=error.status_code >= 500 or error.status_code in {408, 409, 429},
            ) from error
        except openai.APIError as error:
            raise Unavailable("The embeddings server does not answer; the request is tried again.") from error
        if len(answer.data) != len(texts):
            raise Unavailable(f"The embeddings server answered {len(answer.data)} vectors for {len(texts)} texts.")
        return [item.embedding for item in sorted(answer.data, key=lambda item: item.index)]

    async def _connected(self) -> "openai.AsyncOpenAI":
        # Loaded at the first call: a process that starts should not wait for what it may never need.
        if self._client is None:
            await asyncio.to_thread(import_module, "openai")
        if self._client is None:
            import openai

            self._client = openai.AsyncOpenAI(
                base_url=self._base_url, api_key=self._api_key, timeout=self._timeout_s, max_retries=0
            )
        return self._client

    async def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
        if self._client is not None:
            await self._client.close()


def fitting(texts: Sequence[str]) -> int:
    """How many of the first texts go into one request: at least one, if there is any."""
    count = size = 0
    for text in texts:
        size += min(len(text), _MOST_CHARACTERS)
        if count and size > REQUEST_CHARACTERS:
            break
        count += 1
    return count


def _clean(text: str) -> str:
    """What every server takes: no NUL (engines in C stop there), no half surrogate pairs, and never nothing at all."""
    cut = cleaned(text[:_MOST_CHARACTERS])
    return cut if cut.strip() else "."
