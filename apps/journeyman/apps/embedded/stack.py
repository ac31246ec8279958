"""The embedded stack: real servers, and the platform's own processes on top, on one machine below one data directory.

    async with EmbeddedStack(data_dir, parts={"postgres", "objects", "bucket"}) as stack:
        store = S3ObjectStore.from_settings(stack.settings)

Everything is a child of this process and ends with it, whatever ends it. Must be used on one thread, the main thread at
best: the kernel binds the children's lives to the thread that started them.
"""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from importlib.metadata import version as installed_version
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from journeyman.apps.embedded import leftovers
from journeyman.apps.embedded.child import Child
from journeyman.apps.embedded.datadir import DataDirectory
from journeyman.apps.embedded.errors import PortTaken, StackError
from journeyman.apps.embedded.forking import ForkServer
from journeyman.apps.embedded.logs import LogFile
from journeyman.apps.embedded.preflight import check_machine
from journeyman.apps.embedded.processes import start_ticks_of
from journeyman.apps.embedded.roles import default_workers, role_specs
from journeyman.apps.embedded.services import PORTS, SERVICES, STEPS, Services
from journeyman.apps.embedded.specs import Part, ProcessSpec, Spec, Status, StepSpec
from journeyman.platform.kit.settings import Settings

ROLES: Final = "roles"
"""Name for all of the platform's own processes together, beside the names of single parts."""
EVERYTHING: Final = (*SERVICES, *STEPS, ROLES)

_ROLE_PORTS: Final = ("api", "gateway", "replay-engine")
_MINIMUM_MB: Final = 500
_HOUSEKEEPING_S: Final = 2.0


