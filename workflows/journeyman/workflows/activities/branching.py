"""Taking a task back to a checkpoint, once its workflow has stopped all that ran."""

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
    async def apply_rewind(self, wanted: ApplyRewind) -> TaskProgress:
        """Apply the rewind in one transaction, then end the sandboxes of what was set aside.

        Repeated, it answers what it answered first. The workflow starts nothing before it has the answer, so that every
        sandbox of the task is one of before.
        """
        async with self._database.transaction() as session:
            progress = await rewinds.apply(session, wanted.task.task_id, wanted.rewind_id)
        await self._leases.release_all(wanted.task.task_id)
        return progress
