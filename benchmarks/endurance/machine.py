"""A stack of its own below one data directory, started by the command line and seen from outside, as an operator sees it."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import sqlalchemy as sa

from benchmarks.endurance.projection import LedgerRow
from journeyman.apps.embedded.datadir import DataDirectory
from journeyman.apps.embedded.processes import ProcessIdentity, identify
from journeyman.apps.embedded.services import PORTS, Services
from journeyman.platform.kit.database import Database, create_engine
from journeyman.platform.kit.settings import Settings
from journeyman.platform.ledger.models import LedgerEntry
from journeyman.platform.sandboxes import registry

EVERYTHING: Final = "everything"
"""The supervisor, and with it every process that it started."""
SANDBOX: Final = "sandbox"


@dataclass
class Machine:
    """One platform. Its calls of the API outlive the API: they are repeated until it answers."""

    root: Path
    workers: int = 2
    environment: dict[str, str] = field(default_factory=dict)
    """Settings of its own, as ``JOURNEYMAN_*`` variables."""

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def scripts(self) -> Path:
        return self.root / "scripts"

    def make(self) -> None:
        self.scripts.mkdir(parents=True, exist_ok=True)
        directory = DataDirectory(self.data)
        directory.create()
        # Not the usual ports, which other stacks may want at this moment.
        directory.ports([*PORTS, "api", "gateway", "replay-engine"], {})
        directory.unlock()

    async def up(self) -> float:
        """Start, and wait until everything is ready. Returns the seconds that took."""
        began = time.monotonic()
        code, text = await self._command("up", "--detach", "--workers", str(self.workers))
        if code != 0:
            raise RuntimeError(f"the stack did not start: {text[-2000:]}")
        return time.monotonic() - began

    async def down(self) -> None:
        """Stop everything in order, as an operator does; nothing to stop is no error."""
        code, text = await self._command("down")
        if code != 0:
            raise RuntimeError(f"the stack did not stop: {text[-2000:]}")

    async def _command(self, *arguments: str) -> tuple[int, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("JOURNEYMAN_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "journeyman.apps.cli.main",
            arguments[0],
            "--data-dir",
            str(self.data),
            *arguments[1:],
            env=own | {"JOURNEYMAN_REPLAY_SCRIPTS": str(self.scripts)} | self.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode("utf-8", "replace")

    def write_script(self, script: dict[str, Any]) -> None:
        """Give the replay engine a script, or replace the one of that name at once."""
        path = self.scripts / f"{script['name']}.json"
        path.with_suffix(".partial").write_text(json.dumps(script))
        path.with_suffix(".partial").replace(path)

    # the API

    async def call(self, method: str, path: str, **options: Any) -> Any:
        """The answer to one request; an API that is away is waited for. Refusals are raised."""
        while True:
            try:
                async with self._client() as client:
                    response = await client.request(method, path, **options)
            except (httpx.TransportError, OSError, KeyError):
                await asyncio.sleep(0.2)
                continue
            if response.status_code >= 500 or response.status_code == 429:
                await asyncio.sleep(0.2)
                continue
            response.raise_for_status()
            return response.json()

    def _client(self) -> httpx.AsyncClient:
        state = json.loads((self.data / "stack.json").read_text())
        key = (self.data / "admin.key").read_text().strip()
        return httpx.AsyncClient(
            base_url=state["urls"]["api"], headers={"Authorization": f"Bearer {key}"}, timeout=httpx.Timeout(10)
        )

    async def submit(self, **body: Any) -> str:
        key = {"Idempotency-Key": f"endurance-{time.time_ns()}"}
        return str((await self.call("POST", "/v1/tasks", json=body, headers=key))["id"])

    async def events(self, task_id: str, after: int = 0) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        while True:
            last = events[-1]["seq"] if events else after
            page = await self.call("GET", f"/v1/tasks/{task_id}/events", params={"after": last, "limit": 100})
            if not page["data"]:
                return events
            events.extend(page["data"])

    async def ledger(self, task_id: str) -> list[LedgerRow]:
        """The task's ledger as the database has it."""
        directory = DataDirectory(self.data)
        ports = json.loads((self.data / "ports.json").read_text())
        services = Services(directory, {name: ports[name] for name in PORTS}, directory.secrets())
        database = Database(create_engine(services.connect(Settings(data_dir=self.data)).database_url))
        try:
            async with database.transaction() as session:
                rows = list(await session.scalars(sa.select(LedgerEntry).where(LedgerEntry.task_id == task_id)))
        finally:
            await database.close()
        return [
            LedgerRow(
                row.kind, row.step_key, row.state, row.estimated, row.model, row.prompt_tokens, row.completion_tokens
            )
            for row in rows
        ]

    # its processes

    def supervisor(self) -> ProcessIdentity | None:
        pid = DataDirectory(self.data).holder()
        return None if pid is None else identify(pid)

    def parts(self) -> dict[str, ProcessIdentity]:
        """The running processes by name."""
        state = DataDirectory(self.data).read_state() or {}
        found = {
            part["name"]: ProcessIdentity(part["pid"], part["start_ticks"])
            for part in state.get("parts", [])
            if part["pid"] is not None and part["start_ticks"] is not None
        }
        return {name: identity for name, identity in found.items() if identity.alive}

    def is_ready(self) -> bool:
        state = DataDirectory(self.data).read_state() or {}
        return state.get("status") == "ready" and all(
            part["pid"] is None or ProcessIdentity(part["pid"], part["start_ticks"]).alive for part in state["parts"]
        )

    async def wait_until_ready(self, timeout_s: float = 120) -> None:
        async with asyncio.timeout(timeout_s):
            while not self.is_ready():
                await asyncio.sleep(0.1)

    def sandboxes(self) -> list[registry.Record]:
        records = [registry.Record.load(path) for path in registry.sandbox_directories(self.data / "sandboxes")]
        return [record for record in records if record is not None and record.alive()]

    def victims(self) -> Sequence[str]:
        """What can be killed now."""
        names = sorted(self.parts())
        # Workers carry the task: they are hit twice as often as others.
        names += [name for name in names if name.startswith("worker")]
        return [*names, *([SANDBOX] if self.sandboxes() else []), *([EVERYTHING] if self.supervisor() else [])]

    def kill(self, victim: str, choice: float) -> int | None:
        """``kill -9``. With several sandboxes, ``choice`` (0 to 1) names one. Returns the pid; None when it just ended."""
        if victim == SANDBOX:
            records = self.sandboxes()
            if not records:
                return None
            pid = records[int(choice * len(records)) % len(records)].agent.pid
        else:
            found = self.supervisor() if victim == EVERYTHING else self.parts().get(victim)
            if found is None:
                return None
            pid = found.pid
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        return pid
