"""Applying a rewind, after the workflow has stopped all activities of the task."""

from temporalio import activity

from journeyman.platform.branching import rewinds
from journeyman.platform.kit.database import Database
from journeyman.platform.leases.service import Leases
from journeyman.platform.tasks.contract import TaskProgress
from journeyman.workflows.heartbeat import beating
from journeyman.workflows.types import ApplyRewind


class BranchingActivities:
    def __init__(self, database: Database, leases: Leases) -> None:
        self._database = database
        self._leases = leases

    @activity.defn
    @beating
    async def apply_rewind(self, request: ApplyRewind) -> TaskProgress:
        """Apply the rewind in one transaction, then end all sandboxes of the task; returns where the task goes on.

        A repetition returns the same. The workflow starts nothing before, so every sandbox belongs to what was set aside.
        """
        async with self._database.transaction() as session:
            progress = await rewinds.apply(session, request.task.task_id, request.rewind_id)
        await self._leases.release_all(request.task.task_id)
        return progress
