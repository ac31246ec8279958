"""steps   threads of tasks, and the parts of the step activity that work on them: ``StepBench``"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from journeyman.platform.kit.database import Database
from journeyman.platform.kit.s3 import S3ObjectStore
from journeyman.platform.sandboxes.local import LocalSandboxDriver
from support.steps import StepBench


@pytest.fixture
async def steps(
    database: Database, object_store: S3ObjectStore, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[StepBench]:
    driver = LocalSandboxDriver(tmp_path_factory.mktemp("s"))
    async with AsyncExitStack() as stack:
        yield StepBench(database, object_store, driver, stack)
    for sandbox_id in await driver.list_ids():
        await driver.release(sandbox_id)
    await driver.close()
