"""What tests of the gateway share: its callers, what they see in the ledger, and a database that can be cut off."""

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit

import sqlalchemy as sa

from journeyman.platform.inference.gateway.metrics import JOINED
from journeyman.platform.inference.port import CallIdentity
from journeyman.platform.ledger.models import LedgerEntry
from journeyman.platform.tasks.models import Task

INTERNAL = "internal-secret-of-the-tests"


MODEL_KEY = "sk-model-key-of-the-operator"


def internal(project, task=None, step="step-1", attempt=1):
    headers = CallIdentity(project, step, attempt, task).headers()
    return {"Authorization": f"Bearer {INTERNAL}", **headers}


async def entries(database, project):
    async with database.transaction() as session:
        query = sa.select(LedgerEntry).where(LedgerEntry.project_id == project).order_by(LedgerEntry.attempt)
        return list(await session.scalars(query))


async def entry_in_state(database, project, state):
    """The project's only entry, once it is in the state."""
    async with asyncio.timeout(10):
        while True:
            found = await entries(database, project)
            if len(found) == 1 and found[0].state == state:
                return found[0]
            await asyncio.sleep(0.01)


async def set_budget(database, task, **budget):
    async with database.transaction() as session:
        await session.execute(sa.update(Task).where(Task.id == task).values(budget=budget))


CHAT = {"model": "standard", "messages": [{"role": "user", "content": "Hi"}]}


async def until_joined(count):
    before = JOINED._value.get()
    async with asyncio.timeout(5):
        while JOINED._value.get() < before + count:
            await asyncio.sleep(0.005)


class Cable:
    """A TCP connection to the database that can be cut and mended."""

    def __init__(self, url):
        self.target = (urlsplit(url).hostname, urlsplit(url).port)
        self.is_cut = False
        self.writers = set()
        self.tasks = set()

    async def serve(self):
        self.server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        return self.server.sockets[0].getsockname()[1]

    async def accept(self, reader, writer):
        self.writers.add(writer)
        if not self.is_cut:
            onward_reader, onward = await asyncio.open_connection(*self.target)
            self.writers.add(onward)
            for source, sink in ((reader, onward), (onward_reader, writer)):
                task = asyncio.create_task(self.pump(source, sink))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
        else:
            writer.close()

    async def pump(self, source, sink):
        with suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()

    def cut(self):
        self.is_cut = True
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    async def close(self):
        self.server.close()
        self.cut()
        await asyncio.gather(*self.tasks)
