"""A snapshot store on the real object store, and sandboxes to capture."""

import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.kit.ids import new_id
from journeyman.platform.kit.s3 import S3ObjectStore
from journeyman.platform.sandboxes.local import LocalSandboxDriver
from journeyman.platform.sandboxes.port import Sandbox, SandboxSpec
from journeyman.platform.sandboxes.registry import reap
from support.sandboxes import SMALL


@pytest.fixture
def snapshots(object_store: S3ObjectStore) -> SnapshotStore:
    return SnapshotStore(object_store)


@pytest.fixture
def project_id() -> str:
    return new_id("project")


@pytest.fixture
async def lease() -> AsyncIterator[Callable[[], Awaitable[Sandbox]]]:
    """Leases fresh sandboxes."""
    root = Path(tempfile.mkdtemp(prefix="jm-sbx-"))
    driver = LocalSandboxDriver(root)
    yield lambda: driver.lease(SandboxSpec(f"sbx_{uuid.uuid4().hex}", limits=SMALL, lease_s=300))
    await driver.close()
    reap(root, set())
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
async def sandbox(lease: Callable[[], Awaitable[Sandbox]]) -> Sandbox:
    return await lease()
