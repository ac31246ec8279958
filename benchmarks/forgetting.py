"""What an agent forgets when its conversation is summed up: facts planted early are probed after each compaction.

A long Coder conversation is played through the platform's own store, compaction and recall. Facts are planted in its
first segment, by class (instruction, messages from people, the review, tool outputs, the agent's own words, file paths,
background commands). After each compaction every fact is probed: is its value still in what the model is sent, and does
``recall`` find it with a question in words of its own. Forgotten is what neither gives.

Three writers of summaries: ``adversarial`` says nothing at all, ``decent`` keeps from the last segment what it was told to
keep but drops every third fact, ``model`` is the one at JOURNEYMAN_MODEL_BASE_URL, when that is set.
"""

import asyncio
import json
import os
import random
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, Final

from tests.support.rows import make_task, make_thread

from benchmarks.results import Row, report
from journeyman.agents import compaction, context
from journeyman.agents.arguments import Finding
from journeyman.agents.context import TaskBrief
from journeyman.agents.plans import Subtask
from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.inference.client import OpenAIModelEngine
from journeyman.platform.inference.port import CallIdentity, ModelRequest
from journeyman.platform.kit.database import Database, create_engine
from journeyman.platform.kit.settings import Settings
from journeyman.platform.threads import repository as threads
from journeyman.platform.threads.search import search_task
from journeyman.workflows.activities.segments import begin_segment, segment_of
from journeyman.workflows.types import Step, TaskRef, ThreadRef

COMPACTIONS: Final = 6
TURNS: Final = 60
"""In each segment, about 800 characters each."""

Message = dict[str, Any]
Summarize = Callable[[list[Message], int], Awaitable[str]]


@dataclass(frozen=True)
class Fact:
    """``value`` is unique in the whole conversation; ``probe`` is how an agent would ask for it."""

    kind: str
    text: str
    value: str
    probe: str


FACTS: Final = (
    Fact("instruction", "The report must be written in Portuguese-BR-7741.", "Portuguese-BR-7741", "In which language must the report be written?"),
    Fact("instruction", "Never touch the directory legacy_q81.", "legacy_q81", "Which directory must never be touched?"),
    Fact("person", "Please keep the public function names; our partners import fetch_quote_v3.", "fetch_quote_v3", "Which public function names do partners import?"),
    Fact("person", "The staging database listens on port 48213 now.", "48213", "On which port does the staging database listen?"),
    Fact("person", "Deadline: the release is cut on 14 March at 09:37.", "09:37", "When is the release cut?"),
    Fact("review", "Division by zero in totals.py when the basket is empty (case RV-5521).", "RV-5521", "Which review case is about the empty basket?"),
    Fact("tool output", "ERROR: constraint uq_orders_ref_9c violated", "uq_orders_ref_9c", "Which constraint was violated by the orders?"),
    Fact("tool output", "Python 3.12.4 was found at /opt/py-f17/bin/python", "/opt/py-f17", "Where was Python found?"),
    Fact("tool output", "ran 412 tests in 93.07s, seed 660271", "660271", "What seed did the tests run with?"),
    Fact("agent", "The cache must be cleared before the import, otherwise stale rows of kind zeta-31 remain.", "zeta-31", "What remains when the cache is not cleared before the import?"),
    Fact("agent", "I will remove the debugging hook dbg_hook_552 before I hand over.", "dbg_hook_552", "Which debugging hook did I promise to remove?"),
    Fact("agent", "Tried: raising the pool size to 77 connections; it made no difference.", "77 connections", "What pool size was tried without a difference?"),
    Fact("other words", "The vendor's sandbox rejects amounts above 9,999.41 EUR.", "9,999.41", "What is the highest sum that the supplier's test system takes?"),
    Fact("other words", "Restarting the queue fixed the hang (ticket HQ-7730).", "HQ-7730", "How did I get it unstuck when it froze?"),
    Fact("files", "src/adapters/kestrel_91.py", "kestrel_91.py", "Which adapter file was written?"),
    Fact("background", "python -m devserver --profile umbra-44", "umbra-44", "With which profile does the devserver run?"),
)  # fmt: skip

_PROSE: Final = "".join(text for _, text in sorted(topics.items()))
"""Python's own manual: technical prose in which the words of the probes occur too."""


