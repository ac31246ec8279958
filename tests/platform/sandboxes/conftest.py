"""Every driver that this machine can run, and a fresh sandbox of each for a test."""

import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from journeyman.platform.sandboxes.local import LocalSandboxDriver
from journeyman.platform.sandboxes.port import Sandbox, SandboxDriver, SandboxSpec
from journeyman.platform.sandboxes.registry import reap
from support.sandboxes import SMALL


@pytest.fixture(scope="session")
def sandbox_root() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="jm-sbx-"))
    yield root
    reap(root, set())
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session", params=["local"])
async def driver(request: pytest.FixtureRequest, sandbox_root: Path) -> AsyncIterator[SandboxDriver]:
    drivers: dict[str, Callable[[], SandboxDriver]] = {"local": lambda: LocalSandboxDriver(sandbox_root)}
    driver = drivers[request.param]()
    yield driver
    await driver.close()


@pytest.fixture
async def sandbox(driver: SandboxDriver) -> AsyncIterator[Sandbox]:
    sandbox = await driver.lease(SandboxSpec(f"sbx_{uuid.uuid4().hex}", limits=SMALL, lease_s=300))
    yield sandbox
    await driver.release(sandbox.id)
