"""Before a token is spent: the workspace is put in, set up, and checked."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from temporalio import activity

from journeyman.agents.output import cut_text, readable
from journeyman.platform.checkpoints import repository as checkpoints
from journeyman.platform.checkpoints.snapshots import Snapshot, SnapshotStore
from journeyman.platform.egress.addresses import AddressPolicy
from journeyman.platform.egress.destinations import DestinationRefused, Resolver, resolve, resolve_host
from journeyman.platform.egress.proxy import EgressLimits, egress_proxy
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.ids import derived_id
from journeyman.platform.leases.service import Claim, Leases
from journeyman.platform.sandboxes.errors import SandboxTooLarge
from journeyman.platform.sandboxes.port import ExecRequest, ExecResult, Sandbox
from journeyman.platform.tasks.models import Task
from journeyman.platform.tasks.repository import lock_task
from journeyman.platform.uploads import repository as uploads
from journeyman.workflows.environment import SETUP_TIMEOUT_S, BareProvisioner, FetchProvisioner, sandbox_spec
from journeyman.workflows.heartbeat import beating
from journeyman.workflows.source import FetchFailed, GitFetch
from journeyman.workflows.types import Prepared, TaskRef

CHECK_TIMEOUT_S: Final = 60.0
MIN_FREE_DISK_MB: Final = 16
REPORT_LIMIT: Final = 4000

_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*")
_PLAIN_WORD: Final = re.compile(r"[A-Za-z0-9_.+-]+")

_TOOLS: Final = {"python": ("bash", "python3"), "system": ("bash",)}
"""What each toolset promises."""


@dataclass
class _Report:
    """What the checks found: facts for the event, and problems, any of which ends the task."""

    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def failed(self, what: str, result: ExecResult) -> None:
        output = cut_text(readable(result.output), REPORT_LIMIT)
        reason = "ran out of time" if result.timed_out else f"ended with exit code {result.exit_code}"
        self.problems.append(f"{what} {reason}:\n{output}")


class PreparationActivities:
    def __init__(
        self,
        database: Database,
        leases: Leases,
        snapshots: SnapshotStore,
        *,
        addresses: AddressPolicy,
        resolver: Resolver = resolve_host,
    ) -> None:
        self._database = database
        self._leases = leases
        self._snapshots = snapshots
        self._addresses = addresses
        self._resolver = resolver

    @activity.defn
    @beating
    async def prepare(self, ref: TaskRef) -> Prepared:
        """Make the task's first snapshot: the source, after setup. A problem comes back as a report, and is an event."""
        async with self._database.transaction() as session:
            task = await session.get_one(Task, ref.task_id)
        if task.initial_snapshot is not None:
            return Prepared()
        report = _Report()
        try:
            await self._make_initial(ref, task, report)
        except SandboxTooLarge as error:
            report.problems.append(error.message)
        if report.problems:
            return await self._fail(task, report)
        return Prepared()

    async def _make_initial(self, ref: TaskRef, task: Task, report: _Report) -> None:
        """Fetch the source, set it up, check it, and make the first snapshot unless the report has problems."""
        source = await self._source(task, report)
        if not report.problems:
            claim = Claim(ref.project_id, ref.task_id, "prepare")
            provisioner = BareProvisioner(task.environment)
            sandbox = (await self._leases.acquire(claim, source, provisioner)).sandbox
            await self._check(sandbox, task, report)
            if not report.problems:
                snapshot = await self._snapshots.capture(sandbox, task.project_id, source)
                await self._record(task, snapshot, report)
            await self._leases.release(claim)

    async def _source(self, task: Task, report: _Report) -> str | None:
        """The snapshot that the workspace starts from; None for an empty one."""
        workspace = task.workspace
        match workspace["source"]:
            case "archive":
                async with self._database.transaction() as session:
                    return await uploads.snapshot_of(session, task.project_id, workspace["upload_id"])
            case "git":
                return await self._clone(task, workspace["url"], workspace.get("ref"), report)
            case _:
                return None

    async def _clone(self, task: Task, url: str, ref: str | None, report: _Report) -> str | None:
        """Clone in a sandbox of its own, whose only way out leads to the one address that was checked."""
        claim = Claim(task.project_id, task.id, "fetch")
        # An earlier try's sandbox leads to a proxy that ended with that try.
        await self._leases.release(claim)
        try:
            destination = await resolve(url, self._addresses, resolver=self._resolver)
            limits = EgressLimits(received_bytes=sandbox_spec("", task.environment).limits.disk_bytes)
            async with egress_proxy(destination, limits) as (socket, proxy):
                held = await self._leases.acquire(claim, None, FetchProvisioner(task.environment, socket))
                try:
                    await GitFetch(held.sandbox, url, destination, proxy).fetch(ref)
                    return (await self._snapshots.capture(held.sandbox, task.project_id, None)).digest
                finally:
                    await self._leases.release(claim)
        except (DestinationRefused, FetchFailed) as refusal:
            report.problems.append(refusal.message)
            return None

    async def _check(self, sandbox: Sandbox, task: Task, report: _Report) -> None:
        environment = task.environment
        for index, command in enumerate(environment.get("setup") or ()):
            result = await self._run(sandbox, task, f"setup:{index}", command, SETUP_TIMEOUT_S)
            if result.exit_code != 0:
                report.failed(f"Setup command `{command}`", result)
                return
        await self._check_tools(sandbox, task, report)
        await self._check_resources(sandbox, task, report)
        for index, command in enumerate(environment.get("checks") or ()):
            result = await self._run(sandbox, task, f"check:{index}", command, CHECK_TIMEOUT_S)
            if result.exit_code != 0:
                report.failed(f"Check `{command}`", result)
        for index, command in enumerate(task.acceptance):
            await self._check_starts(sandbox, task, index, command, report)

    async def _check_tools(self, sandbox: Sandbox, task: Task, report: _Report) -> None:
        toolset = task.environment.get("toolset") or "python"
        found: list[str] = []
        for tool in _TOOLS.get(toolset, ()):
            result = await self._run(sandbox, task, f"tool:{tool}", _own(f"command -v {tool}"), CHECK_TIMEOUT_S)
            if result.exit_code == 0:
                found.append(tool)
            else:
                report.problems.append(f"The toolset {toolset!r} promises {tool}, but the sandbox has none.")
        report.facts["tools"] = found

    async def _check_resources(self, sandbox: Sandbox, task: Task, report: _Report) -> None:
        command = "df -Pm /workspace | awk 'NR==2 {print $4}'; (exec 3<>/dev/tcp/1.1.1.1/53) 2>/dev/null && echo open || echo closed"
        result = await self._run(sandbox, task, "resources", _own(command), CHECK_TIMEOUT_S)
        lines = result.output.decode("utf-8", "replace").split()
        if len(lines) >= 1 and lines[0].isdigit():
            report.facts["disk_free_mb"] = int(lines[0])
            if int(lines[0]) < MIN_FREE_DISK_MB:
                report.problems.append(
                    f"Only {lines[0]} MB of disk are left in the sandbox once the workspace is in it."
                )
        report.facts["network"] = lines[-1] if lines else "unknown"
        if report.facts["network"] == "open":
            report.problems.append("The sandbox reaches the network, although the task declares none.")

    async def _check_starts(self, sandbox: Sandbox, task: Task, index: int, command: str, report: _Report) -> None:
        """An acceptance command must be valid shell, and the program that it begins with must exist.

        A path is not looked for: it may be what the task is to build.
        """
        result = await sandbox.run(
            ExecRequest(
                derived_id("command", task.id, "syntax", index),
                ["bash", "-n"],
                stdin=command.encode(),
                timeout_s=CHECK_TIMEOUT_S,
            )
        )
        if result.exit_code != 0:
            report.failed(f"Acceptance command `{command}` is not valid shell; bash -n", result)
            return
        program = first_program(command)
        if program is None:
            return
        found = await self._run(sandbox, task, f"starts:{index}", f"command -v -- {program}", CHECK_TIMEOUT_S)
        if found.exit_code != 0:
            report.problems.append(
                f"Acceptance command `{command}` cannot start: the sandbox has no program {program!r}."
            )

    @staticmethod
    async def _run(
        sandbox: Sandbox, task: Task, name: str, command: str | Sequence[str], timeout_s: float
    ) -> ExecResult:
        # The sandbox's id is part of the name: a new sandbox starts with nothing done.
        exec_id = derived_id("command", task.id, sandbox.id, name)
        return await sandbox.run(ExecRequest(exec_id, command, timeout_s=timeout_s))

    async def _record(self, task: Task, snapshot: Snapshot, report: _Report) -> None:
        async with self._database.transaction() as session:
            current = await lock_task(session, task.id)
            if current.initial_snapshot is not None:
                return
            await checkpoints.note_snapshot(session, task.project_id, snapshot.digest, snapshot.files, snapshot.bytes)
            current.initial_snapshot = snapshot.digest
            current.head_snapshot = snapshot.digest
            facts = {**report.facts, "files": snapshot.files, "bytes": snapshot.bytes}
            await append(
                session, task.id, EventType.ENVIRONMENT_CHECKED, facts, step_key=step_keys.part(task.id, "environment")
            )
            await checkpoints.create(
                session,
                checkpoints.Point(
                    project_id=task.project_id,
                    task_id=task.id,
                    thread_id=None,
                    subtask_id=None,
                    plan_revision=0,
                    snapshot=snapshot.digest,
                    step_key=step_keys.part(task.id, "prepared"),
                ),
            )

    async def _fail(self, task: Task, report: _Report) -> Prepared:
        async with self._database.transaction() as session:
            await append(
                session,
                task.id,
                EventType.ENVIRONMENT_FAILED,
                {**report.facts, "problems": report.problems},
                step_key=step_keys.part(task.id, "environment"),
            )
        return Prepared(problem="\n\n".join(report.problems)[:REPORT_LIMIT])


def _own(script: str) -> list[str]:
    """A check of the platform's own, on which the task's variables have no effect."""
    return ["bash", "-c", script]


def first_program(command: str) -> str | None:
    """The program a command begins with, when that is a plain word; None when it takes a shell to tell."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        return None
    for word in words:
        if not _ASSIGNMENT.fullmatch(word):
            return word if _PLAIN_WORD.fullmatch(word) else None
    return None
