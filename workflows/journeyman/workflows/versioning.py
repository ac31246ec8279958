"""The version of a worker's workflow code, and what a worker does about it when it starts."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal

from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import WorkerDeploymentConfig

from journeyman.platform.kit import deployments, metrics
from journeyman.platform.kit.deployments import UNVERSIONED
from journeyman.platform.kit.settings import Settings
from journeyman.workflows.fingerprint import fingerprint

logger = logging.getLogger(__name__)

CHECK_EVERY_S: Final = 15.0
"""Temporal may have lost all that it knew, the current version included."""
AGAIN_S: Final = 1.0


@dataclass(frozen=True)
class WorkerVersion:
    """What a worker of the orchestration queue is. Workers without a version have none of these."""

    build_id: str
    versioning: Literal["pinned", "auto_upgrade"]

    @classmethod
    def from_settings(cls, settings: Settings) -> "WorkerVersion | None":
        """The build id is the fingerprint of the workflow code, unless the settings name one."""
        if settings.worker_versioning == "off":
            return None
        return cls(settings.worker_build_id or fingerprint(), settings.worker_versioning)

    def config(self) -> WorkerDeploymentConfig:
        pinned = self.versioning == "pinned"
        return WorkerDeploymentConfig(
            version=WorkerDeploymentVersion(deployments.DEPLOYMENT, self.build_id),
            use_worker_versioning=True,
            default_versioning_behavior=VersioningBehavior.PINNED if pinned else VersioningBehavior.AUTO_UPGRADE,
        )

    async def keep(self, client: Client) -> None:
        """See to the version for as long as the worker runs, as ``Settings.worker_versioning`` says."""
        await self.begin(client)
        while True:
            if self.versioning == "pinned":
                await _until_done(lambda: _report(client))
            await asyncio.sleep(CHECK_EVERY_S)
            await _until_done(lambda: self._begin_without_one(client))

    async def begin(self, client: Client) -> None:
        """Make this the version of all tasks (``auto_upgrade``), or the first one where there is none (``pinned``)."""
        if self.versioning == "auto_upgrade":
            await _until_done(lambda: _upgrade(client, self.build_id))
        else:
            await _until_done(lambda: self._begin_without_one(client))

    async def _begin_without_one(self, client: Client) -> None:
        if await deployments.current_version(client) is None:
            await deployments.make_current(client, self.build_id, unseen=True)


async def _upgrade(client: Client, build_id: str) -> None:
    """Make this the version of all tasks, those that run among them."""
    before = await deployments.current_version(client)
    await deployments.make_current(client, build_id, unseen=True)
    for version in await deployments.versions(client):
        # Without a change of versions, those that no worker has touched yet are simply new.
        if version.tasks and not version.current and (before != build_id or version.build_id != UNVERSIONED):
            moved = await deployments.move(client, away_from=version.build_id)
            logger.info("%d tasks moved from version %s to %s", moved, version.build_id, build_id)


async def _report(client: Client) -> None:
    metrics.STRANDED_TASKS.clear()
    for version in await deployments.versions(client):
        if version.stranded:
            metrics.STRANDED_TASKS.labels(version.build_id).set(version.tasks)
            logger.error(
                "%d running tasks stand still: no worker of version %s is left. Start one, or move the tasks to the "
                "current version with: journeyman deploy move %s",
                version.tasks,
                version.build_id,
                version.build_id,
            )


async def _until_done(action: Callable[[], Awaitable[None]]) -> None:
    """Try until it works: Temporal may not be there yet, or away for a while."""
    told = False
    while True:
        try:
            return await action()
        except RPCError as error:
            if not told:
                logger.warning("the version of the workflow code could not be seen to, it is tried again: %s", error)
                told = True
            await asyncio.sleep(AGAIN_S)