class EmbeddedStack:
    """Starts the named parts, restarts what crashes, and stops all in reverse order.

    ``parts`` are names of servers (``postgres temporal objects embeddings vectors``), of steps (``migrations bucket``)
    and ``roles``; what they depend on is added. ``further`` are specs of the caller's own. ``settings`` is complete after
    :meth:`prepare`. With ``api_port`` that very port is used or :class:`PortTaken` raised; otherwise the port of the last
    start, else the usual one if ``usual_ports``, else any free one.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        parts: Collection[str] = EVERYTHING,
        settings: Settings | None = None,
        workers: int | None = None,
        api_port: int | None = None,
        usual_ports: bool = False,
        further: Sequence[Spec] = (),
        fork_server: ForkServer | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self.directory = DataDirectory(data_dir)
        self.settings = settings or Settings()
        self.workers = workers or default_workers()
        self.error: str | None = None
        self.fork_server = fork_server
        self._wanted = set(parts)
        self._further = list(further)
        self._api_port = api_port
        self._usual_ports = usual_ports
        self._on_change = on_change
        self._services: Services | None = None
        self._ports: dict[str, int] = {}
        self._parts: dict[str, Part] = {}
        self._specs: dict[str, Spec] = {}
        self._ready: dict[str, asyncio.Future[None]] = {}
        self._children: dict[str, Child] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._status = "starting"
        self._started_at = time.time()
        self._write_due: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def parts(self) -> list[Part]:
        """How everything is doing, in the order of starting."""
        return list(self._parts.values())

    @property
    def status(self) -> str:
        """``starting``, ``ready``, ``degraded`` (a part is not ready), ``stopping``, ``stopped`` or ``failed``."""
        if self._status == "ready" and any(part.status is not Status.READY for part in self._parts.values()):
            return "degraded"
        return self._status

    async def start(self) -> None:
        """Start everything that was asked for and wait until it is ready.

        Raises a :class:`StackError` when a part cannot start; everything is stopped again then.
        """
        self.prepare()
        try:
            await check_machine(self.settings, self._with_dependencies())
            if ROLES in self._wanted:
                await leftovers.reap_sandboxes(self.settings)
            self._tasks.append(asyncio.create_task(self._keep_house()))
            names = [name for name in (*SERVICES, *STEPS) if name in self._wanted]
            await self._launch(names, self._further, roles=ROLES in self._wanted)
            self._status = "ready"
            self._changed()
        except asyncio.CancelledError:
            await self.stop()
            raise
        except BaseException as error:
            self.error = error.message if isinstance(error, StackError) else str(error) or type(error).__name__
            await self.stop(status="failed")
            raise

    def _with_dependencies(self) -> set[str]:
        return set(EVERYTHING) if ROLES in self._wanted else self._wanted

    async def add(self, *names: str) -> None:
        """Start further servers, steps or ``roles`` (with what they need) in a running stack and wait for them."""
        self._wanted |= set(names)
        await self._launch([name for name in names if name != ROLES], [], roles=ROLES in names)

    def prepare(self) -> None:
        """Take the data directory, end what a dead supervisor left, choose ports, complete the settings."""
        self.directory.create()
        self.directory.lock()
        try:
            self.directory.check_version()
            self.directory.check_space(_MINIMUM_MB)
            leftovers.end_processes(self.directory)
            self._services = self._choose_addresses()
        except BaseException:
            self.directory.unlock()
            raise
        self._changed()

    def _choose_addresses(self) -> Services:
        preferred = {"api": self.settings.api_port, "gateway": self.settings.gateway_port, "replay-engine": 8702}
        self._ports = self.directory.ports([*PORTS, *_ROLE_PORTS], preferred if self._usual_ports else {})
        if self._api_port is not None:
            if not self.directory.claim_port(self._api_port):
                raise PortTaken(
                    f"Port {self._api_port} is taken by another program. Choose another with --port, "
                    "or leave it out and a free one is found.",
                    port=self._api_port,
                )
            self._ports["api"] = self._api_port
        services = Services(self.directory, self._ports, self.directory.secrets())
        api, gateway, replay = (self._ports[name] for name in _ROLE_PORTS)
        self.settings = services.connect(self.settings).model_copy(
            update={
                "api_host": "127.0.0.1",
                "api_port": api,
                "api_url": f"http://127.0.0.1:{api}",
                "gateway_host": "127.0.0.1",
                "gateway_port": gateway,
                "gateway_url": f"http://127.0.0.1:{gateway}",
                "replay_url": f"http://127.0.0.1:{replay}",
            }
        )
        return services

    async def _launch(self, names: Sequence[str], further: Sequence[Spec], *, roles: bool) -> None:
        assert self._services is not None
        new: dict[str, Spec] = {}
        pending: list[Spec] = list(further)
        if roles:
            self.fork_server = self.fork_server or ForkServer()
            pending += role_specs(self.settings, self._ports, self.workers, self.fork_server)
        known = {spec.name for spec in pending}
        queue = [*names, *(need for spec in pending for need in _needs(spec))]
        while queue:
            name = queue.pop(0)
            if name not in known and name not in self._specs and name not in new:
                spec = self._services.spec(name, self.settings)
                new[name] = spec
                queue += _needs(spec)
        new |= {spec.name: spec for spec in pending if spec.name not in self._specs}
        loop = asyncio.get_running_loop()
        for name, spec in new.items():
            self._specs[name] = spec
            if isinstance(spec, ProcessSpec):
                log = LogFile(self.directory.logs / f"{name}.log")
                child = Child(spec, log, self.directory.root, self._changed, self.fork_server)
                self._children[name] = child
                self._parts[name] = child.part
                self._ready[name] = child.became_ready
            else:
                self._parts[name] = Part(name, "step", spec.title)
                self._ready[name] = loop.create_future()
        for spec in new.values():
            self._tasks.append(asyncio.create_task(self._run(spec), name=spec.name))
        self._changed()
        wanted = {*names, *new}
        await self._all_ready([self._ready[name] for name in wanted])

    async def _run(self, spec: Spec) -> None:
        """Wait for what the part depends on, then keep it running, or do it once."""
        try:
            await asyncio.gather(*(asyncio.shield(self._ready[name]) for name in spec.depends_on))
        except (StackError, asyncio.CancelledError):
            return  # told by the part that failed
        if isinstance(spec, StepSpec):
            await self._do(spec)
        else:
            await self._children[spec.name].run()

    async def _do(self, spec: StepSpec) -> None:
        part, ready = self._parts[spec.name], self._ready[spec.name]
        started = time.monotonic()
        part.status = Status.STARTING
        self._changed()
        try:
            await spec.run()
        except Exception as error:  # noqa: BLE001  any failure of a step fails the start, with its reason
            part.status, part.detail = Status.FAILED, str(error) or type(error).__name__
            if not ready.done():
                ready.set_exception(StackError(f"{spec.title or spec.name} failed: {part.detail}", part=spec.name))
        else:
            part.status, part.seconds = Status.READY, time.monotonic() - started
            if not ready.done():
                ready.set_result(None)
        self._changed()

    @staticmethod
    async def _all_ready(futures: Sequence["asyncio.Future[None]"]) -> None:
        if not futures:
            return
        done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_EXCEPTION)
        for future in done:
            future.result()

    async def stop(self, *, status: str = "stopped") -> None:
        """Stop everything, dependents first, and give the data directory free. Again is no error."""
        if self._status in {"stopping", "stopped", "failed"}:
            return
        self._status = "stopping"
        self._changed()
        stopped = {name: asyncio.Event() for name in self._children}

        async def stop_one(name: str, child: Child) -> None:
            for other, spec in self._specs.items():
                if other != name and other in stopped and name in self._closure(spec):
                    await stopped[other].wait()
            try:
                await child.stop()
            finally:
                stopped[name].set()

        await asyncio.gather(*(stop_one(name, child) for name, child in self._children.items()), return_exceptions=True)
        for name, future in self._ready.items():
            if not future.done():
                future.cancel()
            if name not in self._children and self._parts[name].status is Status.WAITING:
                self._parts[name].status = Status.STOPPED
        for task in self._tasks:
            if task.get_name() not in self._children:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if ROLES in self._wanted:
            with suppress(Exception):
                await leftovers.reap_sandboxes(self.settings)
        if self.fork_server is not None:
            self.fork_server.close()
        if self._services is not None:
            self._services.objects.remove_sockets()
        self._status = status
        if self._write_due is not None:
            self._write_due.cancel()
        self._write_state()
        self.directory.unlock()

    def kill(self) -> None:
        """Stop waiting for anything to end in order."""
        for child in self._children.values():
            child.kill()

    def _closure(self, spec: Spec) -> set[str]:
        """Everything the spec depends on or uses, directly or not."""
        found: set[str] = set()
        queue = _needs(spec)
        while queue:
            name = queue.pop()
            if name not in found:
                found.add(name)
                queue += _needs(self._specs[name]) if name in self._specs else []
        return found

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            for file in self.directory.logs.glob("*.log"):
                LogFile(file).rotate()

    def _changed(self) -> None:
        """Tell whoever shows it, and write it down, at most twenty times a second."""
        if self._on_change is not None:
            self._on_change()
        if self._write_due is None:
            self._write_due = asyncio.get_running_loop().call_later(0.05, self._write_state)

    def _write_state(self) -> None:
        self._write_due = None
        with suppress(OSError):  # a full disk: the stack goes on, status shows what was last written
            self.directory.write("stack.json", self.as_json())

    def as_json(self) -> dict[str, Any]:
        """What ``stack.json`` holds; no secrets."""
        pid = os.getpid()
        running = self._status not in {"stopped", "failed"}
        return {
            "format": 1,
            "version": installed_version("journeyman"),
            "pid": pid,
            "start_ticks": start_ticks_of(pid),
            "started_at": self._started_at,
            "status": self.status,
            "error": self.error,
            "data_dir": str(self.directory.root),
            "workers": self.workers,
            "engine": "replay" if self.settings.uses_replay_engine else "model",
            "model": None if self.settings.uses_replay_engine else self.settings.model_standard,
            "urls": self._urls() if running else {},
            "parts": [part.as_json() for part in self._parts.values()],
        }

    def _urls(self) -> dict[str, str]:
        urls = {"temporal": self.settings.temporal_address}
        if self.settings.s3_endpoint_url:
            urls["objects"] = self.settings.s3_endpoint_url
        if ROLES in self._wanted:
            urls |= {"api": self.settings.api_url, "gateway": self.settings.gateway_url}
        return urls


def _needs(spec: Spec) -> list[str]:
    return [*spec.depends_on, *(spec.uses if isinstance(spec, ProcessSpec) else ())]
