"""The platform's own run of the acceptance commands, in a clean sandbox made from the final snapshot."""

from decimal import Decimal
from typing import Final

from temporalio import activity

from journeyman.agents.output import cut_text, readable
from journeyman.agents.review import FailedCommand, acceptance_reason
from journeyman.platform.artifacts import queries
from journeyman.platform.artifacts import repository as artifacts
from journeyman.platform.artifacts.models import Receipt
from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.events.log import append
from journeyman.platform.events.types import EventType
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.ids import derived_id
from journeyman.platform.kit.object_store import ObjectStore, put_blob
from journeyman.platform.leases.service import Claim, Leases
from journeyman.platform.plans import repository as plans
from journeyman.platform.sandboxes.port import ExecRequest, ExecResult, Sandbox
from journeyman.platform.tasks.models import Task
from journeyman.platform.tasks.repository import lock_task
from journeyman.workflows.environment import TaskProvisioner
from journeyman.workflows.heartbeat import beating
from journeyman.workflows.types import Verification, Verify

ACCEPTANCE_TIMEOUT_S: Final = 1800.0
REPORT_LIMIT: Final = 6000


class VerificationActivities:
    def __init__(self, database: Database, store: ObjectStore, leases: Leases, snapshots: SnapshotStore) -> None:
        self._database = database
        self._store = store
        self._leases = leases
        self._snapshots = snapshots

    @activity.defn
    @beating
    async def verify(self, request: Verify) -> Verification:
        """Run each command of the user and of the plan once per attempt; every run leaves a receipt.

        Each command starts from the snapshot itself, whatever the one before it did to the files.
        """
        async with self._database.transaction() as session:
            task = await session.get_one(Task, request.task.task_id)
            plan = await plans.get_plan(session, task.id, request.revision)
        commands = list(dict.fromkeys([*task.acceptance, *plan.acceptance]))
        assert task.head_snapshot is not None
        if not commands:
            return Verification(passed=True, verified=False)
        claim = Claim(task.project_id, task.id, f"verify:{request.attempt}")
        provisioner = TaskProvisioner(task.environment)
        sandbox = (await self._leases.acquire(claim, task.head_snapshot, provisioner)).sandbox
        failed: list[FailedCommand] = []
        for position, command in enumerate(commands):
            receipt = await self._receipt(request, position)
            if receipt is None:
                await self._snapshots.restore(sandbox, task.project_id, task.head_snapshot)
                result = await self._run(sandbox, request, position, command)
                receipt = await self._record(task, request, position, command, result)
            if not receipt.passed:
                failed.append(await self._describe(task, receipt))
        await self._leases.release(claim)
        return Verification(
            passed=not failed,
            verified=not failed and bool(task.acceptance),
            problem=cut_text(acceptance_reason(failed), REPORT_LIMIT) if failed else None,
        )

    async def _receipt(self, request: Verify, position: int) -> Receipt | None:
        async with self._database.transaction() as session:
            return await queries.receipt(session, request.task.task_id, request.attempt, position)

    @staticmethod
    async def _run(sandbox: Sandbox, request: Verify, position: int, command: str) -> ExecResult:
        exec_id = derived_id("command", request.task.task_id, sandbox.id, "acceptance", request.attempt, position)
        return await sandbox.run(
            ExecRequest(exec_id, command, timeout_s=ACCEPTANCE_TIMEOUT_S, output_limit=8 * 1024 * 1024)
        )

    async def _record(self, task: Task, request: Verify, position: int, command: str, result: ExecResult) -> Receipt:
        digest = await put_blob(self._store, task.project_id, result.output)
        key = f"acceptance:{request.attempt}:{position}"
        passed = result.exit_code == 0
        async with self._database.transaction() as session:
            await lock_task(session, task.id)
            output_id = await artifacts.add(
                session,
                project_id=task.project_id,
                task_id=task.id,
                kind="log",
                name=f"acceptance-{request.attempt}-{position + 1}.log",
                media_type="text/plain",
                size=len(result.output),
                digest=digest,
                key=key,
            )
            receipt = Receipt(
                id=derived_id("receipt", task.id, key),
                project_id=task.project_id,
                task_id=task.id,
                attempt=request.attempt,
                position=position,
                command=command,
                snapshot=task.head_snapshot or "",
                exit_code=result.exit_code,
                passed=passed,
                output_artifact_id=output_id,
                duration_s=Decimal(str(round(result.duration_s, 3))),
            )
            session.add(receipt)
            await append(
                session,
                task.id,
                EventType.ACCEPTANCE_PASSED if passed else EventType.ACCEPTANCE_FAILED,
                {
                    "receipt_id": receipt.id,
                    "command": command,
                    "exit_code": result.exit_code,
                    "timed_out": result.timed_out,
                    "by": "user" if command in task.acceptance else "plan",
                    "output": cut_text(readable(result.output), 4000),
                    "output_artifact_id": output_id,
                    "duration_s": round(result.duration_s, 3),
                    "snapshot": task.head_snapshot,
                },
                step_key=step_keys.part(task.id, key),
            )
        return receipt

    async def _describe(self, task: Task, receipt: Receipt) -> FailedCommand:
        async with self._database.transaction() as session:
            artifact = await artifacts.find(session, task.id, receipt.output_artifact_id)
        assert artifact is not None
        output = await artifacts.content(self._store, artifact)
        return FailedCommand(receipt.command, receipt.exit_code, readable(output))