class Conversation:
    """A Coder's thread that grows in the store as it would in a task."""

    def __init__(self, database: Database, task_id: str, thread_id: str) -> None:
        self.database = database
        self.task_id = task_id
        self.thread_id = thread_id
        self.number = 0
        self._rng = random.Random(17)

    async def add(self, *messages: Message) -> None:
        async with self.database.transaction() as session:
            for message in messages:
                self.number += 1
                await threads.append_message(session, self.thread_id, f"{self.thread_id}:{self.number}:m", message)

    async def open(self) -> None:
        instruction = "Repair the shop. " + " ".join(fact.text for fact in FACTS if fact.kind == "instruction")
        subtask = Subtask(id="s1", title="Repair", instructions="Repair what is broken.")
        await self.add(context.system_message("coder"), context.coder_opening(TaskBrief(instruction), subtask))

    async def plant(self) -> None:
        """All facts but the instruction's, with turns in between."""
        for fact in FACTS:
            match fact.kind:
                case "person":
                    await self.add(context.person_message(fact.text))
                case "review":
                    await self.add(context.findings_note(1, [Finding(severity="major", message=fact.text)]))
                case "tool output":
                    await self.turn(
                        "shell", {"command": "make check"}, f"{self._noise(300)}\n{fact.text}\n{self._noise(300)}"
                    )
                case "agent" | "other words":
                    await self.turn("shell", {"command": "true"}, "", said=fact.text)
                case "files":
                    await self.turn("write_file", {"path": fact.text, "content": self._noise(200)}, "Written.")
                case "background":
                    await self.turn("shell", {"command": fact.text, "background": True}, "Started.")
                case _:
                    pass
            await self.filler(2)

    async def filler(self, turns: int) -> None:
        for _ in range(turns):
            words = self._noise(200).split()
            command = f"grep -n {words[1]} src/{words[2]}.py"
            await self.turn("shell", {"command": command}, self._noise(900), said=self._noise(120))

    async def turn(self, tool: str, arguments: dict[str, Any], result: str, said: str = "") -> None:
        call_id = f"c{self.number}"
        message = context.assistant_message(said, [{"id": call_id, "name": tool, "arguments": arguments}])
        await self.add(message, context.tool_message(call_id, result))
        async with self.database.transaction() as session:
            thread = await threads.get_thread(session, self.thread_id)
            thread.segment = segment_of(thread).answered().model_dump(mode="json")

    async def visible(self) -> list[Message]:
        async with self.database.transaction() as session:
            thread = await threads.get_thread(session, self.thread_id)
            return [json.loads(body) for _, body in await threads.visible_bodies(session, thread)]

    async def compact(self, summarize: Summarize, number: int) -> None:
        messages = await self.visible()
        summary = await summarize(messages, number)
        ref = ThreadRef(
            task=TaskRef(task_id=self.task_id, project_id="p"), thread_id=self.thread_id, role="coder", revision=1
        )
        async with self.database.transaction() as session:
            await begin_segment(session, Step(thread=ref, number=self.number), messages, summary, 100_000)

    async def recalled(self, probe: str) -> str:
        # An agent that looks something up leaves its question in the conversation, and the answer.
        async with self.database.transaction() as session:
            passages = await search_task(session, self.task_id, probe)
        found = "\n".join(passage.text for passage in passages)
        await self.turn("recall", {"query": probe}, f"Said and done in this task:\n{found}"[:4000])
        return found

    def _noise(self, size: int) -> str:
        start = self._rng.randrange(len(_PROSE) - size)
        return _PROSE[start : start + size]


async def adversarial(_messages: list[Message], _number: int) -> str:
    return "I was working. I go on."


async def decent(messages: list[Message], _number: int) -> str:
    """Keeps what it can see, but drops every third fact that no earlier summary settled."""
    text = "\n".join(str(message) for message in messages)
    kept = [fact for place, fact in enumerate(FACTS) if fact.value in text and place % 3]
    return "Facts:\n" + "\n".join(f"- {fact.text}" for fact in kept)


def by_model(settings: Settings) -> Summarize:
    assert settings.model_base_url is not None
    key = settings.model_api_key.get_secret_value() if settings.model_api_key else "none"
    engine = OpenAIModelEngine(settings.model_base_url, key)

    async def ask(messages: list[Message], number: int) -> str:
        request = ModelRequest(
            model=settings.model_standard,
            messages=[*messages, compaction.summary_request()],
            identity=CallIdentity("bench", f"forgetting:{number}"),
            max_tokens=4096,
        )
        return (await engine.complete(request)).text

    return ask


async def measure(database: Database, name: str, summarize: Summarize) -> list[Row]:
    task_id = await make_task(database)
    conversation = Conversation(database, task_id, await make_thread(database, task_id))
    await conversation.open()
    await conversation.plant()
    absent: dict[str, int] = defaultdict(int)
    unfound: dict[str, int] = defaultdict(int)
    forgotten: dict[str, int] = defaultdict(int)
    probes: dict[str, int] = defaultdict(int)
    for number in range(1, COMPACTIONS + 1):
        await conversation.filler(TURNS)
        await conversation.compact(summarize, number)
        text = "\n".join(str(message) for message in await conversation.visible())
        for fact in FACTS:
            in_context = fact.value in text
            recalled = fact.value in await conversation.recalled(fact.probe)
            probes[fact.kind] += 1
            absent[fact.kind] += not in_context
            unfound[fact.kind] += not recalled
            forgotten[fact.kind] += not (in_context or recalled)
    rows = []
    for kind, asked in probes.items():
        of = f"{name} summary: {kind}"
        rows.append(Row(of, "not in the context", 100 * absent[kind] / asked, "%"))
        rows.append(Row(of, "not found by recall", 100 * unfound[kind] / asked, "%"))
        # A question that shares no word with the fact is beyond a search by words: reported, but not promised.
        rows.append(Row(of, "forgotten", 100 * forgotten[kind] / asked, "%", None if kind == "other words" else 0))
    total = sum(probes.values())
    rows.append(Row(f"{name} summary: all", "forgotten", 100 * sum(forgotten.values()) / total, "%"))
    return rows


@asynccontextmanager
async def store() -> AsyncIterator[Database]:
    with tempfile.TemporaryDirectory(prefix="jm-bench-", ignore_cleanup_errors=True) as root:
        async with EmbeddedStack(Path(root) / "data", parts={"postgres", "migrations"}) as stack:
            database = Database(create_engine(stack.settings.database_url))
            yield database
            await database.close()


async def run() -> list[Row]:
    writers: dict[str, Summarize] = {"adversarial": adversarial, "decent": decent}
    if os.environ.get("JOURNEYMAN_MODEL_BASE_URL"):
        writers["model"] = by_model(Settings())
    rows: list[Row] = []
    async with store() as database:
        for name, summarize in writers.items():
            rows += await measure(database, name, summarize)
    return rows


def main() -> None:
    report("forgetting", asyncio.run(run()))


if __name__ == "__main__":
    main()
